"""The loss of a language model, computed in chunks of tokens so that not all logits exist at once.

As for attention, the first run of a step shows which output layers feed only a cross-entropy; later
runs compute both together, a chunk of tokens at a time, and again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint
from torch.utils.weak import WeakTensorKeyDictionary

from wavecast.frameworks.pytorch.changes.placeholders import (
    CASTS,
    VIEWS,
    LearningMode,
    SeenUses,
    name_of,
    placeholder,
    returns_tensors,
    tensors_in,
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

    @contextmanager
    def active(self) -> Iterator[None]:
        """Run the block with the loss in chunks, as far as earlier runs have shown it."""
        with self.learning(_ChunkingMode(self)):
            yield


class _ChunkingMode(LearningMode):
    def __init__(self, learned: SeenUses) -> None:
        super().__init__(learned)
        self._logits: Any = WeakTensorKeyDictionary()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The result of a function of torch, or what stands for it."""
        kwargs, name = kwargs or {}, name_of(func)
        given = tensors_in((args, kwargs))
        if name == "linear" and len(given) >= 2 and given[1].shape[0] >= _LEAST_CLASSES:
            return self._linear(func, args, kwargs, given)
        for tensor in given:
            if tensor in self._logits:
                return self._follow(func, name, tensor, args, kwargs)
        return func(*args, **kwargs)

    def _linear(self, func: Any, args: Any, kwargs: Any, given: list[Any]) -> Any:
        hidden, weight, *bias = given
        key = tuple(hidden.shape), tuple(weight.shape), torch.is_grad_enabled()
        if self.begin(key):
            out = placeholder(hidden, (*hidden.shape[:-1], weight.shape[0]))
        else:
            out = func(*args, **kwargs)
        self._logits[out] = _Logits(key, hidden, weight, bias[0] if bias else None)
        return out

    def _follow(self, func: Any, name: str, tensor: Any, args: Any, kwargs: Any) -> Any:
        logits = self._logits[tensor]
        is_replaced = self.is_replaced(logits.key)
        if name == "cross_entropy" and tensor is (args[0] if args else kwargs.get("input")):
            self.end(logits.key)
            target = args[1] if len(args) > 1 else kwargs["target"]
            return _loss(logits, target) if is_replaced else func(*args, **kwargs)
        if name in CASTS or name in VIEWS or name == "contiguous":
            out = tensor if is_replaced and name not in VIEWS else func(*args, **kwargs)
            self._logits[out] = logits
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
