"""The GPU memory of a step on a real GPU, as torch's allocator counts it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.pytorch.recording.recorded import Recording
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.recording_modes import MemoryMode, held_bytes
from wavecast.frameworks.pytorch.recording.structure import Structure
from wavecast.traces.step import Measurement, Trace


@dataclass(frozen=True)
class MeasuredMemory:
    """The GPU memory that a step needed."""

    peak_bytes: int
    """The most that was allocated at once (`torch.cuda.max_memory_allocated`)."""
    reserved_bytes: int
    """The most that the allocator held (`torch.cuda.max_memory_reserved`)."""
    device_bytes: int
    """The GPU memory in use after the step, by all processes with their contexts and libraries."""
    trace: Trace
    """The ops of the step, with the lifetimes of its memory and its workspaces; no kernels."""


def measure_memory(make_step: Callable[[], Callable[[], Any]], warm_up: int = 2) -> MeasuredMemory:
    """Run a step on this machine's GPU and measure its memory.

    Args:
        make_step: builds model, optimizer and inputs, and returns the function that runs one step.
        warm_up: how many steps to run first. The first one creates the optimizer's state.
    """
    if not torch.cuda.is_available():
        raise CaptureError(
            "measuring memory needs a GPU, and torch sees none here; leave out --measure to "
            "predict it"
        )
    if warm_up < 1:
        raise InvalidInput(
            f"warm_up is {warm_up!r}; it must be at least 1, because the first step creates the "
            "optimizer's state"
        )
    torch.cuda.reset_peak_memory_stats()
    step = make_step()
    for _ in range(warm_up + 1):
        step()
    torch.cuda.synchronize()
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    free, total = torch.cuda.mem_get_info()
    return MeasuredMemory(peak, reserved, total - free, traced_memory(step))


def traced_memory(step: Callable[[], Any]) -> Trace:
    """The trace of one iteration with its memory, but without kernels.

    The memory includes what libraries allocate inside ops, and what they keep between ops.
    """
    seen = record_memory(step)
    major, minor = torch.cuda.get_device_capability()
    return Trace(
        **vars(seen),
        framework=f"torch {torch.__version__.split('+')[0]}",
        capability=(major, minor),
        measurement=Measurement(torch.cuda.get_device_name()),
    )


def record_memory(step: Callable[[], Any]) -> Recording:
    """The ops of one iteration, the lifetimes of its tensors' memory, and its workspaces."""
    structure = Structure()
    recorder = OpRecorder(structure)
    with MemoryMode(recorder):
        with structure.watch():
            step()  # to learn the names of the modules
        with recorder.step():
            step()
    torch.cuda.synchronize()
    held = held_bytes()["current"]
    torch._C._cuda_clearCublasWorkspaces()
    recorder.keep(held - held_bytes()["current"])
    structure.forget()
    return recorder.recording()
