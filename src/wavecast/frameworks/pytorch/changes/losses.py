"""The loss of a language model, computed in chunks of tokens so that not all logits exist at once.

As for attention, the first run of a step shows which output layers feed only a cross-entropy; later
runs compute both together, a chunk of tokens at a time, and again in the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from wavecast.frameworks.pytorch.changes.placeholders import (
    CASTS,
    VIEWS,
    LearningMode,
    SeenUses,
    placeholder,
    returns_tensors,
)

CHUNKS = 8
"""The number of chunks, as in torchtune."""
_LEAST_CLASSES = 8192
"""Output layers with fewer classes are no language models'."""


@dataclass(frozen=True)
class _Logits:
    """Logits, and what they are computed from."""

    key: Any
    hidden: Any
    weight: Any
    bias: Any


class ChunkedLoss(SeenUses):
    """What is known of the loss of one step: which output layers feed only the loss."""

    def mode(self) -> LearningMode:
        """The mode that looks for the loss in one run."""
        return _ChunkingMode(self)


class _ChunkingMode(LearningMode):
    def may_begin(self, name: str, given: list[Any]) -> bool:
        """Whether a function is the output layer of a language model."""
        return name == "linear" and len(given) >= 2 and given[1].shape[0] >= _LEAST_CLASSES

    def begun(self, func: Any, args: Any, kwargs: Any, given: list[Any]) -> Any:
        """The logits, or what stands for them."""
        hidden, weight, *bias = given
        key = tuple(hidden.shape), tuple(weight.shape), torch.is_grad_enabled()
        if self.begin(key):
            out = placeholder(hidden, (*hidden.shape[:-1], weight.shape[0]))
        else:
            out = func(*args, **kwargs)
        self.followed[out] = _Logits(key, hidden, weight, bias[0] if bias else None)
        return out

    def use(self, func: Any, name: str, tensor: Any, args: Any, kwargs: Any) -> Any:
        """The result of a function that is given logits."""
        logits = self.followed[tensor]
        is_replaced = self.is_replaced(logits.key)
        if name == "cross_entropy" and tensor is (args[0] if args else kwargs.get("input")):
            self.end(logits.key)
            target = args[1] if len(args) > 1 else kwargs["target"]
            return _loss(logits, target) if is_replaced else func(*args, **kwargs)
        if name in CASTS or name in VIEWS or name == "contiguous":
            out = tensor if is_replaced and name not in VIEWS else func(*args, **kwargs)
            self.followed[out] = logits
            return out
        out = func(*args, **kwargs)
        if returns_tensors(out):
            self.spoil(logits.key)
        return out


def _loss(logits: _Logits, target: Any) -> Any:
    """The mean of the losses of all tokens, summed over chunks."""
    wanted = target.flatten()
    hidden = logits.hidden.flatten(0, -2)[: wanted.numel()]

    def part(rows: Any, classes: Any) -> Any:
        found = F.linear(rows, logits.weight, logits.bias)
        return F.cross_entropy(found, classes, reduction="sum")

    pairs = zip(hidden.chunk(CHUNKS), wanted.chunk(CHUNKS), strict=True)
    sums = [checkpoint(part, *pair, use_reentrant=False) for pair in pairs]
    return torch.stack(sums).sum() / wanted.numel()
