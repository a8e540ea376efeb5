"""Buffers that libraries allocate at their first use and keep: their sizes, and when."""

from __future__ import annotations

from wavecast.footprint.workspaces import blas, recurrent
from wavecast.hardware.device import Device
from wavecast.traces.step import Trace


def first_uses(trace: Trace) -> tuple[int, ...]:
    """The position of the call that first needs each buffer, in the order of `kept_bytes`."""
    noise = recurrent.noise_position(trace)
    matmuls = (buffer.position for buffer in blas.buffers(trace))
    return (*matmuls, *(() if noise is None else (noise,)))


def kept_bytes(trace: Trace, device: Device) -> tuple[int, ...]:
    """The size of each buffer: cuBLAS's workspaces, then cuDNN's dropout state.

    The dropout state is left out where the GPU's size is unknown.
    """
    noise = recurrent.noise_bytes(device) if recurrent.noise_position(trace) is not None else 0
    return (*blas.kept_bytes(trace, device), *((noise,) if noise else ()))
