"""Library calls in XLA, which tries algorithms and its own Triton kernels and takes the fastest.

The models of matmuls and convolutions were fitted on what torch calls. `lab/fit/xla.py` compares
them with what XLA ran on our GPU, class by class.
"""

from __future__ import annotations

from functools import cache

from wavecast import ops
from wavecast.files import shipped_toml
from wavecast.ops import Kind, matmul
from wavecast.ops.registry import integers
from wavecast.traces.step import Op

MARK = "autotuned"
"""The attribute of ops that XLA tuned."""
_LONG_ROW = 4096
"""Rows of this length and more are long. A Triton matmul whose rows begin at odd places loads them
element by element, which takes most of its time where they are long, and more where they are summed
over. Rows of 392 and of 50,257 elements were measured."""
_LONG_WINDOW = 32
"""cuDNN's fast kernels have windows of up to so many places a dimension."""


def class_of(op: Op) -> str | None:
    """The class of a library call that XLA tuned: "matmul/float32"; None for other ops."""
    if not op.attr(MARK, False) or not op.inputs:
        return None
    dtype = op.inputs[-1].dtype
    match ops.kind(op):
        case Kind.MATMUL if op.base == matmul.XLA_UNALIGNED:
            return f"{_rows(op)}unaligned/{dtype}"
        case Kind.MATMUL:
            return f"matmul/{dtype}"
        case Kind.CONVOLUTION:
            return f"{_convolution(op)}/{dtype}"
        case Kind.ATTENTION:
            return "attention_backward" if "backward" in op.base else "attention"
    return None


def _rows(op: Op) -> str:
    """Whether the longest rows of the operands are long and summed over, or there is a batch."""
    lengths = []
    for tensor, summed in zip(op.inputs[-2:], (-1, -2), strict=True):
        fastest = -1 if tensor.strides is None else -2
        lengths.append((tensor.shape[fastest], fastest == summed))
    length, is_summed = max(lengths)
    if length < _LONG_ROW:
        return "batched " if len(op.inputs[-1].shape) > 2 else ""
    return "long summed " if is_summed else "long "


def _convolution(op: Op) -> str:
    """The class of a convolution: cuDNN has kernels of their own for some."""
    wants = integers(op, "output_mask")
    gradient = "" if not wants else ("_weight" if wants[1] else "_image")
    weight = op.inputs[-1 if wants else 1].shape
    if ops.is_depthwise(op):
        return f"depthwise{'_1d' if len(weight) == 3 else ''}{gradient}"
    is_long = max(weight[2:], default=1) > _LONG_WINDOW
    return f"convolution{'_long_window' if is_long else ''}{gradient}"


@cache
def _classes() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = shipped_toml("models/xla.toml")["libraries"]
    return found


def term_of(op: Op) -> float:
    """The logarithm of how much longer a tuned call takes than the models say; 0 for others."""
    name = class_of(op)
    return 0.0 if name is None else _classes().get(name, {}).get("log", 0.0)


def kernels_of(op: Op) -> float:
    """How many kernels one run of an op launches on average, copies and fills included."""
    name = class_of(op)
    return float(ops.kernels(op)) if name is None else _classes().get(name, {}).get("kernels", 1.0)
