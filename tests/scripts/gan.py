"""Two fully connected networks that are trained against each other, with two optimizers."""

import argparse
import os

import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--n_epochs", type=int, default=200)
parser.add_argument("--batch_size", type=int, default=64)
parser.add_argument("--latent_dim", type=int, default=100)
parser.add_argument("--img_size", type=int, default=32)
parser.add_argument("--sample_interval", type=int, default=400)


def block(inner, outer, normalize=True):
    layers = [nn.Linear(inner, outer)]
    if normalize:
        layers.append(nn.BatchNorm1d(outer, 0.8))
    return [*layers, nn.LeakyReLU(0.2, inplace=True)]


class Generator(nn.Module):
    def __init__(self, latent, shape):
        super().__init__()
        self.shape = shape
        self.model = nn.Sequential(
            *block(latent, 128, normalize=False),
            *block(128, 256),
            *block(256, 512),
            *block(512, 1024),
            nn.Linear(1024, int(np.prod(shape))),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.model(z).view(z.size(0), *self.shape)


class Discriminator(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(int(np.prod(shape)), 512),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Linear(512, 256),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Linear(256, 1),
            nn.Sigmoid(),
        )

    def forward(self, img):
        return self.model(img.view(img.size(0), -1))


def main():
    opt = parser.parse_args()
    os.makedirs("images", exist_ok=True)
    shape = (1, opt.img_size, opt.img_size)
    cuda = torch.cuda.is_available()
    loss_function = nn.BCELoss()
    generator, discriminator = Generator(opt.latent_dim, shape), Discriminator(shape)
    if cuda:
        generator.cuda()
        discriminator.cuda()
        loss_function.cuda()
    Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor
    images = torch.utils.data.TensorDataset(torch.rand(1280, *shape))
    loader = torch.utils.data.DataLoader(images, batch_size=opt.batch_size, shuffle=True)
    optimizer_G = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    for epoch in range(opt.n_epochs):
        for i, (imgs,) in enumerate(loader):
            valid = Tensor(imgs.size(0), 1).fill_(1.0)
            fake = Tensor(imgs.size(0), 1).fill_(0.0)
            real_imgs = imgs.type(Tensor) if not cuda else imgs.cuda()
            optimizer_G.zero_grad()
            z = torch.randn(imgs.shape[0], opt.latent_dim, device=real_imgs.device)
            gen_imgs = generator(z)
            g_loss = loss_function(discriminator(gen_imgs), valid)
            g_loss.backward()
            optimizer_G.step()
            optimizer_D.zero_grad()
            real_loss = loss_function(discriminator(real_imgs), valid)
            fake_loss = loss_function(discriminator(gen_imgs.detach()), fake)
            d_loss = (real_loss + fake_loss) / 2
            d_loss.backward()
            optimizer_D.step()
            print(f"[Epoch {epoch}] [Batch {i}] [D {d_loss.item():f}] [G {g_loss.item():f}]")
            done = epoch * len(loader) + i
            if done % opt.sample_interval == 0:
                np.save(f"images/{done}.npy", gen_imgs.data[:25].cpu().numpy())


if __name__ == "__main__":
    main()
