"""Graphs: GraphSAGE, which predicts the field of a paper from the papers that it cites."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecast.errors import InvalidInput
from wavecast.suite.training import Minimizer, TrainingStep

# ogbn-arxiv (Hu et al. 2020), with citations in both directions, as in OGB's training.
_NODES, _EDGES, _LABELLED = 169_343, 2_315_598, 90_941


def graphsage(
    batch: int,
    precision: str,
    *,
    device: str = "cuda",
    features: int = 128,
    classes: int = 40,
    layers: int = 3,
    width: int = 256,
    dropout: float = 0.5,
    learning_rate: float = 0.01,
) -> TrainingStep:
    """GraphSAGE on a graph like ogbn-arxiv: full-batch training with Adam, as in OGB's example.

    The batch is the number of nodes in the graph. The default is that of ogbn-arxiv; a smaller
    graph has as many edges per node. Every node is computed, and the labelled ones give the loss.
    The inputs of the step are `features` (batch, features); `edges` (2, edges), source
    and target nodes, sorted by target; the `labelled` nodes, and their `labels`. Edges are drawn
    uniformly. Real graphs have hubs, whose sums a GPU must compute one after the other.
    """
    if batch < 2:
        raise InvalidInput(
            f"the graph must have at least 2 nodes, because of the batch norm, not {batch}"
        )
    model = GraphSAGE(layers, features, width, classes, dropout).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)

    def loss(features: Tensor, edges: Tensor, labelled: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(features, edges).index_select(0, labelled), labels)

    edge_count, label_count = round(batch * _EDGES / _NODES), round(batch * _LABELLED / _NODES)
    sources, targets = torch.randint(batch, (2, edge_count), device=device)
    inputs = (
        torch.randn(batch, features, device=device),
        torch.stack([sources, targets.sort().values]),
        torch.randperm(batch, device=device)[:label_count],
        torch.randint(classes, (label_count,), device=device),
    )
    return TrainingStep(model, inputs, Minimizer(loss, optimizer, precision, device))


class GraphSAGE(nn.Module):
    """Hamilton et al. 2017 with the mean of all neighbours and, as in OGB, norms between layers.

    A layer from I to O numbers has 2IO + O parameters, and a norm 2O. For this size OGB's
    leaderboard says 218,664.
    """

    def __init__(
        self, layers: int, features: int, width: int, classes: int, dropout: float = 0.5
    ) -> None:
        super().__init__()
        sizes = [features, *[width] * (layers - 1), classes]
        self.layers = nn.ModuleList(MeanLayer(*sizes) for sizes in pairwise(sizes))
        self.between = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(size), nn.ReLU(inplace=True), nn.Dropout(dropout))
            for size in sizes[1:-1]
        )

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """(nodes, features), (2, edges) -> logits of the nodes' classes, (nodes, classes)."""
        sources, targets = edges
        ones = torch.ones(targets.shape, device=x.device)
        neighbours = torch.zeros(len(x), device=x.device).index_add(0, targets, ones).clamp(min=1)
        first, *others = self.layers
        x = first(x, sources, targets, neighbours)
        for between, layer in zip(self.between, others, strict=True):
            x = layer(between(x), sources, targets, neighbours)
        return x


class MeanLayer(nn.Module):
    """The sum of two linear layers: of a node, and of the mean of its neighbours."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.own = nn.Linear(width, out, bias=False)
        self.others = nn.Linear(width, out)

    def forward(self, x: Tensor, sources: Tensor, targets: Tensor, neighbours: Tensor) -> Tensor:
        """(nodes, width) -> (nodes, out). `neighbours` is the number of neighbours of each node."""
        messages = x.index_select(0, sources)
        total = torch.zeros_like(x).index_add(0, targets, messages)
        return self.own(x) + self.others(total / neighbours[:, None].to(x.dtype))
