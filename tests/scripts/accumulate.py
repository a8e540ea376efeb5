"""A transformer encoder with gradient accumulation, clipping and a warm-up of the learning rate."""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    width: int = 256
    layers: int = 4
    heads: int = 4
    length: int = 128
    vocabulary: int = 8000
    micro_batch: int = 8
    accumulate: int = 4
    warm_up: int = 100


class Sentences(Dataset):
    def __init__(self, config):
        self.config = config

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return torch.randint(0, self.config.vocabulary, (self.config.length,)), index % 2


class Classifier(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed = nn.Embedding(c.vocabulary, c.width)
        layer = nn.TransformerEncoderLayer(
            c.width, c.heads, 4 * c.width, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, c.layers, enable_nested_tensor=False)
        self.head = nn.Linear(c.width, 2)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens)).mean(dim=1))


def main():
    config = Config()
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    model = Classifier(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / config.warm_up)
    )
    loader = DataLoader(Sentences(config), batch_size=config.micro_batch, shuffle=True)
    updates = math.ceil(len(loader) / config.accumulate)
    print(f"{updates} updates in an epoch")
    model.train()
    optimizer.zero_grad()
    total = torch.zeros((), device=device)
    for i, (tokens, label) in enumerate(loader):
        tokens, label = tokens.to(device), label.to(device)
        loss = nn.functional.cross_entropy(model(tokens), label) / config.accumulate
        loss.backward()
        total += loss.detach()
        if (i + 1) % config.accumulate == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            print("loss", total.item())
            total.zero_()


main()
