"""Several steps side by side on each GPU: one column for each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType

from wavecast.report.fields import Field, describe, output
from wavecast.report.tables import Column, from_rows, line, notes, notes_by_gpu, table, titled
from wavecast.report.units import count, duration, memory, or_unknown, text, time_range
from wavecast.steps.summary import StepSummary


@dataclass(frozen=True)
class StepsOnGpu:
    """Several steps on one GPU, in the order in which they were named."""

    gpu: str
    names: tuple[str, ...]
    steps: tuple[StepSummary, ...]

    @property
    def fastest(self) -> str:
        """The name of the step that takes the least time for a sample, or for a step."""
        return min(zip(self.names, self.steps, strict=True), key=lambda one: _cost_s(one[1]))[0]


def _cost_s(step: StepSummary) -> float:
    return step.seconds / (step.samples or 1)


describe(
    StepsOnGpu,
    Field("gpu", meaning="The id of the GPU."),
    Field("fastest"),
    Field("steps", meaning="The figures of each step."),
)
SIDE_BY_SIDE = output(
    "Several steps side by side on each GPU.",
    Field("targets", kind=Sequence[str], meaning="The names of the steps."),
    Field("gpus", kind=Sequence[StepsOnGpu], meaning="One for each GPU."),
)


def letters(row: StepsOnGpu) -> list[str]:
    """A letter for each step, as the columns are headed."""
    return [chr(ord("A") + number) for number in range(len(row.steps))]


def side_by_side(rows: Sequence[StepsOnGpu]) -> RenderableType:
    """The names of the steps, and for each GPU a table of their figures."""
    named = zip(letters(rows[0]), rows[0].names, strict=True)
    parts: list[RenderableType] = [line(f"{letter}: {name}") for letter, name in named]
    for row in rows:
        parts += ["", titled(row.gpu, table(step_columns(row)), "", line(verdict(row)))]
    said = [(row.gpu, [note for step in row.steps for note in step.notes]) for row in rows]
    return Group(*parts, *notes(notes_by_gpu(said)))


def verdict(row: StepsOnGpu) -> str:
    """Which step is the fastest, in a sentence."""
    return f"On {row.gpu}, {row.fastest} is the fastest."


def step_columns(row: StepsOnGpu) -> list[Column]:
    """The columns of a table: the names of figures, then one for each step."""
    return from_rows(figure_rows(row.steps), "<", *letters(row))


def figure_rows(steps: Sequence[StepSummary]) -> Iterator[tuple[str, ...]]:
    """The name of each figure and its values as text."""

    def each(
        name: str, value: Callable[[StepSummary], float | None], show: Callable[[float], str]
    ) -> tuple[str, ...]:
        return name, *(or_unknown(value(step), show) for step in steps)

    first = steps[0]
    yield each("step", lambda step: step.seconds, duration)
    yield "range", *(time_range(step.low_s, step.high_s) for step in steps)
    yield each("time, A = 1", lambda step: _cost_s(step) / _cost_s(first), "{:.2f}".format)
    yield each("GPU busy", lambda step: step.gpu_s, duration)
    yield each("host busy", lambda step: step.host_s, duration)
    if all(step.throughput is not None and step.unit == first.unit for step in steps):
        yield each(f"{first.unit}/s", lambda step: step.throughput, count)
    yield "bound by", *(step.bound_by for step in steps)
    yield each("kernels", lambda step: step.kernels, count)
    yield each("memory at the peak", lambda step: step.peak_bytes, memory)
    yield each("memory needed", lambda step: step.needed_bytes, memory)
    yield "fits", *(text("", step.fits) for step in steps)
