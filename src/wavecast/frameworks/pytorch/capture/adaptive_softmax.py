"""The adaptive softmax, whose clusters of classes each take a part of the batch.

Which rows of the batch belong to a cluster depends on the targets. If they are unknown, each
cluster is assumed to take all rows, which torch's own forward pass would report as an error.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch.nn.modules.adaptive import _ASMoutput


def adaptive_log_softmax(layer: Any, source: Any, target: Any) -> Any:
    """The forward pass of `AdaptiveLogSoftmaxWithLoss`, without the check of the targets."""
    batched = target.dim() > 0
    rows = source if batched else source.unsqueeze(0)
    targets = target if batched else target.unsqueeze(0)
    output = rows.new_zeros(targets.shape[0])
    positions = targets.new_empty(targets.shape[0])
    for cluster, (low, high) in enumerate(pairwise([0, *layer.cutoffs])):
        mask = (targets >= low) & (targets < high)
        chosen = mask.nonzero().squeeze()
        if chosen.numel() == 0:
            continue
        if cluster == 0:
            positions.index_copy_(0, chosen, targets[mask])
            continue
        inside = targets[mask] - low
        scores = layer.tail[cluster - 1](rows.index_select(0, chosen))
        positions.index_fill_(0, chosen, layer.shortlist_size + cluster - 1)
        probabilities = torch.log_softmax(scores, dim=1).gather(1, inside.unsqueeze(1))
        output.index_copy_(0, chosen, probabilities.squeeze(1))
    head = torch.log_softmax(layer.head(rows), dim=1)
    output += head.gather(1, positions.unsqueeze(1)).squeeze()
    loss = (-output).mean()
    return _ASMoutput(output if batched else output.squeeze(0), loss)
