"""Recommendation: DLRM, which predicts clicks from categories and numbers."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecast.errors import InvalidInput
from wavecast.suite.training import Minimizer, TrainingStep

# The numbers of distinct values of the 26 categories of the Criteo Kaggle data.
CRITEO_KAGGLE = (
    *(1_460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194),
    *(27, 14_992, 5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572),
)


def dlrm(
    batch: int,
    precision: str,
    *,
    device: str = "cuda",
    tables: tuple[int, ...] = CRITEO_KAGGLE,
    numbers: int = 13,
    width: int = 16,
    bottom: tuple[int, ...] = (512, 256, 64),
    top: tuple[int, ...] = (512, 256),
    learning_rate: float = 0.1,
) -> TrainingStep:
    """DLRM on data like Criteo Kaggle's, with plain SGD (section 5 of Naumov et al.).

    The inputs of the step are `numbers` (batch, 13), `categories` (batch, 26) and `clicks`
    (batch). The synthetic values are equally frequent; in the real data, a few values make up most
    lookups. The gradients of the tables are dense, so each step writes and reads whole tables. The
    authors' sparse gradients touch only the rows in the batch.
    """
    if not tables or min(tables) < 1:
        raise InvalidInput(f"every category must have at least one value, not {tables}")
    with torch.device(device):  # made on the device, because a CPU takes long to fill the tables
        model = DLRM(tables, numbers, width, bottom, top)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)

    def loss(numbers: Tensor, categories: Tensor, clicks: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(numbers, categories), clicks)

    inputs = (
        torch.rand(batch, numbers, device=device),
        torch.stack([torch.randint(size, (batch,), device=device) for size in tables], dim=1),
        torch.randint(2, (batch,), device=device).float(),
    )
    return TrainingStep(model, inputs, Minimizer(loss, optimizer, precision, device))


class DLRM(nn.Module):
    """Naumov et al. 2019: embedding tables and a network for the numbers, with pairwise products.

    With n rows in all T tables of width D, the tables have n·D parameters. A layer from I to O
    numbers has IO + O, and the top network has D + T(T + 1)/2 inputs. For Criteo Kaggle that is
    540,201,232 + 155,984 + 320,001; the paper says "approximately 540M".
    """

    left: Tensor
    right: Tensor

    def __init__(
        self,
        tables: tuple[int, ...] = CRITEO_KAGGLE,
        numbers: int = 13,
        width: int = 16,
        bottom: tuple[int, ...] = (512, 256, 64),
        top: tuple[int, ...] = (512, 256),
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(size, width, mode="sum") for size in tables)
        for table in self.tables:
            nn.init.uniform_(
                table.weight, -(table.num_embeddings**-0.5), table.num_embeddings**-0.5
            )
        self.bottom = nn.Sequential(*_layers(numbers, *bottom, width), nn.ReLU())
        pairs = torch.tril_indices(len(tables) + 1, len(tables) + 1, offset=-1)
        self.register_buffer("left", pairs[0], persistent=False)
        self.register_buffer("right", pairs[1], persistent=False)
        self.top = nn.Sequential(*_layers(width + pairs.shape[1], *top, 1))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """(batch, numbers), (batch, tables) -> logits of a click, (batch)."""
        dense = self.bottom(numbers)
        looked_up = [
            table(column[:, None])
            for table, column in zip(self.tables, categories.unbind(dim=1), strict=True)
        ]
        features = torch.stack([dense, *looked_up], dim=1)
        products = features @ features.transpose(1, 2)
        # One product per pair of features: the matrix is symmetric, and its diagonal is not used.
        chosen = products[:, self.left, self.right]
        return self.top(torch.cat([dense, chosen], dim=1)).squeeze(1)


def _layers(*sizes: int) -> list[nn.Module]:
    """Linear layers of these sizes, with ReLUs between them."""
    layers: list[nn.Module] = []
    for narrow, wide in pairwise(sizes):
        linear = nn.Linear(narrow, wide)
        nn.init.normal_(linear.weight, std=(2 / (narrow + wide)) ** 0.5)
        nn.init.normal_(linear.bias, std=wide**-0.5)
        layers += [linear, nn.ReLU()]
    return layers[:-1]
