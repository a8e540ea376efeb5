"""Contrastive training of an image and a text tower, in the manner of CLIP."""

import torch
import torch.nn.functional as F
from torch import nn


def encoder(width, layers, heads):
    layer = nn.TransformerEncoderLayer(
        width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


class ImageTower(nn.Module):
    def __init__(self, width=512, size=224, patch=32):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2, width))
        self.encoder, self.out = encoder(width, 8, 8), nn.Linear(width, 512)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return F.normalize(self.out(self.encoder(x).mean(1)), dim=-1)


class TextTower(nn.Module):
    def __init__(self, width=512, words=49408, length=76):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(1, length, width))
        self.encoder, self.out = encoder(width, 8, 8), nn.Linear(width, 512)

    def forward(self, ids):
        x = self.encoder(self.embed(ids) + self.places)
        return F.normalize(self.out(x[:, -1]), dim=-1)


def main():
    device = "cuda"
    batch = 256
    images, texts = ImageTower().to(device), TextTower().to(device)
    scale = nn.Parameter(torch.tensor(2.66, device=device))
    parameters = [*images.parameters(), *texts.parameters(), scale]
    optimizer = torch.optim.AdamW(parameters, lr=5e-4, weight_decay=0.2, betas=(0.9, 0.98))
    pictures = torch.rand(batch, 3, 224, 224).pin_memory()
    captions = torch.randint(0, 49408, (batch, 76)).pin_memory()
    labels = torch.arange(batch, device=device)
    for step in range(1000):
        x = pictures.to(device, non_blocking=True)
        ids = captions.to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = scale.exp() * images(x) @ texts(ids).T
            loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            scale.clamp_(0, 4.6)
        if step % 50 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
