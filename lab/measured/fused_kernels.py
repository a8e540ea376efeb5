"""Traces as if some modules ran as one kernel each, as frameworks for large models have them.

Megatron, nanotron and compiled models rotate queries and keys, and multiply a gate, in one kernel
that reads its inputs and writes its result once. Eager PyTorch needs several.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from wavecast import ops
from wavecast.traces.step import Call, Op, TensorSpec, Trace

FUSED = ("query_rotary", "key_rotary", "activation")
"""The modules of `wavecast.suite.decoders` that are one kernel there."""


def fused(trace: Trace) -> Trace:
    """The trace with one call in place of the kernels of each of these modules.

    Only memory that is kept from step to step stays, since positions change.
    """
    calls: list[Call] = []
    for (module, _), group in groupby(trace, key=lambda call: (call.module, call.phase)):
        run = list(group)
        if module.rpartition(".")[2] in FUSED:
            calls.extend(_joined(run))
        else:
            calls.extend(run)
    kept = tuple(a for a in trace.allocations if a.born is None and a.freed is None)
    return replace(trace, calls=tuple(calls), allocations=kept)


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
            if len(tensor.shape) > 2:  # tables of angles are small and stay in the cache
                read.append(tensor)
        made.extend(call.op.outputs)
    last = launching[-1]
    inputs = tuple(read) or last.op.inputs[:1]
    yield replace(last, op=Op("aten.mul.Tensor", inputs[:2], last.op.outputs[:1]))


def _elements(tensor: TensorSpec) -> int:
    return tensor.numel
