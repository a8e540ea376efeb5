"""The attention kernels of a framework that brings its own."""

from __future__ import annotations

from dataclasses import replace

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.hardware.devices import device
from wavecast.parallel.strategy import Parallel
from wavecast.predictors.first_flash import FIRST
from wavecast.retargeting.rewriting import retarget
from wavecast.traces.editing import Edit
from wavecast.traces.step import Trace

_FLASH_GPU = "a100-sxm-80gb"
"""A GPU on which PyTorch chooses FlashAttention 2."""


def with_attention(trace: Trace, strategy: Parallel) -> Trace:
    """A step, before its layers are sharded, with the attention kernels of the framework.

    Raises:
        InvalidInput: the first kernels of FlashAttention are asked for, and the step has no fused
            attention.
    """
    if not (strategy.flash_attention or strategy.first_flash_attention):
        return trace
    trace = retarget(trace, device(_FLASH_GPU)).trace
    return _with_first_kernels(trace) if strategy.first_flash_attention else trace


def _with_first_kernels(trace: Trace) -> Trace:
    fused = [p for p, call in enumerate(trace) if ops.kind(call.op) is ops.Kind.ATTENTION]
    if not fused:
        raise InvalidInput(
            "first_flash_attention says which kernels compute fused attention, and the step has "
            "none; leave it out"
        )
    edit = Edit(trace)
    for position in fused:
        call = trace.calls[position]
        op = replace(call.op, attrs=(*call.op.attrs, (FIRST, True)))
        edit.replace(position, replace(call, op=op))
    return edit.trace()
