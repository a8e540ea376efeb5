"""The page about two steps side by side: their figures, and what changed."""

from __future__ import annotations

from collections.abc import Sequence

from wavecast.report.comparisons import (
    PARTS,
    change,
    figure_lines,
    new_notes,
    said_remarks,
    tables_of,
)
from wavecast.report.html.axes import title_of
from wavecast.report.html.documents import Report, Section
from wavecast.report.html.markup import (
    Html,
    bullets,
    element,
    empty_element,
    folded,
    joined,
    table,
)
from wavecast.report.html.reports import sentence
from wavecast.report.tables import ANY_WIDTH, Column, fitting, from_rows
from wavecast.report.units import duration
from wavecast.steps.comparison import PartChange, StepComparison

_BARS = "less | more"
_FIRST = 12
"""How many parts a table shows before the others are folded away."""


def difference_report(before: str, after: str, rows: Sequence[StepComparison]) -> Report:
    """The verdict, and for each GPU the figures and the parts that changed.

    Args:
        before: the name of the step as it was.
        after: the name of the step as it is.
        rows: one comparison for each GPU.
    """
    sections = [
        Section(f"gpu-{number}", f"On {row.after.gpu}", _content(row), short=row.after.gpu)
        for number, row in enumerate(rows)
    ]
    names = element("p", f"A: {before}. B: {after}.", class_="lead")
    told = joined(part for row in rows for part in _verdict(row))
    return Report(f"{before} and {after}", told, tuple(sections), names)


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
    figures = table(from_rows(figure_lines(row), "<", "A", "B", "change"), caption="Both steps")
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
    return table(columns, caption=caption, sorts=len(changed) > 1, drawn=drawn)


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
