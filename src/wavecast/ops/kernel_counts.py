"""The number of kernels that an op launches. Most ops launch one."""

from __future__ import annotations

from collections.abc import Mapping

from wavecast.files import shipped_toml
from wavecast.ops import rnn
from wavecast.ops.registry import Kind, kind_of
from wavecast.traces.step import Op

COUNTED: Mapping[str, int] = shipped_toml("models/kernel_counts.toml")["kernels"]
"""The kernel counts of ops that launch more than one; the file says how they were counted."""
SORTING = 20
"""The kernel count of ops that sort their indices before they add to the rows."""
SORTING_FEW, CHECKING = 13, 7
"""That of ops that sort few indices, and how many of these check that indices are inside."""
UNSORTED_LOOKUPS = 3072
"""Up to this many indices, the gradient of an embedding does not sort them (Embedding.cu)."""

ONE_TILE = 2048
"""Up to this many indices, one kernel sorts those of an embedding bag. 33 kernels were measured
with 4,096 and 8,192 indices, 13 with 2,048."""


def kernel_count(op: Op) -> int:
    """The least number of kernels of an op, if it launches any.

    For recurrent layers cuDNN launches two kernels per time step, layer and direction, in each pass
    (1033 for 128 steps of a bidirectional LSTM of two layers).
    """
    if kind_of(op.name) is Kind.RNN:
        return 2 * rnn.cell_steps(op)
    if "index_put" in op.base:
        return _index_put_kernels(op) if op.attr("accumulate", False) else 1
    if op.base == "aten.embedding_dense_backward" and index_count(op) > UNSORTED_LOOKUPS:
        return SORTING
    if "embedding_bag" in op.base and op.base.endswith("backward") and index_count(op) > ONE_TILE:
        return COUNTED.get(op.base, 1) + SORTING
    if op.attr("training") is False:
        return 1
    if op.base == "aten.im2col" and len(op.inputs[0].shape) == 4:  # one for each image (Im2Col.cu)
        return max(op.inputs[0].shape[0], 1)
    # With channels last, one kernel more was measured.
    more = "batch_norm" in op.base and "cudnn" not in op.base and _channels_last(op)
    return COUNTED.get(op.base, 1) + more


def _index_put_kernels(op: Op) -> int:
    """The kernels that check, sort and add the places of an `index_put`.

    Each further tensor of indices is checked by nine; unsafe ones are not checked.
    """
    indices = max(len(op.inputs) - 2, 1)
    checked = 0 if op.attr("unsafe", False) else CHECKING
    sorting = SORTING if index_count(op) > ONE_TILE else SORTING_FEW
    return sorting - CHECKING + checked + (indices - 1) * (checked + 2)


def _channels_last(op: Op) -> bool:
    tensors = [t for t in (*op.inputs, *op.outputs) if t.device != "cpu"]
    return bool(tensors) and max(tensors, key=lambda t: t.numel).channels_last


def index_count(op: Op) -> int:
    """The number of indices of an op."""
    return max((t.numel for t in op.inputs if "int" in t.dtype), default=0)
