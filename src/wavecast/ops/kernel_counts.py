"""How many kernels an op launches; most launch one."""

from __future__ import annotations

from collections.abc import Mapping

from wavecast.files import shipped_toml
from wavecast.ops import rnn
from wavecast.ops.registry import Kind, kind_of
from wavecast.traces.step import Op

COUNTED: Mapping[str, int] = shipped_toml("models/kernel_counts.toml")["kernels"]
"""Ops that launch more than one kernel; the file says how they were counted."""
SORTING = 20
"""Of ops that sort their places before they add to them."""
UNSORTED_LOOKUPS = 3072
"""Up to so many, the gradient of an embedding sorts none (Embedding.cu)."""


def counted(op: Op) -> int:
    """Kernels of one run of an op that has something to run, at least.

    Of recurrent layers cuDNN launches two per time step, layer and direction each way (1033 for 128
    steps of a bidirectional LSTM of two layers).
    """
    if kind_of(op.name) is Kind.RNN:
        return 2 * rnn.cell_steps(op)
    if op.base in ("aten.index_put", "aten.index_put_"):
        return SORTING if op.attr("accumulate", False) else 1
    if op.base == "aten.embedding_dense_backward" and _places(op) > UNSORTED_LOOKUPS:
        return SORTING
    if op.attr("training") is False:
        return 1
    # One more was seen where channels are neighbours in memory.
    more = "batch_norm" in op.base and "cudnn" not in op.base and _channels_last(op)
    return COUNTED.get(op.base, 1) + more


def _channels_last(op: Op) -> bool:
    tensors = [t for t in (*op.inputs, *op.outputs) if t.device != "cpu"]
    return bool(tensors) and max(tensors, key=lambda t: t.numel).channels_last


def _places(op: Op) -> int:
    """How many indices an op has."""
    return max((t.numel for t in op.inputs if "int" in t.dtype), default=0)
