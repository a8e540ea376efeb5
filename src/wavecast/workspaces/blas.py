"""The buffers that torch gives cuBLAS and cuBLASLt, and keeps (aten/cuda/CublasHandlePool.cpp).

Each thread has its own handle, and autograd runs the backward pass in a thread of its own; each
handle keeps a buffer for each stream that it has worked on.
"""

from __future__ import annotations

from wavecast.devices import Device
from wavecast.trace import Phase, Trace

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


def kept_bytes(trace: Trace, device: Device) -> int:
    """What all handles keep after the first step."""
    each = _LARGE_BYTES if device.compute_capability in _LARGE else _SMALL_BYTES
    handles, light = set(), set()
    for call in trace:
        place = call.phase is Phase.BACKWARD, call.stream
        if call.op.base in _PRODUCTS:
            handles.add(place)
        if call.op.base in _WITH_BIAS:
            light.add(place)
    return len(handles) * each + len(light) * _LT_BYTES
