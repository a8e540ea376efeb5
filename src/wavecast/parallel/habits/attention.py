"""The attention kernels of a framework that brings its own."""

from __future__ import annotations

from dataclasses import replace

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.hardware.devices import device
from wavecast.parallel.strategy import Parallel
from wavecast.predictors.first_flash import FIRST
from wavecast.retargeting.attention_kernels import CUDNN
from wavecast.retargeting.rewriting import retarget, with_kernel
from wavecast.traces.editing import Edit
from wavecast.traces.step import Trace

_FLASH_GPU = "a100-sxm-80gb"
"""A GPU on which PyTorch chooses FlashAttention 2."""


def with_attention(trace: Trace, strategy: Parallel) -> Trace:
    """A step, before its layers are sharded, with the attention kernels of the framework.

    Raises:
        InvalidInput: kernels are asked for that the step's attention cannot run, or it has no fused
            attention.
    """
    if strategy.cudnn_attention:
        return _with_cudnn(trace)
    if not (strategy.flash_attention or strategy.first_flash_attention):
        return trace
    trace = retarget(trace, device(_FLASH_GPU)).trace
    return _with_first_kernels(trace) if strategy.first_flash_attention else trace


def _with_cudnn(trace: Trace) -> Trace:
    _fused(trace, "cudnn_attention")
    made, notes = with_kernel(trace, CUDNN)
    if notes:
        raise InvalidInput(f"cudnn_attention cannot be: {notes[0]}; leave it out")
    return made


def _fused(trace: Trace, option: str) -> list[int]:
    """Where fused attention runs."""
    fused = [p for p, call in enumerate(trace) if ops.kind(call.op) is ops.Kind.ATTENTION]
    if not fused:
        raise InvalidInput(
            f"{option} says which kernels compute fused attention, and the step has none; "
            "leave it out"
        )
    return fused


def _with_first_kernels(trace: Trace) -> Trace:
    edit = Edit(trace)
    for position in _fused(trace, "first_flash_attention"):
        call = trace.calls[position]
        op = replace(call.op, attrs=(*call.op.attrs, (FIRST, True)))
        edit.replace(position, replace(call, op=op))
    return edit.trace()
