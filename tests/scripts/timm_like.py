"""A vision transformer in the style of timm's train.py: mixup, EMA, AdamW, layer decay, bf16."""

import argparse
import csv
import logging
from collections import OrderedDict
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

_logger = logging.getLogger("train")


class ViTBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(B, N, 3, self.heads, C // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(B, N, C))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, dim=192, depth=4, heads=3, classes=100, size=96, patch=16):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, patch, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, dim) * 0.02)
        self.blocks = nn.Sequential(*(ViTBlock(dim, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(dim, eps=1e-6), nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class Mixup:
    def __init__(self, alpha, classes, smoothing=0.1):
        self.alpha, self.classes, self.smoothing = alpha, classes, smoothing

    def one_hot(self, target):
        off = self.smoothing / self.classes
        on = 1.0 - self.smoothing + off
        shape = (target.size(0), self.classes)
        return torch.full(shape, off, device=target.device).scatter_(1, target.view(-1, 1), on)

    def __call__(self, x, target):
        lam = float(np.random.beta(self.alpha, self.alpha))
        x_flipped = x.flip(0).mul_(1.0 - lam)
        x.mul_(lam).add_(x_flipped)
        return x, self.one_hot(target) * lam + self.one_hot(target.flip(0)) * (1.0 - lam)


class ModelEma(nn.Module):
    def __init__(self, model, decay=0.9998):
        super().__init__()
        self.module = deepcopy(model)
        self.module.eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for ema_v, model_v in zip(
            self.module.state_dict().values(), model.state_dict().values(), strict=True
        ):
            ema_v.copy_(self.decay * ema_v + (1.0 - self.decay) * model_v)


def soft_target_loss(x, target):
    return torch.sum(-target * torch.log_softmax(x, dim=-1), dim=-1).mean()


def param_groups(model, weight_decay):
    decay = [p for p in model.parameters() if p.ndim > 1]
    no_decay = [p for p in model.parameters() if p.ndim <= 1]
    return [
        {"params": no_decay, "weight_decay": 0.0},
        {"params": decay, "weight_decay": weight_decay},
    ]


class Images(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, i):
        return torch.randn(3, 96, 96), i % 100


def validate(model, loader, device):
    model.eval()
    top1 = 0.0
    with torch.no_grad():
        for input, target in loader:
            input, target = input.to(device), target.to(device)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                output = model(input)
            top1 += (output.argmax(1) == target).float().mean().item()
    return OrderedDict([("top1", top1 / len(loader))])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-b", "--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--output", default="output/train")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    model = ViT().to(device)
    _logger.info("Model created, param count: %d", sum(p.numel() for p in model.parameters()))
    model_ema = ModelEma(model)
    optimizer = torch.optim.AdamW(param_groups(model, 0.05), lr=args.lr)
    loader = DataLoader(Images(), args.batch_size, shuffle=True, num_workers=4, drop_last=True)
    mixup = Mixup(0.8, 100)
    folder = Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    for epoch in range(args.epochs):
        model.train()
        for batch_idx, (input, target) in enumerate(loader):
            input, target = input.to(device), target.to(device)
            input, target = mixup(input, target)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = soft_target_loss(model(input), target)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            model_ema.update(model)
            torch.cuda.synchronize()
            if batch_idx % 50 == 0:
                _logger.info("Train: %d [%d] Loss: %.4g", epoch, batch_idx, loss.item())
        metrics = validate(model_ema.module, loader, device)
        with (folder / "summary.csv").open("a") as file:
            csv.writer(file).writerow([epoch, *metrics.values()])


if __name__ == "__main__":
    main()
