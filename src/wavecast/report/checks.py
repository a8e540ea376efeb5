"""The verdicts on checked steps: for a terminal, as Markdown for a review, and as data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Group, RenderableType

from wavecast.analysis.comparison import StepSummary
from wavecast.campaigns.checks.checking import CheckResult
from wavecast.campaigns.checks.config import CodePlace
from wavecast.campaigns.checks.verdicts import FAILING, ChoiceVerdict, Figure, Outcome, StepVerdict
from wavecast.report.comparisons import (
    PARTS_SHOWN,
    change,
    changes,
    part_columns,
    renamed_modules,
    signed_duration,
    tables_of,
)
from wavecast.report.fields import Field, columns, describe, output
from wavecast.report.tables import (
    from_rows,
    line,
    listed,
    markdown_text,
    remarks,
    shown,
    table,
)
from wavecast.report.tables import markdown as markdown_table
from wavecast.report.units import duration, memory, one_line, or_unknown

_STYLES = {
    Outcome.WORSE: "red",
    Outcome.CHANGED: "red",
    Outcome.UNKNOWN: "yellow",
    Outcome.BETTER: "green",
}


def _change(name: str) -> Field:
    """The relative change of a figure of a checked step."""

    def said(row: StepVerdict) -> str:
        if row.comparison is None:
            return ""
        old, new = (getattr(step, name) for step in (row.comparison.before, row.comparison.after))
        return "" if new is None else change(old, new)

    return Field("", said, title="", rank=0 if name == "seconds" else 2, left=False)


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


def _shown(value: str) -> Field:
    """A value of a figure, in the unit of the figure."""
    return Field(
        "",
        lambda figure: or_unknown(getattr(figure, value), _SHOWN[figure.name]),
        title={"before": "baseline", "after": "now"}[value],
        left=False,
    )


def _changed(figure: Figure) -> str:
    return "" if figure.name in ("fits", "waits") else change(figure.before, figure.after)


def _allowed(figure: Figure) -> str:
    if figure.tolerance is None:
        return ""
    return f"{figure.tolerance:g}" if figure.name == "waits" else f"{100 * figure.tolerance:g}%"


_SHOWN: Mapping[str, Callable[[float], str]] = {
    "time": duration,
    "GPU time": duration,
    "host time": duration,
    "memory": memory,
    "waits": "{:g}".format,
    "fits": lambda value: "yes" if value else "no",
}
describe(
    StepVerdict,
    Field("target", title="target"),
    Field("gpu", title="GPU"),
    Field("", "comparison.after.seconds", title="step", text=duration),
    _change("seconds"),
    Field("", "comparison.after.peak_bytes", title="memory", rank=2, text=memory),
    _change("peak_bytes"),
    Field("", _verdict, title="verdict"),
    *map(Field, ("outcome", "figures")),
    *(Field(name, blank=True) for name in ("problem", "cause")),
    "comparison",
    "places",
)
PLACES = describe(
    CodePlace,
    Field("", lambda place: f"{place.file}:{place.line}", title="line", left=True),
    Field("", "text", title="", folds=True),
    *map(Field, ("file", "line", "op", "calls", "delta_s")),
)
FIGURES = describe(
    Figure,
    Field("name", title=""),
    _shown("before"),
    _shown("after"),
    Field("", _changed, title="change", left=False),
    Field("", _allowed, title="allowed", rank=1, left=False),
    Field("", lambda f: "" if f.outcome is Outcome.WITHIN else str(f.outcome), title="", left=True),
    Field("before", meaning="What it was: seconds, bytes, waits, or 1 where it fits."),
    Field("after", meaning="What it is."),
    *map(Field, ("tolerance", "outcome")),
)
describe(
    ChoiceVerdict,
    *map(Field, ("target", "by", "before")),
    Field("after", meaning="The id of the GPU that is the best now; empty if none is."),
    "outcome",
)


describe(
    CheckResult,
    Field("", lambda result: verdict_line(result), title="verdict"),
    Field("outcome", title="outcome"),
    *map(Field, ("exit_code", "steps", "choices", "remarks")),
    parts="steps",
)
_BASELINE = Field("baseline", kind=str, meaning="The file with the baseline, or a commit.")
_SOFTWARE = output(
    "The versions of libraries with which steps were traced.",
    Field("baseline", kind=Mapping[str, str], meaning="Those of the baseline."),
    Field("now", kind=Mapping[str, str], meaning="Those of today."),
)
CHECKED = output(
    "The verdict on checked steps.",
    Field("", "result", kind=CheckResult, inline=True),
    _BASELINE,
    Field("software", kind=_SOFTWARE, meaning="The versions of libraries."),
)
UPDATED = output(
    "What an update of a baseline wrote.",
    _BASELINE,
    Field("targets", kind=Sequence[str], meaning="The names of the steps in it."),
)


def check_result(result: CheckResult, width: int) -> RenderableType:
    """The verdicts as tables: one row for each step and GPU, then what changed and where."""
    rows = list(result.steps)
    styles = [_STYLES.get(row.outcome, "") for row in rows]
    parts: list[RenderableType] = [*shown(columns(rows), width, styles=styles), ""]
    for row in _worth_details(rows):
        parts += _details(row, width)
    parts += [line(text, "red") for text in choice_lines(result)]
    parts += remarks(result.remarks)
    parts.append(line(verdict_line(result), _STYLES.get(result.outcome, "green")))
    return Group(*parts)


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
    heading = line(f"{row.target} on {row.gpu}", "bold")
    said = remarks([row.cause]) if row.cause else []
    figures = shown(FIGURES.columns(row.figures), width)
    parts = [heading, "", *figures, *changes(row.comparison, width), *said, ""]
    if row.places:
        lines = shown(PLACES.columns(row.places), width)
        parts += [line("where the step does more", "bold"), "", *lines, ""]
    return parts


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


def annotated_lines(result: CheckResult, folder: str = "") -> list[str]:
    """The verdicts as GitHub's annotations: a warning at each line, an error for what got worse.

    Args:
        result: the verdicts.
        folder: the present folder as seen from the top of the repository: `part/`.
    """
    lines: dict[str, None] = {}
    for row in result.steps:
        for place in row.places if row.outcome in FAILING else ():
            at = {"file": f"{folder}{place.file}", "line": str(place.line)}
            added = f", {signed_duration(place.delta_s)} on {row.gpu}" if place.delta_s else ""
            told = f"{row.target}: {place.text}{added}"
            lines.setdefault(_workflow_command("warning", told, at | {"title": "Wavecast"}))
    for row in _worth_details(result.steps):
        if row.outcome in FAILING:
            told = f"{row.target} on {row.gpu} got {_verdict(row)}"
            lines.setdefault(_workflow_command("error", told, {"title": "Wavecast"}))
    for text in choice_lines(result):
        lines.setdefault(_workflow_command("error", text, {"title": "Wavecast"}))
    return list(lines)


def _workflow_command(name: str, message: str, properties: Mapping[str, str]) -> str:
    """A command to GitHub's runner, as its own toolkit escapes it."""

    def escaped(text: str, *more: str) -> str:
        for character in ("%", "\r", "\n", *more):
            text = text.replace(character, f"%{ord(character):02X}")
        return text

    given = ",".join(f"{key}={escaped(value, ':', ',')}" for key, value in properties.items())
    return f"::{name} {given}::{escaped(one_line(message))}"


def markdown(result: CheckResult, compared_with: str) -> str:
    """The verdicts as Markdown, for the summary of a CI job or a comment on a change."""
    parts = [f"### Wavecast: {markdown_text(verdict_line(result))}", ""]
    parts += markdown_table(columns(result.steps))
    for row in _worth_details(result.steps):
        parts += ["", *_markdown_details(row)]
    lines = [*choice_lines(result), *result.remarks]
    parts += ["", *(f"- {markdown_text(text)}" for text in lines)] if lines else []
    is_file = compared_with.endswith(".toml")
    accept = " `wavecast check --update` accepts the changes." if is_file else ""
    parts += ["", f"Compared with `{Path(compared_with).name}`.{accept}"]
    return "\n".join(parts) + "\n"


def _markdown_details(row: StepVerdict) -> Iterator[str]:
    if row.comparison is None:
        return
    yield f"<details><summary>{markdown_text(row.target)} on {row.gpu}: what changed</summary>"
    yield ""
    headings = ("figure", "baseline", "now", "change", "allowed", "verdict")
    yield from markdown_table(FIGURES.columns(row.figures), headings)
    for heading, parts in tables_of(row.comparison):
        changed = part_columns(parts)
        yield ""
        yield from markdown_table(changed, [heading, *(column.name for column in changed[1:])])
        if len(parts) > PARTS_SHOWN:
            yield f"\nand {len(parts) - PARTS_SHOWN} more"
    if row.places:
        yield ""
        yield from markdown_table(PLACES.columns(row.places), ["line", "what is new"])
    yield ""
    said = [*renamed_modules(row.comparison), *row.comparison.remarks, row.cause]
    yield from (f"- {markdown_text(text)}" for text in said if text)
    yield ""
    yield "</details>"


def written(path: Path, steps: Mapping[str, Mapping[str, StepSummary]]) -> RenderableType:
    """What an update wrote: the steps with their times."""
    rows = [
        (target, gpu, duration(step.seconds), or_unknown(step.peak_bytes, memory))
        for target, gpus in steps.items()
        for gpu, step in gpus.items()
    ]
    said = line(f"wrote {path}: {listed(list(steps))}")
    return Group(table(from_rows(rows, "<target", "<GPU", "step", "memory")), "", said)
