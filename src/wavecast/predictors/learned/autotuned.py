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
_LONG = 32768
"""Rows of this length and more are long: a Triton matmul spends all its time on odd loads there."""


def class_of(op: Op) -> str | None:
    """The class of a library call that XLA tuned: "matmul/float32"; None for other ops."""
    if not op.attr(MARK, False) or not op.inputs:
        return None
    dtype = op.inputs[-1].dtype
    match ops.kind(op):
        case Kind.MATMUL if op.base == matmul.XLA_UNALIGNED:
            length = max(max(t.shape) for t in op.inputs)
            return f"{'long ' if length >= _LONG else ''}unaligned/{dtype}"
        case Kind.MATMUL:
            return f"matmul/{dtype}"
        case Kind.CONVOLUTION:
            wants = integers(op, "output_mask")
            gradient = "" if not wants else ("_weight" if wants[1] else "_image")
            name = "depthwise" if ops.is_depthwise(op) else "convolution"
            return f"{name}{gradient}/{dtype}"
        case Kind.ATTENTION:
            return "attention_backward" if "backward" in op.base else "attention"
    return None


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
