"""What a process takes of a GPU beside its allocator: CUDA's context and the libraries it loads.

Facts with a source, measured (data/contexts.toml). Kernels are loaded when they are first used, so
that each library adds its part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from wavecast import ops
from wavecast.files import shipped_toml
from wavecast.hardware.device import Device
from wavecast.ops import Kind
from wavecast.traces.step import Trace

LIBRARIES = {
    "cuBLAS": (Kind.MATMUL,),
    "cuDNN": (Kind.CONVOLUTION, Kind.RNN, Kind.ATTENTION),
}
"""Whose ops make a process load them."""


@dataclass(frozen=True)
class Context:
    """What was measured, and where."""

    gpu: str
    source: str
    capability: tuple[int, int]
    bare_bytes: int
    """Before anything ran."""
    libraries_bytes: dict[str, int]
    """What each of `LIBRARIES` adds when it is first used."""


def context_bytes(trace: Trace, device: Device) -> int | None:
    """What a process of this step takes beside its tensors; None where CUDA does not run.

    On other GPUs than the measured one it is what that one takes, which is more than smaller GPUs
    do: a context grows with the number of SMs.
    """
    if device.compute_capability is None:
        return None
    known = measured()
    kinds = {ops.kind(op) for op in trace.counts}
    used = (name for name, its in LIBRARIES.items() if kinds & set(its))
    return known.bare_bytes + sum(known.libraries_bytes[name] for name in used)


@cache
def measured() -> Context:
    """The facts of data/contexts.toml."""
    table = shipped_toml("contexts.toml")
    major, minor = table["capability"]
    return Context(
        gpu=table["gpu"],
        source=table["source"],
        capability=(major, minor),
        bare_bytes=table["bare_bytes"],
        libraries_bytes=dict(table["libraries_bytes"]),
    )
