"""A translation transformer of torch.nn with padded sentences and teacher forcing."""

import math

import torch
from torch import nn

PAD, WORDS = 1, 16_000


class Positions(nn.Module):
    def __init__(self, width, longest=512):
        super().__init__()
        rates = torch.exp(-torch.arange(0, width, 2) * math.log(10000) / width)
        angles = torch.arange(longest)[:, None] * rates
        table = torch.zeros(longest, width)
        table[:, 0::2], table[:, 1::2] = torch.sin(angles), torch.cos(angles)
        self.register_buffer("table", table)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return self.drop(x + self.table[: x.size(1)])


class Translator(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.width = width
        self.source, self.target = nn.Embedding(WORDS, width), nn.Embedding(WORDS, width)
        self.positions = Positions(width)
        self.transformer = nn.Transformer(width, 8, 6, 6, 2048, 0.1, batch_first=True)
        self.out = nn.Linear(width, WORDS)

    def forward(self, source, target):
        causal = nn.Transformer.generate_square_subsequent_mask(target.size(1), device="cuda")
        scale = math.sqrt(self.width)
        y = self.transformer(
            self.positions(self.source(source) * scale),
            self.positions(self.target(target) * scale),
            tgt_mask=causal,
            src_key_padding_mask=source == PAD,
            tgt_key_padding_mask=target == PAD,
            memory_key_padding_mask=source == PAD,
        )
        return self.out(y)


def main():
    torch.backends.cuda.matmul.allow_tf32 = True
    model = Translator().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    pairs = torch.utils.data.TensorDataset(
        torch.randint(2, WORDS, (6400, 64)), torch.randint(2, WORDS, (6400, 65))
    )
    loader = torch.utils.data.DataLoader(pairs, batch_size=128, shuffle=True)
    for epoch in range(3):
        model.train()
        losses = 0
        for source, target in loader:
            source, target = source.cuda(), target.cuda()
            logits = model(source, target[:, :-1])
            optimizer.zero_grad()
            loss = criterion(logits.reshape(-1, WORDS), target[:, 1:].reshape(-1))
            loss.backward()
            optimizer.step()
            losses += loss.item()
        print(epoch, losses / len(loader))


if __name__ == "__main__":
    main()
