"""A graph convolutional network by index_add, without a graph library."""

import torch
import torch.nn.functional as F
from torch import nn


class GraphConv(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.linear = nn.Linear(inner, outer, bias=False)

    def forward(self, x, source, target, weight):
        x = self.linear(x)
        messages = x[source] * weight[:, None]
        return torch.zeros_like(x).index_add_(0, target, messages)


class GCN(nn.Module):
    def __init__(self, inner, hidden, classes):
        super().__init__()
        self.first, self.second = GraphConv(inner, hidden), GraphConv(hidden, classes)

    def forward(self, x, *graph):
        x = F.dropout(F.relu(self.first(x, *graph)), 0.5, self.training)
        return self.second(x, *graph)


def main():
    device = "cuda"
    nodes, edges = 100_000, 1_500_000
    source, target = torch.randint(0, nodes, (2, edges), device=device)
    degree = torch.bincount(target, minlength=nodes).clamp(min=1).float()
    weight = (degree[source] * degree[target]).rsqrt()
    x = torch.randn(nodes, 256, device=device)
    y = torch.randint(0, 47, (nodes,), device=device)
    model = GCN(256, 128, 47).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
    for epoch in range(300):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, source, target, weight), y)
        loss.backward()
        optimizer.step()
        if epoch % 10 == 0:
            print(epoch, loss.item())


if __name__ == "__main__":
    main()
