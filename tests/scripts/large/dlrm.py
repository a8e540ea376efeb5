"""A recommender in the manner of DLRM: 26 embedding tables, pairwise dot products, two MLPs."""

import torch
from torch import nn


def mlp(*widths):
    layers = []
    for inner, outer in zip(widths, widths[1:]):
        layers += [nn.Linear(inner, outer), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class DLRM(nn.Module):
    def __init__(self, tables=26, rows=100_000, width=64):
        super().__init__()
        self.tables = nn.ModuleList(
            [nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables)]
        )
        self.bottom = mlp(13, 512, 256, width)
        pairs = (tables + 1) * tables // 2
        self.top = mlp(pairs + width, 1024, 1024, 512, 1)
        self.register_buffer("rows", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense, sparse):
        x = self.bottom(dense)
        looked_up = [table(sparse[:, i : i + 1]) for i, table in enumerate(self.tables)]
        vectors = torch.stack([x, *looked_up], dim=1)
        dots = torch.bmm(vectors, vectors.transpose(1, 2))
        flat = dots[:, self.rows[0], self.rows[1]]
        return self.top(torch.cat([x, flat], dim=1)).squeeze(1)


if __name__ == "__main__":
    device = torch.device("cuda")
    batch = 8192
    model = DLRM().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.BCEWithLogitsLoss()
    dense = torch.rand(batch * 8, 13)
    sparse = torch.randint(0, 100_000, (batch * 8, 26))
    clicks = torch.randint(0, 2, (batch * 8,)).float()
    for epoch in range(50):
        for part in torch.arange(batch * 8).split(batch):
            x, ids, y = dense[part].cuda(), sparse[part].cuda(), clicks[part].cuda()
            loss = criterion(model(x, ids), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())
