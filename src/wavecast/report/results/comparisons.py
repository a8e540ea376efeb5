"""Two steps side by side: their figures, and what changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType

from wavecast.analysis.comparison import WORTH_A_ROW_S, PartChange, StepComparison, StepSummary
from wavecast.campaigns.checks.checking import CheckResult
from wavecast.campaigns.checks.config import CodePlace
from wavecast.campaigns.checks.verdicts import FAILING, ChoiceVerdict, Figure, Outcome, StepVerdict
from wavecast.report.fields import Field, columns, describe, output
from wavecast.report.html.documents import Report, Section
from wavecast.report.html.markup import (
    Html,
    bullets,
    element,
    empty_element,
    folded,
    html_table,
    joined,
    title_of,
)
from wavecast.report.tables import (
    ANY_WIDTH,
    Column,
    fitting,
    from_rows,
    line,
    listed,
    markdown_text,
    notes,
    notes_by_gpu,
    remarks,
    sentence,
    shown,
    table,
    titled,
)
from wavecast.report.tables import markdown as markdown_table
from wavecast.report.units import (
    UNKNOWN,
    count,
    duration,
    memory,
    one_line,
    or_unknown,
    text,
    time_range,
)

PARTS_SHOWN = 8
"""How many ops or modules a table lists."""


def _calls(part: PartChange) -> str:
    if part.calls_before == part.calls_after:
        return count(part.calls_after)
    return f"{count(part.calls_before)} -> {count(part.calls_after)}"


def signed_duration(seconds: float) -> str:
    """A change of a time, with its sign: `+1.20 ms`; empty if there is none."""
    if not seconds:
        return ""
    return f"{'+' if seconds > 0 else '-'}{duration(abs(seconds))}"


def _time(seconds: float) -> str:
    return duration(seconds) if seconds else ""


def _word(part: PartChange) -> str:
    return "new" if part.is_added else "gone" if part.is_gone else ""


def renamed_modules(row: StepComparison) -> list[str]:
    """One remark about the modules that only got another name, if there are any."""
    names = [f"{part.name} -> {part.renamed_to}" for part in row.modules if part.renamed_to]
    return [f"renamed modules: {listed(names)}"] if names else []


def said_remarks(row: StepComparison) -> Sequence[str]:
    """What a reader should know, in whole sentences."""
    return (*renamed_modules(row), *row.remarks)


PARTS = describe(
    PartChange,
    Field("name", title="", folds=True),
    Field("", _word, title=""),
    Field("", _calls, title="calls", left=False),
    Field("before_s", title="GPU time", rank=1, text=_time),
    Field(
        "after_s",
        title="now",
        rank=1,
        text=_time,
        drawn=True,
        meaning="Its GPU time now, in seconds.",
    ),
    Field("delta_s", title="change", text=signed_duration),
    Field("calls_before", meaning="How many calls it had."),
    Field("calls_after", meaning="How many calls it has."),
    Field("renamed_to", blank=True),
)
describe(
    StepSummary,
    *map(Field, ("gpu", "seconds", "gpu_s", "host_s", "bound_by", "kernels", "syncs")),
    *map(Field, ("needed_bytes", "peak_bytes", "fits", "low_s", "high_s", "samples", "unit")),
    *map(Field, ("unpredicted_share", "fingerprint", "framework")),
    Field("throughput_per_s", "throughput"),
    Field("memory_bytes", "memory"),
    *map(Field, ("notes", "lines")),
)
describe(
    StepComparison,
    Field("gpu", "after.gpu", title="GPU"),
    Field("", "before.seconds", title="before", text=duration),
    Field("", "after.seconds", title="now", text=duration),
    Field("time_ratio", title="time ratio", text="{:.2f} x".format),
    Field("memory_ratio", title="memory ratio", text="{:.2f} x".format),
    Field("same_step", "is_same_step"),
    *map(Field, ("before", "after", "kinds", "ops", "types", "modules")),
    Field("remarks", said_remarks, title="remarks", text="; ".join),
    parts="ops",
)


COMPARED = output(
    "Two steps, compared on each GPU.",
    Field("a", kind=str, meaning="The step before."),
    Field("b", kind=str, meaning="The step after."),
    Field("comparisons", kind=Sequence[StepComparison], meaning="One for each GPU."),
)


def comparisons(
    before: str, after: str, rows: Sequence[StepComparison], width: int
) -> RenderableType:
    """The comparisons of two steps on several GPUs, with tables of what changed."""
    parts: list[RenderableType] = [line(f"A: {before}"), line(f"B: {after}")]
    for row in rows:
        parts += ["", titled(row.after.gpu, figures(row, ("A", "B"))), *changes(row, width)]
    return Group(*parts)


def figures(row: StepComparison, headings: tuple[str, str] = ("before", "now")) -> RenderableType:
    """The figures of two steps, one below the other."""
    return table(from_rows(figure_lines(row), "<", *headings, "change"))


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
    yield "fits", text("", old.fits), text("", new.fits), ""
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
    parts: list[RenderableType] = []
    for heading, changed in tables_of(row):
        more = len(changed) - PARTS_SHOWN
        parts += ["", line(heading, "bold"), "", *shown(part_columns(changed), width)]
        parts += remarks([f"and {more} more (--json lists all)"]) if more > 0 else []
    parts.append("")
    parts += remarks(said_remarks(row))
    return [*parts, *notes(new_notes(row))]


def tables_of(row: StepComparison) -> list[tuple[str, Sequence[PartChange]]]:
    """The parts of the GPU time that changed, by what the step is divided into."""
    parts = {"by kind of op": row.kinds, "by op": row.ops, "by module": row.modules}
    shown = {heading: list(filter(_is_worth_a_line, each)) for heading, each in parts.items()}
    return [(heading, changed) for heading, changed in shown.items() if changed]


def _is_worth_a_line(part: PartChange) -> bool:
    """Whether a part belongs into a table: views take no time, however many there are."""
    return not part.renamed_to and abs(part.delta_s) >= WORTH_A_ROW_S


def part_columns(parts: Sequence[PartChange]) -> list[Column]:
    """The columns of a table of changed parts, with the largest changes only."""
    return PARTS.columns(parts[:PARTS_SHOWN])


def new_notes(row: StepComparison) -> list[str]:
    """The caveats of the step after that the one before did not have."""
    return [note for note in row.after.notes if note not in row.before.notes]


# The page about two steps side by side: their figures, and what changed.


_BARS = "less | more"
_FIRST = 12
"""How many parts a table shows before the others are folded away."""


def difference_report(before: str, after: str, rows: Sequence[StepComparison]) -> Report:
    """The verdict, and for each GPU the figures and the parts that changed."""
    sections = [
        Section(f"gpu-{number}", f"On {row.after.gpu}", _content(row), short=row.after.gpu)
        for number, row in enumerate(rows)
    ]
    names = element("p", f"A: {before}. B: {after}.", class_="lead")
    answer = joined(part for row in rows for part in _verdict(row))
    return Report(f"{before} and {after}", answer, tuple(sections), names)


def _verdict(row: StepComparison) -> list[str | Html]:
    old, new = row.before.seconds, row.after.seconds
    changed = change(old, new)
    if not changed:
        return [f"On {row.after.gpu} both take {duration(new)}. "]
    return [
        f"On {row.after.gpu} B takes {duration(new)} instead of {duration(old)}: ",
        element("strong", changed),
        ". ",
    ]


def _content(row: StepComparison) -> Html:
    figures = html_table(
        from_rows(figure_lines(row), "<", "A", "B", "change"), caption="Both steps"
    )
    parts: list[Html] = [figures]
    for heading, changed in tables_of(row):
        title = f"GPU time {heading}"
        parts += [element("h3", title), _parts(title, changed[:_FIRST])]
        if rest := changed[_FIRST:]:
            parts.append(folded(f"{len(rest)} more", _parts(f"{title}, the rest", rest)))
    return joined([*parts, bullets(map(sentence, [*said_remarks(row), *new_notes(row)]))])


def _parts(caption: str, changed: Sequence[PartChange]) -> Html:
    most = max(abs(part.delta_s) for part in changed) or 1.0

    def drawn(column: Column, row: int) -> Html | None:
        return _bar(changed[row], most) if column.name == _BARS else None

    bars = Column(_BARS, [""] * len(changed), left=True)
    columns = [*fitting(PARTS.columns(changed), ANY_WIDTH), bars]
    return html_table(columns, caption=caption, sorts=len(changed) > 1, drawn=drawn)


def _bar(part: PartChange, most_s: float) -> Html:
    """A bar to the left of the middle for less time, to the right for more."""
    share = 50 * abs(part.delta_s) / most_s
    left = 50 - share if part.delta_s < 0 else 50.0
    text = title_of(f"{duration(part.before_s)} before, {duration(part.after_s)} now")
    class_ = "bad" if part.delta_s > 0 else "good"
    rect = empty_element(
        "rect", x=f"{left:.2f}%", width=f"{share:.2f}%", y="2", height="12", rx="2", class_=class_
    )
    middle = empty_element("line", x1="50%", x2="50%", y1="0", y2="16", class_="grid")
    return element("svg", text, middle, rect, class_="range", height="16", aria_hidden="true")


# Several steps side by side on each GPU: one column for each step.


@dataclass(frozen=True)
class StepsOnGpu:
    """Several steps on one GPU, in the order in which they were named."""

    gpu: str
    names: tuple[str, ...]
    steps: tuple[StepSummary, ...]

    @property
    def fastest(self) -> str:
        """The name of the step that takes the least time for a sample, or for a step."""
        return min(zip(self.names, self.steps, strict=True), key=lambda named: _cost_s(named[1]))[0]


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
    notes_by_name = [(row.gpu, [note for step in row.steps for note in step.notes]) for row in rows]
    return Group(*parts, *notes(notes_by_gpu(notes_by_name)))


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


# The page about several steps side by side.


def side_by_side_report(rows: Sequence[StepsOnGpu]) -> Report:
    """The fastest step on each GPU, and the figures of all."""
    named = zip(letters(rows[0]), rows[0].names, strict=True)
    names = element("p", " ".join(f"{letter}: {name}." for letter, name in named), class_="lead")
    sections = [
        Section(
            f"gpu-{number}",
            f"On {row.gpu}",
            joined(
                [
                    html_table(step_columns(row), caption="The steps"),
                    bullets(
                        sentence(note)
                        for note in dict.fromkeys(n for step in row.steps for n in step.notes)
                    ),
                ]
            ),
            short=row.gpu,
        )
        for number, row in enumerate(rows)
    ]
    answer = joined(f"{verdict(row)} " for row in rows)
    return Report(" and ".join(rows[0].names), answer, tuple(sections), names)


# The verdicts on checked steps: for a terminal, as Markdown for a review, and as data.


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


def _check_verdict(row: StepVerdict) -> str:
    """The verdict in words: `worse: time, memory`."""
    if row.problem:
        return f"{Outcome.UNKNOWN}: {row.problem}"
    parts = [
        f"{outcome}: {', '.join(names)}"
        for outcome in (Outcome.WORSE, Outcome.BETTER, Outcome.UNKNOWN)
        if (names := row.named(outcome))
    ]
    return "; ".join(parts) or str(Outcome.WITHIN)


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
    Field("", _check_verdict, title="verdict"),
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
    cause = remarks([row.cause]) if row.cause else []
    figures = shown(FIGURES.columns(row.figures), width)
    parts = [heading, "", *figures, *changes(row.comparison, width), *cause, ""]
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
    parts = []
    if worse:
        parts.append(f"{len(worse)} of {total} got worse than the tolerance allows")
    if choice_lines(result):
        parts.append("the choice of the GPU changed")
    if unknown:
        parts.append(f"nothing can be said about {len(unknown)} of {total}")
    if better and not worse:
        parts.append(f"{len(better)} of {total} got better: wavecast check --update keeps that")
    return "; ".join(parts) or f"all {total} within tolerance"


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
            message = f"{row.target}: {place.text}{added}"
            lines.setdefault(_workflow_command("warning", message, at | {"title": "Wavecast"}))
    for row in _worth_details(result.steps):
        if row.outcome in FAILING:
            message = f"{row.target} on {row.gpu} got {_check_verdict(row)}"
            lines.setdefault(_workflow_command("error", message, {"title": "Wavecast"}))
    for changed in choice_lines(result):
        lines.setdefault(_workflow_command("error", changed, {"title": "Wavecast"}))
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
    remarks = [*renamed_modules(row.comparison), *row.comparison.remarks, row.cause]
    yield from (f"- {markdown_text(text)}" for text in remarks if text)
    yield ""
    yield "</details>"


def written(path: Path, steps: Mapping[str, Mapping[str, StepSummary]]) -> RenderableType:
    """What an update wrote: the steps with their times."""
    rows = [
        (target, gpu, duration(step.seconds), or_unknown(step.peak_bytes, memory))
        for target, gpus in steps.items()
        for gpu, step in gpus.items()
    ]
    names = line(f"wrote {path}: {listed(list(steps))}")
    return Group(table(from_rows(rows, "<target", "<GPU", "step", "memory")), "", names)
