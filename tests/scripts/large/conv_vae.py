"""A convolutional variational autoencoder for 64 x 64 faces."""

import torch
import torch.nn.functional as F
from torch import nn, optim


class VAE(nn.Module):
    def __init__(self, latent=128, widths=(32, 64, 128, 256, 512)):
        super().__init__()
        layers, inner = [], 3
        for width in widths:
            layers += [nn.Conv2d(inner, width, 3, 2, 1), nn.BatchNorm2d(width), nn.LeakyReLU()]
            inner = width
        self.encoder = nn.Sequential(*layers, nn.Flatten())
        self.mu, self.logvar = nn.Linear(inner * 4, latent), nn.Linear(inner * 4, latent)
        self.start = nn.Linear(latent, inner * 4)
        layers = []
        for width in (*reversed(widths[:-1]), 32):
            layers += [
                nn.ConvTranspose2d(inner, width, 3, 2, 1, output_padding=1),
                nn.BatchNorm2d(width),
                nn.LeakyReLU(),
            ]
            inner = width
        self.decoder = nn.Sequential(*layers, nn.Conv2d(inner, 3, 3, padding=1), nn.Tanh())

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.decoder(self.start(z).view(-1, 512, 2, 2)), mu, logvar


def main():
    device = torch.device("cuda")
    model = VAE().to(device)
    optimizer = optim.Adam(model.parameters(), lr=5e-3)
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    faces = torch.rand(4096, 3, 64, 64)
    loader = torch.utils.data.DataLoader(faces, batch_size=144, shuffle=True, num_workers=4)
    for epoch in range(10):
        for x in loader:
            x = x.to(device)
            optimizer.zero_grad()
            out, mu, logvar = model(x)
            kld = -0.5 * torch.mean(torch.sum(1 + logvar - mu**2 - logvar.exp(), dim=1))
            loss = F.mse_loss(out, x) + 0.00025 * kld
            loss.backward()
            optimizer.step()
        scheduler.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
