"""The memory of a step on a real GPU, as torch's allocator counts it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.pytorch.recorder import MemoryMode, OpRecorder, Recording, held_bytes
from wavecast.frameworks.pytorch.structure import Structure
from wavecast.traces.step import Measurement, Trace


@dataclass(frozen=True)
class MeasuredMemory:
    """What one process needed for a step."""

    peak_bytes: int
    """The most that was allocated at once (`torch.cuda.max_memory_allocated`)."""
    reserved_bytes: int
    """The most that the allocator held (`torch.cuda.max_memory_reserved`)."""
    device_bytes: int
    """What all processes together, contexts and libraries, took of the GPU in the end."""
    trace: Trace
    """The step op by op, with lifetimes of its memory and workspaces; without kernels."""


def measure_memory(make_step: Callable[[], Callable[[], Any]], warm_up: int = 2) -> MeasuredMemory:
    """Run a step on this machine's GPU and look at its memory.

    Args:
        make_step: builds model, optimizer and inputs, and returns the function of one step.
        warm_up: steps to run first; the first one creates the optimizer's state.
    """
    if not torch.cuda.is_available():
        raise CaptureError(
            "measuring memory needs a GPU, and torch sees none here; without --measure it is "
            "predicted"
        )
    if warm_up < 1:
        raise InvalidInput(f"warm_up is {warm_up!r}; the first step makes the optimizer's state")
    torch.cuda.reset_peak_memory_stats()
    step = make_step()
    for _ in range(warm_up + 1):
        step()
    torch.cuda.synchronize()
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    free, total = torch.cuda.mem_get_info()
    return MeasuredMemory(peak, reserved, total - free, traced_memory(step))


def traced_memory(step: Callable[[], Any]) -> Trace:
    """One iteration with what each op takes inside, and what libraries keep between ops."""
    seen = look_at_memory(step)
    major, minor = torch.cuda.get_device_capability()
    return Trace(
        calls=seen.calls,
        allocations=seen.allocations,
        framework=f"torch {torch.__version__.split('+')[0]}",
        capability=(major, minor),
        measurement=Measurement(torch.cuda.get_device_name()),
    )


def look_at_memory(step: Callable[[], Any]) -> Recording:
    """The ops of one iteration, lifetimes of their memory, and workspaces."""
    structure = Structure()
    recorder = OpRecorder(structure)
    with MemoryMode(recorder):
        with structure.watch():
            step()  # learns the modules' names
        with recorder.step():
            step()
    torch.cuda.synchronize()
    held = held_bytes()["current"]
    torch._C._cuda_clearCublasWorkspaces()
    recorder.keep(held - held_bytes()["current"])
    structure.forget()
    return recorder.recording()
