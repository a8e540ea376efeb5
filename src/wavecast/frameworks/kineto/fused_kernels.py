"""Triton kernels of torch.compile in a profile, as ops.

The profiler records the arguments of a kernel: its tensors, then its number of points and the
length of its sums. It records neither which tensors are written nor what is computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from wavecast.frameworks.kineto.arguments import NUMBER, Argument, arguments_in
from wavecast.ops.fused import FUSED
from wavecast.traces.kernel_names import is_triton
from wavecast.traces.step import Op, TensorSpec

_POINTWISE, _LOOPED, _PERSISTENT, _LISTS = FUSED
_KINDS = {"poi": _POINTWISE, "red": _LOOPED, "per": _PERSISTENT, "for": _LISTS}
"""The third to sixth letters of a kernel's name after "triton_"."""


def fused_op(name: str, recorded: Mapping[str, Any]) -> Op:
    """The op of a Triton kernel.

    Args:
        name: the name of the kernel, as "triton_poi_fused_add_gelu_3".
        recorded: the `args` of the event that launched it.

    Without shapes, or for a kernel that is not Inductor's, the op has only a name.
    """
    unknown = Op(f"triton.{name}", (), ())
    kind = _KINDS.get(name.removeprefix("triton_").partition("_")[0])
    arguments = arguments_in(recorded)
    if not is_triton(name) or kind is None or not arguments:
        return unknown
    tensors = [tensor for argument in arguments for tensor in argument.tensors or ()]
    tensors = [tensor for tensor in tensors if tensor.shape]
    if not tensors:
        return unknown
    points, reduction = _extent(kind, [_whole(argument) for argument in arguments], tensors)
    *read, written = tensors
    attrs = (
        ("points", points),
        ("reduction", reduction),
        ("read_bytes", sum(tensor.touched_bytes for tensor in read)),
        ("write_bytes", written.touched_bytes),
        ("loads", float(len(read))),
        ("kernel", name),
    )
    return Op(kind, tuple(read), (written,), attrs)


def _whole(argument: Argument) -> int | None:
    """The value of an argument that is a whole number."""
    if argument.tensors and argument.type != NUMBER:
        return None
    text = argument.value or ""
    return int(text) if text.isdecimal() and len(text) < 16 else None


def _extent(kind: str, values: list[int | None], tensors: list[TensorSpec]) -> tuple[int, int]:
    """The points of a kernel and the terms of each sum."""
    sizes = [value for value in values if value]
    largest = max(tensor.numel for tensor in tensors)
    if kind == _LISTS or not sizes:
        return sum(t.numel for t in tensors) // max(len(tensors), 1) or largest, 1
    if kind == _POINTWISE:
        return math.prod(sizes[-2:]) if math.prod(sizes[-2:]) <= 2 * largest else sizes[-1], 1
    return math.prod(sizes[:-1][-1:]), sizes[-1]
