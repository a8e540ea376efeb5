"""The GPU memory of a process outside of its allocator: the CUDA context and libraries.

Their sizes were measured (data/contexts.toml). Kernels are loaded at their first use, so each
library that a step uses adds to the context.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from wavecast import ops
from wavecast.files import shipped_toml
from wavecast.hardware.devices import Device
from wavecast.ops import Kind
from wavecast.traces.step import Trace

LIBRARIES = {
    "cuBLAS": (Kind.MATMUL,),
    "cuDNN": (Kind.CONVOLUTION, Kind.RNN, Kind.ATTENTION),
}
"""The libraries, and the kinds of ops that load them."""


@dataclass(frozen=True)
class Context:
    """The measured sizes, and the GPU on which they were measured."""

    gpu: str
    source: str
    capability: tuple[int, int]
    bare_bytes: int
    """The context before any kernel ran."""
    libraries_bytes: dict[str, int]
    """The bytes that each of `LIBRARIES` adds at its first use."""


def context_bytes(trace: Trace, device: Device) -> int | None:
    """The bytes of context and libraries for this step; None for GPUs that do not run CUDA.

    All GPUs get the sizes of the measured GPU. That is too much for smaller ones, since a context
    grows with the number of SMs.
    """
    if device.compute_capability is None:
        return None
    context = measured()
    kinds = {ops.kind(op) for op in trace.counts}
    used = (name for name, users in LIBRARIES.items() if kinds & set(users))
    return context.bare_bytes + sum(context.libraries_bytes[name] for name in used)


@cache
def measured() -> Context:
    """The sizes in data/contexts.toml."""
    table = shipped_toml("contexts.toml")
    major, minor = table["capability"]
    return Context(
        gpu=table["gpu"],
        source=table["source"],
        capability=(major, minor),
        bare_bytes=table["bare_bytes"],
        libraries_bytes=dict(table["libraries_bytes"]),
    )
