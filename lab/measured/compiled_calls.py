"""What ran in a compiled step, and what a trace says would run. Calls of the same key are the same.

A fused kernel is known by what its node computes: its kind, its points, the length of its sums, and
the bytes that it reads and writes. A library call is known by its op and the sizes of its product,
or the shapes of its tensors.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from lab.measured.compiled import Row, op_of
from wavecast import ops
from wavecast.ops.fused import FUSED, HOST_CALLS
from wavecast.traces.step import Op, Trace

Key = tuple[Hashable, ...]
Shapes = list[tuple[int, ...]]

MAIN = {
    "aten.cross_entropy_loss": "aten._log_softmax",
    "aten.layer_norm": "aten.native_layer_norm",
    "aten.dropout": "aten.native_dropout",
    "aten.embedding_bag": "aten._embedding_bag",
    "aten.to": "aten._to_copy",
}
"""The profiler names the outermost op; a trace has the ops within it. This is the one of these that
does most of the work."""
PARTS = ("aten.nll_loss_forward", "aten.nll_loss2d_forward")
"""Ops of a trace whose time the profiler adds to that of the op in front of them."""
LISTS = ("aten._foreach", "aten._fused_", "aten._amp_foreach")
"""Ops on lists of tensors, whose shapes the profiler does not say."""
PRODUCTS = {"aten.mm": 0, "aten.bmm": 0, "aten.addmm": 1, "aten.baddbmm": 1}
"""Products, and the position of their first matrix."""
RECURRENT = "aten._cudnn_rnn"


@dataclass
class Calls:
    """Equal calls of one step."""

    count: int = 0
    seconds: float = 0.0
    """The time of all of them together; 0 for those of a trace."""
    ops: list[Op] = field(default_factory=list)
    """What they are, one by one: they may differ in layout. Empty for measured library calls."""


def ran(row: Row, how: str = "compiled") -> tuple[dict[Key, Calls], float]:
    """The calls of a measured step by key, and the seconds of kernels whose op is not known.

    The profiler has no op for library calls that a CUDA graph launches.
    """
    calls: dict[Key, Calls] = defaultdict(Calls)
    unknown_s = 0.0
    kernels = sorted(row[how]["kernels"], key=lambda kernel: kernel["at_us"])
    for key, group in groupby(kernels, key=lambda kernel: _key(kernel, row)):
        run = list(group)
        seconds = sum(kernel["us"] for kernel in run) * 1e-6
        if key is None:
            unknown_s += seconds
            continue
        calls[key].seconds += seconds
        calls[key].count += _times(key, run)
    return dict(calls), unknown_s


def traced(step: Trace) -> dict[Key, Calls]:
    """The calls of a trace by key."""
    calls: dict[Key, Calls] = defaultdict(Calls)
    for call in step:
        op = call.op
        if op.name in HOST_CALLS or not ops.launches(op) or op.base in PARTS:
            continue
        same = calls[key_of(op)]
        same.count += 1
        same.ops.append(op)
    return dict(calls)


def key_of(op: Op) -> Key:
    """The key of an op of a trace."""
    if op.name in FUSED:
        return fused_key(op)
    return library_key(op.base, [tuple(t.shape) for t in op.inputs])


def fused_key(op: Op) -> Key:
    """The kind of a fused kernel, its points, the length of its sums, and its bytes."""
    figures = ("points", "reduction", "read_bytes", "write_bytes")
    return ("fused", op.name, *(op.attr(name) for name in figures))


def library_key(name: str, shapes: Shapes) -> Key:
    """The name of a library call, and the sizes of its product or the shapes of its tensors."""
    if name == "aten.linear" and len(shapes) > 1:
        rows = math.prod(shapes[0][:-1])
        name = "aten.addmm" if len(shapes) > 2 and shapes[2] else "aten.mm"
        return (name, 1, rows, shapes[1][0], shapes[1][1])
    if name in PRODUCTS and len(shapes) > PRODUCTS[name] + 1:
        a, b = shapes[PRODUCTS[name] :][:2]
        return (name, math.prod(a[:-2]), a[-2], b[-1], a[-1])
    if name.startswith((*LISTS, RECURRENT)):
        return (name,)
    if name == "aten.lstm":
        return (RECURRENT,)
    # An op within the outermost one has fewer tensors.
    most = 1 if name in MAIN or MAIN.get(name, name) in MAIN.values() else 3
    return (MAIN.get(name, name), *[shape for shape in shapes if shape][:most])


def _key(kernel: Row, row: Row) -> Key | None:
    op = _fused(kernel, row)
    if op is not None:
        return fused_key(op)
    if not kernel["op"]:
        return None
    return library_key(kernel["op"][0].replace("::", "."), _shapes(kernel["op"][1]))


def _fused(kernel: Row, row: Row) -> Op | None:
    op = op_of(row["ops"].get(kernel["name"], "none"))
    return op if op is not None and op.name in FUSED else None


def _times(key: Key, run: list[Row]) -> int:
    """How many calls launched these kernels, which ran one after the other.

    Of library calls, only products follow equal ones directly. A product runs the kernel that takes
    most of its time once.
    """
    if key[0] == "fused":
        return len(run)
    if key[0] not in PRODUCTS:
        return 1
    time_us: Counter[str] = Counter()
    for kernel in run:
        time_us[kernel["name"]] += kernel["us"]
    (longest, _), *_ = time_us.most_common(1)
    return sum(kernel["name"] == longest for kernel in run)


def _shapes(given: Iterable[Any]) -> Shapes:
    """Shapes as the profiler writes them; it writes a list of tensors as a list of shapes."""
    return [tuple(shape) for shape in given if all(isinstance(side, int) for side in shape)]
