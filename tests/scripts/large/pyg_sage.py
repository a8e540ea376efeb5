"""A full-batch GraphSAGE of PyG on a random graph of the size of ogbn-arxiv."""

import torch
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv


class SAGE(torch.nn.Module):
    def __init__(self, inner, hidden, classes):
        super().__init__()
        self.convs = torch.nn.ModuleList(
            [SAGEConv(inner, hidden), SAGEConv(hidden, hidden), SAGEConv(hidden, classes)]
        )

    def forward(self, x, edges):
        for conv in self.convs[:-1]:
            x = F.dropout(F.relu(conv(x, edges)), 0.5, self.training)
        return self.convs[-1](x, edges).log_softmax(-1)


torch.manual_seed(0)
device = torch.device("cuda")
nodes, edges = 169_343, 1_166_243
x = torch.randn(nodes, 128).to(device)
edge_index = torch.randint(0, nodes, (2, edges)).to(device)
y = torch.randint(0, 40, (nodes,)).to(device)
model = SAGE(128, 256, 40).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(1, 501):
    model.train()
    optimizer.zero_grad()
    loss = F.nll_loss(model(x, edge_index), y)
    loss.backward()
    optimizer.step()
    print(f"Epoch {epoch:03d} loss {loss.item():.4f}")
