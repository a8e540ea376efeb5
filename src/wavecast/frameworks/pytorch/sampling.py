"""Iterations of a step timed one by one on this machine's GPU, and one look at its parts."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from wavecast.frameworks.pytorch.measurement import measure, require_gpu
from wavecast.trace import Trace

MOST = 1000
"""Iterations, as TBD samples them (section III-D2)."""
FEWEST = 20
"""Iterations of a step that is slow for the time there is."""
_REPEATS = 5


class OutOfMemory(Exception):
    """The step does not fit into the GPU's memory."""


@dataclass(frozen=True)
class Sample:
    """What was seen of a step."""

    seconds: tuple[float, ...]
    """Of each iteration, from the first."""
    peak_bytes: int
    reserved_bytes: int
    trace: Trace


def sample(
    make_step: Callable[[], Callable[[], Any]], samples: int, unit: str, limit_s: float
) -> Sample:
    """Run a step from its first iteration on, then take one apart.

    Args:
        make_step: builds the step.
        samples: how many samples (or other `unit`) one iteration consumes.
        unit: what `samples` counts.
        limit_s: how long to run; at least `FEWEST` iterations, at most `MOST`.

    Raises:
        OutOfMemory: it does not fit.
    """
    require_gpu()
    try:
        return _sample(make_step, samples, unit, limit_s)
    except torch.OutOfMemoryError:
        pass  # raised below, outside of the handler, whose traceback holds the tensors
    finally:
        gc.collect()
        torch.cuda.empty_cache()
    raise OutOfMemory


def _sample(
    make_step: Callable[[], Callable[[], Any]], samples: int, unit: str, limit_s: float
) -> Sample:
    torch.cuda.reset_peak_memory_stats()
    step = make_step()
    events = [_now()]
    until = time.perf_counter() + limit_s
    while len(events) <= FEWEST or (len(events) <= MOST and time.perf_counter() < until):
        step()
        events.append(_now())
        if len(events) % 10 == 0:  # the host must not run ahead for longer than the limit
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    seconds = tuple(a.elapsed_time(b) * 1e-3 for a, b in pairwise(events))
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    trace = measure(step, warm_up=0, repeats=_REPEATS, recordings=1, samples=samples, unit=unit)
    return Sample(seconds, peak, reserved, trace)


def _now() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
