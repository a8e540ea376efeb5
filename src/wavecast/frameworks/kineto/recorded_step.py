"""The events of one step, from the second pass over a profiler file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wavecast.errors import InvalidInput
from wavecast.frameworks.kineto.events import (
    GPU_CATEGORIES,
    RUNTIME_CATEGORIES,
    Event,
    Node,
    Span,
    arguments_of,
    category_of,
    has_possible_time,
    kernel_of,
    name_of,
    nest,
    number,
    read_events,
)
from wavecast.frameworks.kineto.survey import ProfiledStep, Survey, correlation_of
from wavecast.reading import LARGEST_VALUES_BYTES, size_factor
from wavecast.traces.file import Interval
from wavecast.traces.step import Kernel

MODULE = "nn.Module: "
"""The prefix of the events of modules' forwards, in files with Python's stack (with_stack=True)."""

_USED = (
    *("Input Dims", "Input dims", "Input type", "Input Strides", "Concrete Inputs"),
    *("Collective name", "Group size", "dtype", "In msg nelems", "Out msg nelems"),
    *("correlation", "Sequence number", "Module Hierarchy"),
)
"""The arguments of the host's events that are used. The others are not kept."""

_EVENT_BYTES, _VALUE_BYTES, _DICTIONARY_BYTES = 700, 80, 250
"""The memory of a kept event with its node or kernel, of a value, and of a dictionary."""

_HOST_CATEGORIES = RUNTIME_CATEGORIES | {"cpu_op", "user_annotation"}


@dataclass(frozen=True, slots=True)
class KernelRun:
    """A kernel, copy or fill that the GPU ran, with its times by the file's clock."""

    kernel: Kernel
    correlation: int
    begin_us: float
    end_us: float


@dataclass(frozen=True)
class ProfileRecording:
    """The events of one step."""

    nodes: list[Node]
    """The host's events, ordered by their start."""
    launched: dict[Node, tuple[KernelRun, ...]]
    """The kernels of each runtime call that launched some, in order of time."""
    orphans: tuple[KernelRun, ...]
    """Kernels whose launch is not in the file."""

    @property
    def runs(self) -> list[KernelRun]:
        """All kernels of the step."""
        return [*(run for runs in self.launched.values() for run in runs), *self.orphans]

    def host_window(self) -> Interval | None:
        """From the start of the host's first event to the end of its last; annotations are ignored.

        None if the file has no events of the host.
        """
        spans = [
            node.span
            for node in self.nodes
            if node.span.category == "cpu_op" or node.span.category in RUNTIME_CATEGORIES
        ]
        if not spans:
            return None
        return min(s.begin_us for s in spans), max(s.end_us for s in spans)


def record(survey: Survey, position: int) -> ProfileRecording:
    """The events of the step at a position of the survey."""
    step = survey.steps[position]
    spans: list[Span] = []
    runs: list[KernelRun] = []
    left_bytes = LARGEST_VALUES_BYTES * size_factor(survey.path)
    belongs = survey.step_of == position
    row = -1
    for event in read_events(survey.path):
        if event.get("ph") != "X":
            continue
        category = category_of(event)
        if category in GPU_CATEGORIES:
            row += 1
            if belongs[row]:
                runs.append(_run(event, step.begin_us))
                left_bytes -= _EVENT_BYTES + len(runs[-1].kernel.name)
        else:
            span = _span(event, category)
            if span is not None and _is_within(span, step):
                spans.append(span)
                left_bytes -= _EVENT_BYTES + len(span.name) + _bytes_of(span.arguments)
        if left_bytes < 0:
            raise InvalidInput(
                f"a step in {survey.path} has too many events to keep them in memory; mark the "
                "steps with prof.step(), or record fewer"
            )
    return _joined(nest(spans), runs)


def _run(event: Event, step_begin_us: float) -> KernelRun:
    begin = number(event.get("ts"))
    kernel = kernel_of(event, step_begin_us)
    correlation = correlation_of(arguments_of(event))
    return KernelRun(kernel, correlation, begin, begin + kernel.seconds * 1e6)


def _span(event: Event, category: str) -> Span | None:
    name = name_of(event)
    if category == "python_function":
        if not name.startswith(MODULE):
            return None
    elif category not in _HOST_CATEGORIES:
        return None
    if not has_possible_time(event):
        return None
    begin = number(event.get("ts"))
    end = begin + max(number(event.get("dur")), 0.0)
    thread = event.get("tid")
    if not isinstance(thread, int | str):
        thread = None
    recorded = arguments_of(event)
    arguments = {name: recorded[name] for name in _USED if name in recorded}
    return Span(name, category, thread, begin, end, arguments)


def _bytes_of(arguments: Mapping[str, Any]) -> int:
    """About how much memory the arguments of an event need."""
    size, rest = 0, list(arguments.values())
    while rest:
        value = rest.pop()
        size += _VALUE_BYTES
        if isinstance(value, list):
            rest += value
        elif isinstance(value, dict):
            rest += value.values()
            size += len(value) * _VALUE_BYTES + _DICTIONARY_BYTES
        elif isinstance(value, str):
            size += len(value)
    return size


def _is_within(span: Span, step: ProfiledStep) -> bool:
    """Whether a span belongs to a step. An op must start in it; a range need only overlap it."""
    if span.category in ("user_annotation", "python_function"):
        return span.begin_us <= step.end_us and span.end_us >= step.begin_us
    return step.begin_us <= span.begin_us <= step.end_us


def _joined(nodes: list[Node], runs: list[KernelRun]) -> ProfileRecording:
    """The recorded step, with each kernel assigned to its launch."""
    launches = {
        correlation: node
        for node in nodes
        if node.span.category in RUNTIME_CATEGORIES
        and (correlation := correlation_of(node.span.arguments)) >= 0
    }
    launched: dict[Node, list[KernelRun]] = {}
    orphans: list[KernelRun] = []
    for run in sorted(runs, key=lambda run: run.begin_us):
        node = launches.get(run.correlation)
        (orphans if node is None else launched.setdefault(node, [])).append(run)
    by_launch = {node: tuple(kernels) for node, kernels in launched.items()}
    return ProfileRecording(nodes, by_launch, tuple(orphans))
