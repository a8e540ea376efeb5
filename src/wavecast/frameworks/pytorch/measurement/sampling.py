"""Iterations of a step timed one by one on this machine's GPU, and one look at its parts."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from wavecast.frameworks.pytorch.measurement.iteration import measure, require_gpu
from wavecast.traces.step import Trace

MOST = 1000
"""Iterations to run at most."""
_BETWEEN_LOOKS = 10
"""Iterations after which the host waits: it must not run ahead for longer than the limit."""
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
    trace: Trace | None
    """One iteration taken apart, where that was asked for."""


def sample(
    make_step: Callable[[], Callable[[], Any]],
    enough: Callable[[Sequence[float]], bool],
    limit_s: float,
    *,
    look: bool = True,
    samples: int | None = None,
    unit: str = "samples",
) -> Sample:
    """Run a step from its first iteration on, then take one apart.

    Args:
        make_step: builds the step.
        enough: whether these iterations, by their seconds, may end the sample.
        limit_s: how long to run; longer until it is `enough`, but `MOST` iterations at most.
        look: whether to take an iteration apart.
        samples: how many samples (or other `unit`) one iteration consumes.
        unit: what `samples` counts.

    Raises:
        OutOfMemory: it does not fit.
    """
    require_gpu()
    try:
        return _sample(make_step, enough, limit_s, look, samples, unit)
    except torch.OutOfMemoryError:
        pass  # raised below, outside of the handler, whose traceback holds the tensors
    finally:
        gc.collect()  # here, where no frame holds the step any more: the next begins empty
        torch.cuda.empty_cache()
    raise OutOfMemory


def _sample(
    make_step: Callable[[], Callable[[], Any]],
    enough: Callable[[Sequence[float]], bool],
    limit_s: float,
    look: bool,
    samples: int | None,
    unit: str,
) -> Sample:
    torch.cuda.reset_peak_memory_stats()
    step = make_step()
    seconds = _iterations(step, enough, limit_s)
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    trace = None
    if look:
        trace = measure(step, warm_up=0, repeats=_REPEATS, recordings=1, samples=samples, unit=unit)
    return Sample(seconds, peak, reserved, trace)


def _iterations(
    step: Callable[[], Any], enough: Callable[[Sequence[float]], bool], limit_s: float
) -> tuple[float, ...]:
    """The seconds of each iteration, from the first."""
    events = [_now()]
    until = time.perf_counter() + limit_s
    while True:
        for _ in range(_BETWEEN_LOOKS):
            step()
            events.append(_now())
        torch.cuda.synchronize()
        late = time.perf_counter() > until
        if late or len(events) > MOST:
            seconds = tuple(a.elapsed_time(b) * 1e-3 for a, b in pairwise(events))
            if enough(seconds) or len(events) > MOST:
                return seconds


def _now() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
