"""Traces as if some modules ran as one kernel each, as frameworks for large models have them.

Megatron, nanotron and compiled models rotate queries and keys, and multiply a gate, in one kernel
that reads its inputs and writes its result once. Eager PyTorch needs several.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from wavecast import ops
from wavecast.parallel.editing import Edit
from wavecast.traces.recomputed import recomputed
from wavecast.traces.step import Call, Op, Phase, TensorSpec, Trace

ROTARY = ("query_rotary", "key_rotary")
"""The modules of `wavecast.suite.decoders` that rotate."""


def fused(trace: Trace, names: tuple[str, ...]) -> Trace:
    """The trace with one call in place of the kernels of each module with one of these names.

    Only memory that is kept from step to step stays, since positions change.
    """
    calls: list[Call] = []
    for (module, _), group in groupby(trace, key=lambda call: (call.module, call.phase)):
        run = list(group)
        if module.rpartition(".")[2] in names:
            calls.extend(_joined(run))
        else:
            calls.extend(run)
    kept = tuple(a for a in trace.allocations if a.born is None and a.freed is None)
    return replace(trace, calls=tuple(calls), allocations=kept)


def sequence_first(trace: Trace) -> Trace:
    """The trace without the copies that attention makes because the batch comes first.

    In Megatron's layout the position comes first, and the products of unfused attention read views.
    The last copy of each forward pass joins the heads, and is made in both layouts.
    """
    again = recomputed(trace.calls)
    edit = Edit(trace)
    copies: list[int] = []
    for position, call in enumerate(trace):
        if not call.module.endswith(".attention"):
            copies = []
            continue
        forward = call.phase is Phase.FORWARD or position in again
        if call.op.base == "aten.clone" and forward:
            copies.append(position)
        elif call.op.base == "aten.bmm" and forward:
            for copy in copies:
                op = trace.calls[copy].op
                edit.replace_op(copy, Op("aten.view", op.inputs, op.outputs))
            copies = []
    return edit.made()


def _joined(run: list[Call]) -> Iterator[Call]:
    """One call that reads what the run reads from outside, and writes what it leaves behind."""
    launching = [call for call in run if ops.launches(call.op)]
    if len(launching) < 2:
        yield from run
        return
    made: list[TensorSpec] = []
    read: list[TensorSpec] = []
    for call in launching:
        for tensor in call.op.inputs:
            if _elements(tensor) in map(_elements, made):
                continue
            # Tables of angles are small and stay in the cache.
            if len(tensor.shape) > 2 or tensor.numel >= launching[-1].op.outputs[0].numel:
                read.append(tensor)
        made.extend(call.op.outputs)
    last = launching[-1]
    inputs = tuple(read) or last.op.inputs[:1]
    yield replace(last, op=Op("aten.mul.Tensor", inputs[:2], last.op.outputs[:1]))


def _elements(tensor: TensorSpec) -> int:
    return tensor.numel
