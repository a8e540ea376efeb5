"""The buffers that torch gives cuBLAS and cuBLASLt, and keeps (aten/cuda/CublasHandlePool.cpp).

Each thread has its own handle, and autograd runs the backward pass in a thread of its own; each
handle keeps a buffer for each stream that it has worked on.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavecast.hardware.device import Device
from wavecast.traces.step import Phase, Trace

_KIB = 1024
_LARGE = ((9, 0), (10, 0))
_LARGE_BYTES = 8 * 4096 * _KIB
_SMALL_BYTES = 2 * 4096 * _KIB + 8 * 16 * _KIB
_LT_BYTES = 1024 * _KIB
"""The defaults: CUBLAS_WORKSPACE_CONFIG and CUBLASLT_WORKSPACE_SIZE change them."""

_PRODUCTS = (
    *("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.mv", "aten.addmv", "aten.dot"),
    *("aten.linear", "aten._addmm_activation"),
)
_WITH_BIAS = ("aten.addmm", "aten._addmm_activation", "aten.linear", "aten._scaled_mm")


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that a library keeps, and the call that makes it take it."""

    light: bool
    """cuBLASLt's."""
    position: int


def buffers(trace: Trace) -> tuple[Buffer, ...]:
    """What all handles keep after the first step, in the order in which they take it."""
    found: dict[tuple[bool, bool, int], Buffer] = {}
    for position, call in enumerate(trace):
        thread = call.phase is Phase.BACKWARD
        for light, names in ((False, _PRODUCTS), (True, _WITH_BIAS)):
            if call.op.base in names:
                found.setdefault((light, thread, call.stream), Buffer(light, position))
    return tuple(found.values())


def kept_bytes(trace: Trace, device: Device) -> tuple[int, ...]:
    """The size of each buffer."""
    each = _LARGE_BYTES if device.compute_capability in _LARGE else _SMALL_BYTES
    return tuple(_LT_BYTES if buffer.light else each for buffer in buffers(trace))
