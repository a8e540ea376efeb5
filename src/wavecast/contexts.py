"""What a process takes of a GPU beside its allocator: CUDA's context and the libraries it loads.

Facts with a source, measured (data/contexts.toml). Kernels are loaded when they are first used, so
that each library adds its part.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from wavecast import ops
from wavecast.devices import Device
from wavecast.trace import Trace


@dataclass(frozen=True)
class Context:
    """What was measured, and where."""

    gpu: str
    source: str
    capability: tuple[int, int]
    bare_bytes: int
    """Before anything ran."""
    parts_bytes: dict[str, int]
    """What ops of a kind add when the first of them runs."""


def context_bytes(trace: Trace, device: Device) -> int | None:
    """What a process of this step takes beside its tensors; None where CUDA does not run.

    On other GPUs than the measured one it is what that one takes, which is more than smaller GPUs
    do: a context grows with the number of SMs.
    """
    if device.compute_capability is None:
        return None
    known = measured()
    kinds = {str(ops.kind(op)) for op in trace.counts}
    parts = known.parts_bytes.items()
    return known.bare_bytes + sum(nbytes for kind, nbytes in parts if kind in kinds)


@cache
def measured() -> Context:
    """The facts of data/contexts.toml."""
    text = resources.files("wavecast").joinpath("data/contexts.toml").read_text("utf-8")
    table = tomllib.loads(text)
    major, minor = table["capability"]
    return Context(
        gpu=table["gpu"],
        source=table["source"],
        capability=(major, minor),
        bare_bytes=table["bare_bytes"],
        parts_bytes=dict(table["parts_bytes"]),
    )
