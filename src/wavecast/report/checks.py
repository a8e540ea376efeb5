"""The verdicts on checked steps: for a terminal, as Markdown for a review, and as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from wavecast.checks.checking import CheckResult
from wavecast.checks.verdicts import FAILING, Figure, Outcome, StepVerdict
from wavecast.report.characters import one_line
from wavecast.report.comparisons import (
    PARTS_SHOWN,
    change,
    changes,
    comparison_record,
    part_columns,
    renamed_modules,
    tables_of,
)
from wavecast.report.tables import Column, fitting, line, listed, remarks, table
from wavecast.report.units import UNKNOWN, duration, memory, or_unknown
from wavecast.steps.summary import StepSummary

_STYLES = {
    Outcome.WORSE: "red",
    Outcome.CHANGED: "red",
    Outcome.UNKNOWN: "yellow",
    Outcome.BETTER: "green",
}


def check_result(result: CheckResult, width: int) -> RenderableType:
    """The verdicts as tables: one row for each step and GPU, then what changed and where."""
    rows = list(result.steps)
    columns = [
        Column(name, [cells[i] for cells in map(_cells, rows)], rank, left=left)
        for i, (name, rank, left) in enumerate(_HEADINGS)
    ]
    styles = [_STYLES.get(row.outcome, "") for row in rows]
    parts: list[RenderableType] = [table(fitting(columns, width), styles), ""]
    for row in _worth_details(rows):
        parts += _details(row, width)
    parts += [line(text, "red") for text in choice_lines(result)]
    parts += remarks(result.remarks)
    parts.append(line(verdict_line(result), _STYLES.get(result.outcome, "green")))
    return Group(*parts)


_HEADINGS = (
    ("target", 0, True),
    ("GPU", 0, True),
    ("step", 0, False),
    ("", 0, False),
    ("memory", 2, False),
    ("", 2, False),
    ("verdict", 0, True),
)


def _cells(row: StepVerdict) -> tuple[str, ...]:
    """The cells of a step in the overview."""
    both = row.comparison
    if both is None:
        return row.target, row.gpu, UNKNOWN, "", UNKNOWN, "", _verdict(row)
    old, new = both.before, both.after
    return (
        row.target,
        row.gpu,
        duration(new.seconds),
        change(old.seconds, new.seconds),
        or_unknown(new.peak_bytes, memory),
        "" if new.peak_bytes is None else change(old.peak_bytes, new.peak_bytes),
        _verdict(row),
    )


def _verdict(row: StepVerdict) -> str:
    """The verdict in words: `worse: time, memory`."""
    if row.problem:
        return f"{Outcome.UNKNOWN}: {row.problem}"
    said = [
        f"{outcome}: {', '.join(names)}"
        for outcome in (Outcome.WORSE, Outcome.BETTER, Outcome.UNKNOWN)
        if (names := row.named(outcome))
    ]
    return "; ".join(said) or str(Outcome.WITHIN)


def _worth_details(rows: Sequence[StepVerdict]) -> list[StepVerdict]:
    """Of each target with a change, the GPU on which its time changed most."""
    chosen: dict[str, StepVerdict] = {}
    for row in rows:
        if row.comparison is None or row.outcome is Outcome.WITHIN:
            continue
        so_far = chosen.get(row.target)
        if so_far is None or _size(row) > _size(so_far):
            chosen[row.target] = row
    return list(chosen.values())


def _size(row: StepVerdict) -> float:
    return 0.0 if row.comparison is None else abs(row.comparison.time_ratio - 1)


def _details(row: StepVerdict, width: int) -> list[RenderableType]:
    """The figures of a changed step, and the tables of what changed."""
    if row.comparison is None:
        return []
    lines = list(map(_figure_cells, row.figures))
    columns = [
        Column("", [cells[0] for cells in lines], left=True),
        Column("baseline", [cells[1] for cells in lines]),
        Column("now", [cells[2] for cells in lines]),
        Column("change", [cells[3] for cells in lines]),
        Column("allowed", [cells[4] for cells in lines], 1),
        Column("", [cells[5] for cells in lines], left=True),
    ]
    heading = line(f"{row.target} on {row.gpu}", "bold")
    said = remarks([row.cause]) if row.cause else []
    shown = [heading, "", table(fitting(columns, width)), *changes(row.comparison, width)]
    return [*shown, *said, ""]


def _figure_cells(figure: Figure) -> tuple[str, ...]:
    show = _SHOWN[figure.name]
    word = "" if figure.outcome is Outcome.WITHIN else str(figure.outcome)
    return (
        figure.name,
        or_unknown(figure.before, show),
        or_unknown(figure.after, show),
        "" if figure.name in ("fits", "waits") else change(figure.before, figure.after),
        _allowed(figure),
        word,
    )


def _allowed(figure: Figure) -> str:
    if figure.tolerance is None:
        return ""
    return f"{figure.tolerance:g}" if figure.name == "waits" else f"{100 * figure.tolerance:g}%"


def _yes_or_no(value: float) -> str:
    return "yes" if value else "no"


_SHOWN = {
    "time": duration,
    "GPU time": duration,
    "host time": duration,
    "memory": memory,
    "waits": "{:g}".format,
    "fits": _yes_or_no,
}


def choice_lines(result: CheckResult) -> list[str]:
    """One line for each choice of a GPU that changed."""
    words = {"time": "fastest", "money": "cheapest"}
    return [
        f"{row.target}: the {words[row.by]} GPU was {row.before or 'none'}, now it is "
        f"{row.after or 'none'}"
        for row in result.choices
        if row.outcome in FAILING
    ]


def verdict_line(result: CheckResult) -> str:
    """The verdict on everything, in one sentence."""
    total = len(result.steps)
    of_outcome = {
        outcome: [row for row in result.steps if row.outcome is outcome] for outcome in Outcome
    }
    worse, better = of_outcome[Outcome.WORSE], of_outcome[Outcome.BETTER]
    unknown = of_outcome[Outcome.UNKNOWN]
    said = []
    if worse:
        said.append(f"{len(worse)} of {total} got worse than the tolerance allows")
    if choice_lines(result):
        said.append("the choice of the GPU changed")
    if unknown:
        said.append(f"nothing can be said about {len(unknown)} of {total}")
    if better and not worse:
        said.append(f"{len(better)} of {total} got better: wavecast check --update keeps that")
    return "; ".join(said) or f"all {total} within tolerance"


def markdown(result: CheckResult, baseline: Path) -> str:
    """The verdicts as Markdown, for the summary of a CI job or a comment on a change."""
    parts = [f"### Wavecast: {_escaped(verdict_line(result))}", ""]
    parts += _markdown_table([name for name, *_ in _HEADINGS], map(_cells, result.steps))
    for row in _worth_details(result.steps):
        parts += ["", *_markdown_details(row)]
    lines = [*choice_lines(result), *result.remarks]
    parts += ["", *(f"- {_escaped(text)}" for text in lines)] if lines else []
    parts += ["", f"Baseline: `{baseline.name}`. `wavecast check --update` accepts the changes."]
    return "\n".join(parts) + "\n"


def _markdown_details(row: StepVerdict) -> Iterator[str]:
    if row.comparison is None:
        return
    yield f"<details><summary>{_escaped(row.target)} on {row.gpu}: what changed</summary>"
    yield ""
    headings = ("figure", "baseline", "now", "change", "allowed", "verdict")
    yield from _markdown_table(headings, map(_figure_cells, row.figures))
    for heading, parts in tables_of(row.comparison):
        columns = part_columns(parts)
        names = [heading, *(column.name for column in columns[1:])]
        yield ""
        yield from _markdown_table(names, zip(*(c.cells for c in columns), strict=True))
        if len(parts) > PARTS_SHOWN:
            yield f"\nand {len(parts) - PARTS_SHOWN} more"
    yield ""
    said = [*renamed_modules(row.comparison), *row.comparison.remarks, row.cause]
    yield from (f"- {_escaped(text)}" for text in said if text)
    yield ""
    yield "</details>"


def _markdown_table(headings: Sequence[str], rows: Iterator[Sequence[str]] | Any) -> Iterator[str]:
    yield f"| {' | '.join(map(_escaped, headings))} |"
    yield f"|{'---|' * len(headings)}"
    for row in rows:
        yield f"| {' | '.join(map(_escaped, row))} |"


_SPECIAL = str.maketrans(
    {c: f"\\{c}" for c in "\\`*_[]|"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
)


def _escaped(text: str) -> str:
    """A text that Markdown shows as it is: names of modules may hold anything."""
    return one_line(text).translate(_SPECIAL)


def check_record(
    result: CheckResult, baseline: Path, before: Mapping[str, str], now: Mapping[str, str]
) -> dict[str, Any]:
    """The verdicts as plain data for JSON."""
    return {
        "outcome": str(result.outcome),
        "exit_code": result.exit_code,
        "baseline": str(baseline),
        "software": {"baseline": dict(before), "now": dict(now)},
        "steps": [_step_record(row) for row in result.steps],
        "choices": [{**asdict(row), "outcome": str(row.outcome)} for row in result.choices],
        "remarks": list(result.remarks),
    }


def _step_record(row: StepVerdict) -> dict[str, Any]:
    return {
        "target": row.target,
        "gpu": row.gpu,
        "outcome": str(row.outcome),
        "figures": [{**asdict(each), "outcome": str(each.outcome)} for each in row.figures],
        "problem": row.problem or None,
        "cause": row.cause or None,
        "comparison": None if row.comparison is None else comparison_record(row.comparison),
    }


def written(path: Path, steps: Mapping[str, Mapping[str, StepSummary]]) -> RenderableType:
    """What an update wrote: the steps with their times."""
    rows = [(target, gpu, step) for target, gpus in steps.items() for gpu, step in gpus.items()]
    columns = [
        Column("target", [target for target, *_ in rows], left=True),
        Column("GPU", [gpu for _, gpu, _ in rows], left=True),
        Column("step", [duration(step.seconds) for *_, step in rows]),
        Column("memory", [or_unknown(step.peak_bytes, memory) for *_, step in rows]),
    ]
    said = line(f"wrote {path}: {listed(list(steps))}")
    return Group(table(columns), "", said)
