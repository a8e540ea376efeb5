"""Tables of text that fit a width: the columns least needed are left out, none is cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

_GAP = 3
"""Columns between two cells."""


@dataclass(frozen=True)
class Column:
    """A heading and what is under it."""

    name: str
    cells: Sequence[str]
    rank: int = 0
    """Which goes first when it gets narrow: the highest. Those of rank 0 stay."""
    left: bool = False


def fitting(columns: Iterable[Column], width: int) -> list[Column]:
    """The columns that fit a width, in their order; what is unknown in all rows is left out."""
    kept = [c for c in columns if c.rank == 0 or any(cell not in ("", "?") for cell in c.cells)]
    while width_of(kept) > width and any(column.rank for column in kept):
        kept.remove(max(kept, key=lambda column: column.rank))
    return kept


def width_of(columns: Sequence[Column]) -> int:
    """How wide the table of these columns is."""
    cells = [max(map(len, (column.name, *column.cells))) for column in columns]
    return sum(cells) + _GAP * (len(cells) - 1)


def table(columns: Sequence[Column], styles: Sequence[str] = ()) -> Table:
    """The table of these columns; `styles` are those of its rows."""
    shown = empty()
    for column in columns:
        shown.add_column(column.name, justify="left" if column.left else "right", no_wrap=True)
    rows = zip(*(column.cells for column in columns), strict=True)
    for index, row in enumerate(rows):
        shown.add_row(*map(Text, row), style=styles[index] if styles else None)
    return shown


def empty() -> Table:
    """A table in our looks: a line under the headings, nothing around."""
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
