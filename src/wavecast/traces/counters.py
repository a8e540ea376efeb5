"""FLOPs and memory traffic that the hardware counted, added to the kernels of a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from wavecast.traces.step import Kernel, Trace

KernelKey = tuple[str, int, int]
"""A kernel's name, its number of blocks, and the threads of one block (Habitat, section 4.2)."""


@dataclass(frozen=True, slots=True)
class Counted:
    """The hardware's counts for one run of a kernel."""

    flops: float
    dram_bytes: float
    """The bytes that it read from and wrote to GPU memory."""


def key_of(kernel: Kernel) -> KernelKey | None:
    """The key of a kernel's counts; None for copies and fills, which have no launch."""
    if kernel.blocks is None or kernel.threads is None:
        return None
    return kernel.name, kernel.blocks, kernel.threads


def with_counters(trace: Trace, counted: Mapping[KernelKey, Counted]) -> Trace:
    """The trace with FLOPs and bytes on every kernel that `counted` has counts for."""

    def filled(kernel: Kernel) -> Kernel:
        key = key_of(kernel)
        counts = counted.get(key) if key else None
        if counts is None:
            return kernel
        return replace(kernel, flops=counts.flops, dram_bytes=counts.dram_bytes)

    calls = tuple(replace(call, kernels=tuple(map(filled, call.kernels))) for call in trace)
    return replace(trace, calls=calls)
