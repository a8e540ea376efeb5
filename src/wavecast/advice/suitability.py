"""Which changes make sense for a step on a GPU: what its trace and the GPU say beforehand."""

from __future__ import annotations

from collections.abc import Callable

from wavecast.advice.trace_changes import is_copy_to_gpu, is_read, odd_sizes, odd_widths
from wavecast.hardware.device import Device
from wavecast.hardware.families import family
from wavecast.traces.step import Op, Phase, Trace

_MATMULS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.convolution")
_LEAST_CLASSES = 8192
_FIRST_BF16 = (8, 0)


def why_not(name: str, trace: Trace, gpu: Device) -> str:
    """Why a change is not worth trying; empty if it is."""
    check = _CHECKS.get(name)
    return "" if check is None else check(trace, gpu)


def _has(trace: Trace, test: Callable[[Op], bool]) -> bool:
    return any(map(test, trace.counts))


def _is_wide(op: Op) -> bool:
    return op.base in _MATMULS and bool(op.inputs) and op.inputs[0].dtype == "float32"


def _bf16(trace: Trace, gpu: Device) -> str:
    if lacks_bf16(gpu):
        return f"{gpu.id} has no bfloat16 matmuls"
    return "" if _has(trace, _is_wide) else "its matmuls are not float32"


def _fp16(trace: Trace, gpu: Device) -> str:
    if not lacks_bf16(gpu):
        return "bfloat16 is as fast here, and needs no scaling"
    return "" if _has(trace, _is_wide) else "its matmuls are not float32"


def lacks_bf16(gpu: Device) -> bool:
    """Whether a GPU has no matmuls in bfloat16."""
    capability = family(gpu)
    return capability is not None and capability < _FIRST_BF16


def _tf32(trace: Trace, gpu: Device) -> str:
    if lacks_bf16(gpu):
        return f"{gpu.id} has no TF32"
    wide = _has(trace, lambda op: _is_wide(op) and op.attr("precision") != "tf32")
    return "" if wide else "no matmul is computed in float32"


def _channels_last(trace: Trace, _: Device) -> str:
    def is_plain(op: Op) -> bool:
        images = op.inputs[0] if op.inputs else None
        return (
            op.base == "aten.convolution"
            and images is not None
            and len(images.shape) == 4
            and not images.channels_last
        )

    return "" if _has(trace, is_plain) else "there is no convolution of images in the other format"


def _uncompiled(trace: Trace, _: Device) -> str:
    return "it is compiled already" if any(call.graph is not None for call in trace) else ""


def _sdpa(trace: Trace, _: Device) -> str:
    has = _has(trace, lambda op: op.base in ("aten._softmax", "aten.softmax"))
    return "" if has else "no attention is written by hand"


def _updates(trace: Trace) -> set[str]:
    return {call.op.base for call in trace if call.phase is Phase.OPTIMIZER}


def _fused(trace: Trace, _: Device) -> str:
    updates = _updates(trace)
    if not updates:
        return "no optimizer was seen"
    return "it is fused already" if any("_fused" in name for name in updates) else ""


def _foreach(trace: Trace, gpu: Device) -> str:
    updates = _updates(trace)
    if any("_foreach" in name for name in updates):
        return "it is one already"
    return _fused(trace, gpu)


def _set_to_none(trace: Trace, _: Device) -> str:
    zeroes = {"aten.zero_", "aten._foreach_zero_", "aten.fill_"}
    return "" if zeroes & _updates(trace) else "gradients are freed already"


def _chunked(trace: Trace, _: Device) -> str:
    def is_loss(op: Op) -> bool:
        return op.base == "aten._log_softmax" and op.inputs[0].shape[-1] >= _LEAST_CLASSES

    return "" if _has(trace, is_loss) else "there is no loss over a vocabulary"


def _padding(trace: Trace, _: Device) -> str:
    if odd_sizes(trace):
        return ""
    odd = " and ".join(map(str, odd_widths(trace)[-2:]))
    return f"{odd} cost nothing without tensor cores" if odd else "all widths are aligned"


def _waits(trace: Trace, _: Device) -> str:
    return "" if any(map(is_read, trace)) else "the host reads nothing from the GPU"


def _copies(trace: Trace, _: Device) -> str:
    return "" if any(map(is_copy_to_gpu, trace)) else "no copy makes the host wait"


_CHECKS: dict[str, Callable[[Trace, Device], str]] = {
    "bf16": _bf16,
    "fp16": _fp16,
    "tf32": _tf32,
    "channels_last": _channels_last,
    "compile": _uncompiled,
    "compile_graphs": _uncompiled,
    "sdpa": _sdpa,
    "fused_optimizer": _fused,
    "foreach_optimizer": _foreach,
    "set_to_none": _set_to_none,
    "chunked_loss": _chunked,
    "padding": _padding,
    "fewer_waits": _waits,
    "async_copies": _copies,
    "jax_bf16": _bf16,
}
