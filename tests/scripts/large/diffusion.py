"""Denoising diffusion with a small U-Net, time embeddings, attention and an averaged copy."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, inner, outer, time):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, inner), nn.GroupNorm(8, outer)
        self.conv1 = nn.Conv2d(inner, outer, 3, padding=1)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1)
        self.time = nn.Linear(time, outer)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        parts = self.qkv(self.norm(x)).view(b, 3, 4, c // 4, h * w).transpose(-1, -2)
        q, k, v = parts.unbind(1)
        y = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(b, c, h, w)
        return x + self.out(y)


class UNet(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        time = 4 * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down1 = Block(width, width, time)
        self.pool1 = nn.Conv2d(width, width, 4, 2, 1)
        self.down2 = Block(width, 2 * width, time)
        self.pool2 = nn.Conv2d(2 * width, 2 * width, 4, 2, 1)
        self.middle1, self.attention = Block(2 * width, 2 * width, time), Attention(2 * width)
        self.middle2 = Block(2 * width, 2 * width, time)
        self.rise2 = nn.ConvTranspose2d(2 * width, 2 * width, 4, 2, 1)
        self.up2 = Block(4 * width, width, time)
        self.rise1 = nn.ConvTranspose2d(width, width, 4, 2, 1)
        self.up1 = Block(2 * width, width, time)
        self.leave = nn.Conv2d(width, 3, 1)

    def forward(self, x, t):
        rates = torch.exp(-torch.arange(self.width // 2, device=x.device) * math.log(1e4) / 64)
        angles = t[:, None] * rates
        t = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))
        a = self.down1(self.enter(x), t)
        b = self.down2(self.pool1(a), t)
        m = self.middle2(self.attention(self.middle1(self.pool2(b), t)), t)
        m = self.up2(torch.cat([self.rise2(m), b], dim=1), t)
        return self.leave(self.up1(torch.cat([self.rise1(m), a], dim=1), t))


def main():
    device = torch.device("cuda")
    model = UNet().to(device)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), dim=0).to(device)
    images = torch.rand(3200, 3, 32, 32) * 2 - 1
    loader = torch.utils.data.DataLoader(images, batch_size=128, shuffle=True, num_workers=4)
    for epoch in range(10):
        for x in loader:
            x = x.to(device)
            t = torch.randint(0, 1000, (len(x),), device=device)
            noise = torch.randn_like(x)
            share = kept[t][:, None, None, None]
            noisy = share.sqrt() * x + (1 - share).sqrt() * noise
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.mse_loss(model(noisy, t), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for mean, new in zip(average.parameters(), model.parameters()):
                    mean.lerp_(new, 1e-3)
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
