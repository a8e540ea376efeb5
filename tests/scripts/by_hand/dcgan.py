import torch
from dcgan import Discriminator, generator, weights_init
from torch import nn


def make_step():
    torch.backends.cudnn.benchmark = True
    netG, netD = generator(100, 64, 3).cuda(), Discriminator(64, 3).cuda()
    netG.apply(weights_init)
    netD.apply(weights_init)
    optimizerD = torch.optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))
    criterion = nn.BCELoss()
    images = torch.randn(64, 3, 64, 64)

    def step():
        netD.zero_grad()
        real = images.cuda()
        label = torch.full((64,), 1, dtype=real.dtype, device="cuda")
        output = netD(real)
        real_loss = criterion(output, label)
        real_loss.backward()
        output.mean().item()
        fake = netG(torch.randn(64, 100, 1, 1, device="cuda"))
        label.fill_(0)
        output = netD(fake.detach())
        fake_loss = criterion(output, label)
        fake_loss.backward()
        output.mean().item()
        total = real_loss + fake_loss
        optimizerD.step()
        netG.zero_grad()
        label.fill_(1)
        output = netD(fake)
        loss = criterion(output, label)
        loss.backward()
        output.mean().item()
        optimizerG.step()
        total.item(), loss.item()

    return step
