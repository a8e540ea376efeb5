"""Attention kernels from before FlashAttention 2, whose speed relative to it was published.

The times of attention come from kernels of FlashAttention 2 and later. Steps of 2023 ran others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from wavecast import ops
from wavecast.hardware.device import Device
from wavecast.ops import Kind
from wavecast.predictors.base import Estimate, Predictor
from wavecast.traces.step import Op

TRITON = math.sqrt(1.3 * 2.5)
"""How many times as long FlashAttention in Triton takes as FlashAttention 2.

Dao 2023 (FlashAttention-2, section 4.1, from memory): 1.3 to 2.5 times on an A100, over sequences
of 512 to 16,384 tokens. Their geometric mean is taken.
"""
_TRITON_SOURCES = ("llm-foundry",)
"""Sources whose benchmark script asks for attention in Triton by default (from memory)."""


def attention_factor(row: Mapping[str, Any]) -> float:
    """How many times as long the attention kernels of a row take as those of FlashAttention 2."""
    in_triton = any(name in str(row["source"]) for name in _TRITON_SOURCES)
    return TRITON if in_triton and row["flash_attention"] else 1.0


class OlderAttention(Predictor):
    """A predictor whose attention kernels are slower by a factor."""

    def __init__(self, predictor: Predictor, factor: float) -> None:
        self._predictor = predictor
        self._factor = factor

    def predict(self, op: Op, device: Device) -> Estimate | None:
        """The time of one run of an op on a GPU."""
        return self.predict_all([op], device)[0]

    def predict_all(self, wanted: Sequence[Op], device: Device) -> Sequence[Estimate | None]:
        """The time of each op on a GPU."""
        answers = self._predictor.predict_all(wanted, device)
        return [self._slower(op, one) for op, one in zip(wanted, answers, strict=True)]

    def _slower(self, op: Op, one: Estimate | None) -> Estimate | None:
        if one is None or ops.kind(op) is not Kind.ATTENTION:
            return one
        factor = self._factor
        return replace(
            one,
            seconds=one.seconds * factor,
            low_s=one.low_s * factor,
            high_s=one.high_s * factor,
        )
