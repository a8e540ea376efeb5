"""Two steps side by side, as tables in a terminal and as data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType

from wavecast.report.tables import Column, fitting, line, listed, notes, remarks, table, titled
from wavecast.report.units import (
    UNKNOWN,
    count,
    duration,
    memory,
    or_unknown,
    time_range,
)
from wavecast.steps.comparison import PartChange, StepComparison
from wavecast.steps.summary import StepSummary

PARTS_SHOWN = 8
"""How many ops or modules a table lists."""


def comparisons(
    before: str, after: str, rows: Sequence[StepComparison], width: int
) -> RenderableType:
    """The comparisons of two steps on several GPUs, with tables of what changed.

    Args:
        before: the name of the step as it was.
        after: the name of the step as it is.
        rows: one comparison for each GPU.
        width: columns of the terminal.
    """
    parts: list[RenderableType] = [line(f"A: {before}"), line(f"B: {after}")]
    for row in rows:
        parts += ["", titled(row.after.gpu, figures(row, width, ("A", "B"))), *changes(row, width)]
    return Group(*parts)


def figures(
    row: StepComparison, width: int, headings: tuple[str, str] = ("before", "now")
) -> RenderableType:
    """The figures of two steps, one below the other."""
    lines = list(figure_lines(row))
    columns = [
        Column("", [name for name, *_ in lines], left=True),
        Column(headings[0], [cells[0] for _, *cells in lines]),
        Column(headings[1], [cells[1] for _, *cells in lines]),
        Column("change", [cells[2] for _, *cells in lines]),
    ]
    return table(fitting(columns, width))


def figure_lines(row: StepComparison) -> Iterator[tuple[str, str, str, str]]:
    """The name of each figure, its two values as text, and the change between them."""
    old, new = row.before, row.after

    def measured(
        name: str, value: Callable[[StepSummary], float | None], show: Callable[[float], str]
    ) -> tuple[str, str, str, str]:
        left, right = value(old), value(new)
        return name, or_unknown(left, show), or_unknown(right, show), change(left, right)

    yield measured("step", lambda step: step.seconds, duration)
    if old.low_s is not None or new.low_s is not None:
        ranges = [time_range(step.low_s, step.high_s) for step in (old, new)]
        yield "range", ranges[0], ranges[1], ""
    yield measured("GPU busy", lambda step: step.gpu_s, duration)
    yield measured("host busy", lambda step: step.host_s, duration)
    if old.throughput is not None and new.throughput is not None:
        yield measured(f"{new.unit}/s", lambda step: step.throughput, count)
    yield "bound by", old.bound_by, new.bound_by, ""
    yield measured("kernels", lambda step: step.kernels, count)
    yield measured("waits of the host", lambda step: step.syncs, count)
    yield measured("memory at the peak", lambda step: step.peak_bytes, memory)
    yield measured("memory needed", lambda step: step.needed_bytes, memory)
    yield "fits", yes_or_no(old.fits), yes_or_no(new.fits), ""
    for kind in dict.fromkeys((*old.memory, *new.memory)):
        sizes = old.memory.get(kind, 0), new.memory.get(kind, 0)
        if change(*sizes):
            yield f"- {kind}", memory(sizes[0]), memory(sizes[1]), change(*sizes)


def change(before: float | None, after: float | None) -> str:
    """The relative change of a figure, as `+3.2%`; empty if it is none, `?` if it is unknown."""
    if before is None or after is None:
        return UNKNOWN
    if before == after:
        return ""
    if not before:
        return "new"
    percents = 100 * (after / before - 1)
    return "" if abs(percents) < 0.05 else f"{percents:+.1f}%"


def changes(row: StepComparison, width: int) -> list[RenderableType]:
    """The tables of what changed: kinds of ops, ops, modules; then the remarks."""
    shown: list[RenderableType] = []
    for heading, parts in tables_of(row):
        shown += ["", line(heading, "bold"), "", table(fitting(part_columns(parts), width))]
        if len(parts) > PARTS_SHOWN:
            shown += remarks([f"and {len(parts) - PARTS_SHOWN} more (--json lists all)"])
    shown.append("")
    shown += remarks([*renamed_modules(row), *row.remarks])
    return [*shown, *notes(new_notes(row))]


def tables_of(row: StepComparison) -> list[tuple[str, Sequence[PartChange]]]:
    """The parts of the GPU time that changed, by what the step is divided into."""
    parts = {"by kind of op": row.kinds, "by op": row.ops, "by module": row.modules}
    shown = {heading: list(filter(_is_worth_a_line, each)) for heading, each in parts.items()}
    return [(heading, changed) for heading, changed in shown.items() if changed]


def _is_worth_a_line(part: PartChange) -> bool:
    """Whether a part belongs into a table: views take no time, however many there are."""
    return not part.renamed_to and bool(part.before_s or part.after_s)


def part_columns(parts: Sequence[PartChange]) -> list[Column]:
    """The columns of a table of changed parts, with the largest changes only."""
    rows = parts[:PARTS_SHOWN]
    return [
        Column("", [part.name for part in rows], left=True, folds=True),
        Column("", [_word(part) for part in rows], left=True),
        Column("calls", [_calls(part) for part in rows]),
        Column("GPU time", [_time(part.before_s) for part in rows], 1),
        Column("now", [_time(part.after_s) for part in rows], 1),
        Column("change", [signed_duration(part.delta_s) for part in rows]),
    ]


def signed_duration(seconds: float) -> str:
    """A change of a time, with its sign: `+1.20 ms`; empty if there is none."""
    if not seconds:
        return ""
    return f"{'+' if seconds > 0 else '-'}{duration(abs(seconds))}"


def renamed_modules(row: StepComparison) -> list[str]:
    """One remark about the modules that only got another name, if there are any."""
    names = [f"{part.name} -> {part.renamed_to}" for part in row.modules if part.renamed_to]
    return [f"renamed modules: {listed(names)}"] if names else []


def new_notes(row: StepComparison) -> list[str]:
    """The caveats of the step after that the one before did not have."""
    return [note for note in row.after.notes if note not in row.before.notes]


def yes_or_no(answer: bool | None) -> str:
    """`yes`, `no`, or `?` when it is not known."""
    return UNKNOWN if answer is None else "yes" if answer else "no"


def _time(seconds: float) -> str:
    return duration(seconds) if seconds else ""


def _word(part: PartChange) -> str:
    return "new" if part.is_added else "gone" if part.is_gone else ""


def _calls(part: PartChange) -> str:
    if part.calls_before == part.calls_after:
        return count(part.calls_after)
    return f"{count(part.calls_before)} -> {count(part.calls_after)}"


def comparison_record(row: StepComparison) -> dict[str, Any]:
    """A comparison as plain data for JSON: times in seconds, sizes in bytes."""
    return {
        "gpu": row.after.gpu,
        "time_ratio": row.time_ratio,
        "memory_ratio": row.memory_ratio,
        "same_step": row.is_same_step,
        "before": summary_record(row.before),
        "after": summary_record(row.after),
        "kinds": [part_record(part) for part in row.kinds],
        "ops": [part_record(part) for part in row.ops],
        "types": [part_record(part) for part in row.types],
        "modules": [part_record(part) for part in row.modules],
        "remarks": [*renamed_modules(row), *row.remarks],
    }


def summary_record(step: StepSummary) -> dict[str, Any]:
    """The figures of a step as plain data, without the parts of its GPU time."""
    left_out = ("kinds", "types", "ops", "modules", "notes", "memory")
    record = {name: value for name, value in asdict(step).items() if name not in left_out}
    return {
        **record,
        "throughput_per_s": step.throughput,
        "memory_bytes": dict(step.memory),
        "notes": list(step.notes),
    }


def part_record(part: PartChange) -> dict[str, Any]:
    """A changed part as plain data."""
    return {**asdict(part), "renamed_to": part.renamed_to or None, "delta_s": part.delta_s}
