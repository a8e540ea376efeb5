"""Ops that a formula cannot read: tensors are missing, of another rank, or larger than any memory.

Formulas are written for ops as a framework records them. A hand-made trace, or a file, may hold an
op of the same name with anything else. Every formula is applied to the ops of a trace through
`reading`, and treats an op that cannot be read like one without a formula: it is unpredicted, by
name. The formulas themselves raise, so that their tests see every mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Concatenate, ParamSpec, TypeVar

from wavecast.traces.step import DTYPE_BYTES, Op, TensorSpec

T = TypeVar("T")
D = TypeVar("D")
P = ParamSpec("P")

ERRORS: tuple[type[Exception], ...] = (
    IndexError,
    KeyError,
    OverflowError,
    TypeError,
    ValueError,
    ZeroDivisionError,
)
"""What a formula raises for an op whose tensors or attributes are not those it is written for."""

MOST_BYTES = (1 << 63) - 1
"""The largest tensor that a framework can count."""
MOST_WORK = 1 << 100
"""The most FLOPs or bytes of one op. Above, tensors and attributes contradict each other."""


def reading(
    formula: Callable[Concatenate[Op, P], T],
    default: D,
    op: Op,
    *more: P.args,
    **named: P.kwargs,
) -> T | D:
    """What a formula says about an op; the default if it cannot read the op."""
    try:
        return formula(op, *more, **named)
    except ERRORS:
        return default


@lru_cache(maxsize=1 << 16)
def has_possible_tensors(op: Op) -> bool:
    """Whether every tensor of an op could exist: its sizes, its data type and its strides."""
    return all(map(_is_possible, (*op.inputs, *op.outputs)))


def _is_possible(tensor: TensorSpec) -> bool:
    item_bytes = DTYPE_BYTES.get(tensor.dtype)
    if item_bytes is None or not all(isinstance(n, int) and n >= 0 for n in tensor.shape):
        return False
    strides = tensor.strides
    if strides is not None and len(strides) != len(tensor.shape):
        return False
    return tensor.numel * item_bytes <= MOST_BYTES


def is_possible_work(amount: float) -> bool:
    """Whether a number of FLOPs, bytes or kernels could be that of one op."""
    return 0 <= amount <= MOST_WORK
