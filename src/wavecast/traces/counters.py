"""What the hardware counted of kernels: FLOPs and bytes of memory, put on the kernels of a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from wavecast.traces.step import Kernel, Trace

KernelKey = tuple[str, int, int]
"""Kernel name, blocks, threads of a block (Habitat, section 4.2)."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What the hardware counted in one run of a kernel."""

    flops: float
    dram_bytes: float


def key_of(kernel: Kernel) -> KernelKey | None:
    """What a count is remembered by; None for copies and fills, which have no launch."""
    if kernel.blocks is None or kernel.threads is None:
        return None
    return kernel.name, kernel.blocks, kernel.threads


def with_counters(trace: Trace, counted: Mapping[KernelKey, Counted]) -> Trace:
    """The trace with counts on the kernels that have one."""

    def filled(kernel: Kernel) -> Kernel:
        key = key_of(kernel)
        known = counted.get(key) if key else None
        if known is None:
            return kernel
        return replace(kernel, flops=known.flops, dram_bytes=known.dram_bytes)

    calls = tuple(replace(call, kernels=tuple(map(filled, call.kernels))) for call in trace)
    return replace(trace, calls=calls)
