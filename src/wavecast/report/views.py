"""What a result says, once for all media: a terminal shows a view as text, a page as sections.

`text_of` draws a view in a terminal, `html.documents.report_of` as a page, which the web page takes
apart again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from wavecast.report.tables import (
    Column,
    fitting,
    left_out,
    line,
    notes,
    remarks,
    shown,
    table,
    titled,
)

if TYPE_CHECKING:
    from wavecast.report.html.markup import Html


class Strong(str):
    """A part of a sentence that stands out on a page."""

    __slots__ = ()


@dataclass(frozen=True)
class ViewPart:
    """One thing that a result says: a drawing, a table, and sentences."""

    title: str = ""
    """Its heading on a page. Empty: only terminals show it."""
    heading: str | None = None
    """Its heading in a terminal; empty for none. None: only pages show it."""
    columns: Sequence[Column] = ()
    lines: Sequence[str] = ()
    is_plain: bool = False
    """Whether the heading in a terminal is a line of text, not a title."""
    identity: str = ""
    """A word for links to it on a page."""
    lead: str = ""
    """A sentence under the heading of a page."""
    short: str = ""
    """What links on a page call it; its title if not given."""
    caption: str = ""
    """What the table shows, read aloud; its title if not given."""
    sorts: bool = False
    """Whether a click on a heading of the table sorts its rows."""
    drawn: Callable[[Column, int], Html | None] | None = None
    """What a cell shows on a page beside its text, such as a bar."""
    chart: Callable[[], Html] | None = None
    """What a page draws above the table."""


@dataclass(frozen=True)
class View:
    """What a result says."""

    title: str
    verdict: Sequence[str]
    """The answer in a sentence or three, in parts of which some are `Strong`."""
    parts: Sequence[ViewPart]
    heading: str | None = None
    """The title in a terminal, if it is another."""
    has_verdict_line: bool = True
    """Whether a terminal shows the verdict."""
    remarks: Sequence[str] = ()
    """What a terminal says under all parts; `LEFT_OUT` names the columns that it has no room for,
    which are else named under their table. A page has parts of its own for that."""
    notes: Sequence[str] = ()
    """Warnings in a terminal."""


LEFT_OUT = "(left out)"
"""Stands for the line that names the columns that a narrow terminal does not show."""


def text_of(view: View, width: int) -> RenderableType:
    """A view in a terminal of this width."""
    title = view.title if view.heading is None else view.heading
    body: list[RenderableType] = []
    if view.has_verdict_line:
        body += [line("".join(view.verdict)), ""]
    missing: list[str] = []
    for part in view.parts:
        if part.heading is None or not (part.columns or part.lines):
            continue
        rows: list[RenderableType] = []
        if LEFT_OUT in view.remarks and part.columns:
            kept = fitting(part.columns, width)
            missing += left_out(part.columns, kept)
            rows.append(table(kept))
        elif part.columns:
            rows += shown(part.columns, width)
        rows += map(line, part.lines)
        if part.heading and not part.is_plain:
            rows = [titled(part.heading, *rows)]
        elif part.heading:
            rows.insert(0, line(part.heading))
        body += [*rows, ""]
    lines = [text for item in view.remarks for text in (missing if item == LEFT_OUT else [item])]
    body += [*remarks(lines), *notes(view.notes)]
    return titled(title, *body) if title else Group(*body)
