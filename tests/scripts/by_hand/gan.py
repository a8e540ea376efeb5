import torch
from gan import Discriminator, Generator
from torch import nn


def make_step():
    generator, discriminator = Generator(100, (1, 32, 32)).cuda(), Discriminator((1, 32, 32)).cuda()
    optimizer_G = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    loss_function = nn.BCELoss()
    images = torch.rand(64, 1, 32, 32)

    def step():
        valid = torch.cuda.FloatTensor(64, 1).fill_(1.0)
        fake = torch.cuda.FloatTensor(64, 1).fill_(0.0)
        real = images.cuda()
        optimizer_G.zero_grad()
        made = generator(torch.randn(64, 100, device="cuda"))
        g_loss = loss_function(discriminator(made), valid)
        g_loss.backward()
        optimizer_G.step()
        optimizer_D.zero_grad()
        real_loss = loss_function(discriminator(real), valid)
        d_loss = (real_loss + loss_function(discriminator(made.detach()), fake)) / 2
        d_loss.backward()
        optimizer_D.step()
        d_loss.item(), g_loss.item()

    return step
