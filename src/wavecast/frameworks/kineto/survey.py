"""The steps of a profiler file and the GPU's time in each, from a first pass over the file.

Only numbers of each event are kept, so a file of gigabytes needs only megabytes of memory.
"""

from __future__ import annotations

import itertools
import math
import re
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavecast.errors import InvalidInput
from wavecast.frameworks.kineto.events import (
    GPU_CATEGORIES,
    LONGEST_US,
    RUNTIME_CATEGORIES,
    Event,
    arguments_of,
    category_of,
    has_possible_time,
    name_of,
    number,
    read_events,
)

_STEP = re.compile(r"ProfilerStep#([0-9]{1,18})")

_MOST_NAMED = 20
"""How many numbers of steps a message lists."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ProfiledStep:
    """One iteration on the host. `number` is None if the file marks no iterations."""

    number: int | None
    begin_us: float
    end_us: float


@dataclass(frozen=True)
class Survey:
    """The steps and GPU events of a file. The arrays have one row per GPU event, in file order."""

    path: Path
    fields: Mapping[str, Any]
    steps: tuple[ProfiledStep, ...]
    """The steps that launched GPU work, in order of time."""
    step_of: NDArray[np.int64]
    """The position in `steps` of the step that launched the event; -1 if none did."""
    begin_us: Floats
    end_us: Floats
    is_kernel: NDArray[np.int8]
    """Whether the event is a kernel, not a copy or a fill."""
    device: NDArray[np.int64]
    left_out: int = 0
    """The number of GPU events with impossible times, which belong to no step."""

    @cached_property
    def _rows_by_step(self) -> list[NDArray[np.int64]]:
        # Sorted once: a search for each step would take time with the square of their number.
        order = np.argsort(self.step_of, kind="stable")
        ends = np.searchsorted(self.step_of[order], np.arange(len(self.steps) + 1))
        return [order[begin:end] for begin, end in pairwise(ends)]

    def rows(self, position: int) -> NDArray[np.int64]:
        """The rows of the GPU events of a step, in file order."""
        return self._rows_by_step[position]

    def busy_s(self, position: int) -> float:
        """The time that the GPU worked on a step."""
        rows = self.rows(position)
        return union_us(self.begin_us[rows], self.end_us[rows]) / 1e6

    def kernels(self, position: int) -> int:
        """The number of kernels of a step, without copies and fills."""
        return int(self.is_kernel[self.rows(position)].sum())

    def last_end_us(self, position: int) -> float:
        """When the GPU finished a step."""
        return float(self.end_us[self.rows(position)].max())

    def periods_s(self) -> dict[int, float]:
        """The time of each step by position: from the GPU's end of the previous step to this one's.

        The host may run ahead of the GPU. Until the GPU's queue is full, steps on the host are
        too short, so the ends of the GPU's work are used.
        """
        numbers = [step.number or 0 for step in self.steps]
        ends = [self.last_end_us(position) for position in range(len(self.steps))]
        return {
            i: max(ends[i] - ends[i - 1], 0.0) / 1e6
            for i in range(1, len(ends))
            if numbers[i] == numbers[i - 1] + 1
        }


def union_us(begin_us: Floats, end_us: Floats) -> float:
    """The total time that intervals cover; where they overlap, it counts once."""
    if not len(begin_us):
        return 0.0
    order = np.argsort(begin_us, kind="stable")
    begins, ends = begin_us[order], np.maximum.accumulate(end_us[order])
    idle = np.maximum(begins[1:] - ends[:-1], 0.0).sum()
    return float(ends[-1] - begins[0] - idle)


def survey_of(path: Path) -> Survey:
    """The survey of a profiler file.

    Raises:
        InvalidInput: it is not a profiler file, or has no GPU events with possible times.
    """
    columns = _Columns()
    for event in read_events(path, columns.fields):
        columns.add(event)
    if not columns.gpu_begin:
        _refuse_without_gpu(path, columns.host_events)
    begin, end = _floats(columns.gpu_begin), _floats(columns.gpu_end)
    recorded_us = _recorded(columns)
    is_possible = columns.possible & (begin >= recorded_us[0]) & (begin <= recorded_us[1])
    if not is_possible.any():
        raise InvalidInput(
            f"no GPU event in {path} has a possible time: each is negative, no number, longer than "
            "an hour, or more than an hour away from all other events; record it again"
        )
    issued = _issue_times(columns, begin, recorded_us)
    marked = sorted(columns.steps.values(), key=lambda step: step.begin_us)
    steps = tuple(marked) or (ProfiledStep(None, *recorded_us),)
    step_of = np.where(is_possible, _positions(steps, issued), -1)
    busy = sorted(set(step_of[step_of >= 0].tolist()))
    if not busy:
        raise InvalidInput(
            f"no step in {path} launched any GPU work, though the file has {len(begin)} GPU "
            "events; record whole iterations, with prof.step() after each"
        )
    # Leave out empty steps. The last one is empty if the profiler was stopped as it began.
    renumber = np.full(len(steps) + 1, -1)
    renumber[busy] = range(len(busy))
    return Survey(
        path=path,
        fields=columns.fields,
        steps=tuple(steps[i] for i in busy),
        step_of=renumber[step_of],
        begin_us=begin,
        end_us=end,
        is_kernel=np.frombuffer(columns.is_kernel, dtype=np.int8),
        device=np.frombuffer(columns.device, dtype=np.int64),
        left_out=int((~is_possible).sum()),
    )


class _Columns:
    """The numbers of all events, collected while the file is read."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.steps: dict[int, ProfiledStep] = {}
        self.gpu_begin, self.gpu_end = array("d"), array("d")
        self.correlation, self.device = array("q"), array("q")
        self.is_kernel, self.gpu_possible = array("b"), array("b")
        self.host_begin, self.host_end = array("d"), array("d")
        self.launch_correlation, self.launch_us = array("q"), array("d")
        self.host_events = 0

    @property
    def possible(self) -> NDArray[np.bool_]:
        """Whether each GPU event has a possible time."""
        return np.frombuffer(self.gpu_possible, dtype=np.int8).astype(bool)

    def add(self, event: Event) -> None:
        if event.get("ph") != "X":
            return
        category = category_of(event)
        begin = number(event.get("ts"))
        end = begin + max(number(event.get("dur")), 0.0)
        is_possible = has_possible_time(event)
        if category in GPU_CATEGORIES:
            self.gpu_possible.append(is_possible)
            arguments = arguments_of(event)
            self.gpu_begin.append(begin)
            self.gpu_end.append(end)
            self.correlation.append(correlation_of(arguments))
            self.device.append(device_of(arguments))
            self.is_kernel.append(category == "kernel")
            return
        if not is_possible:
            return
        if category in RUNTIME_CATEGORIES:
            self.launch_correlation.append(correlation_of(arguments_of(event)))
            self.launch_us.append(begin)
        elif category not in ("cpu_op", "user_annotation"):
            return
        else:
            self.host_events += 1
            if match := _STEP.fullmatch(name_of(event)):
                which = int(match[1])
                self.steps.setdefault(which, ProfiledStep(which, begin, end))
            if category == "user_annotation":  # it may be longer than the work it encloses
                return
        self.host_begin.append(begin)
        self.host_end.append(end)


def device_of(arguments: Mapping[str, Any]) -> int:
    """The number of the GPU of an event; -1 if there is none."""
    value = number(arguments.get("device"), -1)
    return int(value) if 0 <= value < 1 << 31 else -1


def correlation_of(arguments: Mapping[str, Any]) -> int:
    """The number that a launch and its kernels share; -1 if there is none."""
    value = arguments.get("correlation")
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else -1


def _recorded(columns: _Columns) -> tuple[float, float]:
    """From the first event to the end of the last, without events more than an hour apart.

    One event with a broken clock (`ts` 0 among times since 1970) would make a step of decades. The
    stretch that has the most events is the recording.
    """
    is_possible = columns.possible
    begin = np.concatenate([_floats(columns.gpu_begin)[is_possible], _floats(columns.host_begin)])
    end = np.concatenate([_floats(columns.gpu_end)[is_possible], _floats(columns.host_end)])
    if not len(begin):
        return math.inf, -math.inf
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    cuts = np.flatnonzero(begin[1:] - end[:-1] > LONGEST_US) + 1
    edges = [0, *cuts.tolist(), len(begin)]
    first, stop = max(itertools.pairwise(edges), key=lambda part: part[1] - part[0])
    return float(begin[first]), float(end[stop - 1])


def _issue_times(columns: _Columns, begin: Floats, recorded_us: tuple[float, float]) -> Floats:
    """When the host launched each GPU event; when the event began, if its launch is missing."""
    launched = np.frombuffer(columns.launch_correlation, dtype=np.int64)
    times = _floats(columns.launch_us)
    correlations = np.frombuffer(columns.correlation, dtype=np.int64)
    order = np.argsort(launched, kind="stable")
    launched, times = launched[order], times[order]
    within = (times >= recorded_us[0]) & (times <= recorded_us[1])
    launched, times = launched[within], times[within]
    if not len(launched):
        return begin
    at = np.minimum(np.searchsorted(launched, correlations), len(launched) - 1)
    has_launch = (launched[at] == correlations) & (correlations >= 0)
    return np.where(has_launch, times[at], begin)


def _positions(steps: tuple[ProfiledStep, ...], times: Floats) -> NDArray[np.int64]:
    """The position of the step in which each time lies; -1 if it lies in none."""
    begins = np.array([step.begin_us for step in steps])
    ends = np.array([step.end_us for step in steps])
    at = np.searchsorted(begins, times, side="right") - 1
    return np.where((at >= 0) & (times <= ends[at]), at, -1)


def _floats(values: array[float]) -> Floats:
    return np.frombuffer(values, dtype=np.float64)


def _refuse_without_gpu(path: Path, host_events: int) -> None:
    if host_events:
        raise InvalidInput(
            f"{path} has events of the CPU only, none of a GPU; record with "
            "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"
        )
    raise InvalidInput(
        f"{path} has no events of PyTorch's profiler; "
        "give a file that torch.profiler wrote (export_chrome_trace)"
    )


def choose(survey: Survey, number: int | None) -> int:
    """The position of the step with that number; of the most typical step if the number is None.

    The most typical step has the median GPU time among those with the most frequent number of
    kernels. If there are several steps, the first is left out, because it may be a warm-up.

    Raises:
        InvalidInput: there is no such step. The message names the steps in the file.
    """
    if number is None:
        rest = range(1 if len(survey.steps) > 1 else 0, len(survey.steps))
        counts = Counter(survey.kernels(position) for position in rest)
        usual = max(counts, key=lambda count: (counts[count], count))
        alike = [position for position in rest if survey.kernels(position) == usual]
        return sorted(alike, key=survey.busy_s)[(len(alike) - 1) // 2]
    for position, step in enumerate(survey.steps):
        if step.number == number:
            return position
    if survey.steps[0].number is None:
        hint = "it marks no steps; leave out the step number to read the whole file"
    else:
        hint = f"it has {named([step.number or 0 for step in survey.steps])}"
    raise InvalidInput(f"there is no step {number} with GPU work in {survey.path}; {hint}")


def named(numbers: list[int]) -> str:
    """The numbers of steps in words, such as "the steps 101 to 105"."""
    if len(numbers) == 1:
        return f"the step {numbers[0]}"
    if all(later == earlier + 1 for earlier, later in pairwise(numbers)):
        return f"the steps {numbers[0]} to {numbers[-1]}"
    rest = f" and {len(numbers) - _MOST_NAMED} more" if len(numbers) > _MOST_NAMED else ""
    return f"the steps {', '.join(map(str, numbers[:_MOST_NAMED]))}{rest}"


def steady_s(survey: Survey) -> tuple[float, int] | None:
    """The median time of an iteration, and how many were timed. None if no two are consecutive."""
    periods = list(survey.periods_s().values())
    return (median(periods), len(periods)) if periods else None
