"""Buffers that libraries allocate at their first use and keep: their sizes, and when.

torch allocates those of cuBLAS and cuBLASLt (aten/cuda/CublasHandlePool.cpp). Each thread has a
cuBLAS handle, and autograd runs the backward pass in a second thread. Each handle keeps one buffer
for each stream that it has used.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavecast.footprint.workspaces import recurrent
from wavecast.hardware.device import Device
from wavecast.traces.step import Phase, Trace

_KIB = 1024
_LARGE_CAPABILITIES = ((9, 0), (10, 0))
_LARGE_BYTES = 8 * 4096 * _KIB
_SMALL_BYTES = 2 * 4096 * _KIB + 8 * 16 * _KIB
_LT_BYTES = 1024 * _KIB
"""torch's defaults, which CUBLAS_WORKSPACE_CONFIG and CUBLASLT_WORKSPACE_SIZE change."""

_MATMULS = (
    *("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.mv", "aten.addmv", "aten.dot"),
    *("aten.linear", "aten._addmm_activation"),
)
_WITH_BIAS = ("aten.addmm", "aten._addmm_activation", "aten.linear", "aten._scaled_mm")


def first_uses(trace: Trace) -> tuple[int, ...]:
    """The position of the call that first needs each buffer, in the order of `kept_bytes`."""
    noise = recurrent.noise_position(trace)
    matmuls = (buffer.position for buffer in blas_buffers(trace))
    return (*matmuls, *(() if noise is None else (noise,)))


def kept_bytes(trace: Trace, device: Device) -> tuple[int, ...]:
    """The size of each buffer: cuBLAS's workspaces, then cuDNN's dropout state.

    The dropout state is left out where the GPU's size is unknown.
    """
    noise = recurrent.noise_bytes(device) if recurrent.noise_position(trace) is not None else 0
    return (*blas_bytes(trace, device), *((noise,) if noise else ()))


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer of a cuBLAS handle."""

    light: bool
    """True for cuBLASLt, False for cuBLAS."""
    position: int
    """The position of the call that allocates it."""


def blas_buffers(trace: Trace) -> tuple[Buffer, ...]:
    """The buffers that all handles hold after the first step, in the order of allocation."""
    by_handle: dict[tuple[bool, bool, int], Buffer] = {}
    for position, call in enumerate(trace):
        backward = call.phase is Phase.BACKWARD
        for light, names in ((False, _MATMULS), (True, _WITH_BIAS)):
            if call.op.base in names:
                by_handle.setdefault((light, backward, call.stream), Buffer(light, position))
    return tuple(by_handle.values())


def blas_bytes(trace: Trace, device: Device) -> tuple[int, ...]:
    """The size of each of `blas_buffers`, in bytes."""
    large = device.compute_capability in _LARGE_CAPABILITIES
    nbytes = _LARGE_BYTES if large else _SMALL_BYTES
    return tuple(_LT_BYTES if buffer.light else nbytes for buffer in blas_buffers(trace))
