"""Text tables that fit a width: the least needed columns are left out, and no cell is cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from wavecast.report.units import UNKNOWN, one_line
from wavecast.traces.graphs import eager_code
from wavecast.traces.step import Trace

ANY_WIDTH = 10**6
"""The width of a medium that needs no column left out, such as a page of HTML."""
_GAP = 3
"""Blanks between two columns."""
_NOTES_SHOWN = 5
_GRAPH_BREAK = "torch.compile: graph break at"
"""How notes begin that list the graph breaks of a compiled step."""
_NAMES_SHOWN = 4


@dataclass(frozen=True)
class Column:
    """One column of a table: its heading and its cells."""

    name: str
    cells: Sequence[str]
    rank: int = 0
    """Columns with the highest rank are left out first. Columns of rank 0 always stay."""
    left: bool = False
    """Whether the column is aligned to the left; numbers are aligned to the right."""
    folds: bool = False
    """Whether long cells continue on a second line when the terminal is narrow."""

    def __post_init__(self) -> None:
        """Make every cell one safe line, before its width is counted."""
        object.__setattr__(self, "name", one_line(self.name))
        object.__setattr__(self, "cells", [one_line(cell) for cell in self.cells])


def from_rows(rows: Iterable[Sequence[str]], *headings: str) -> list[Column]:
    """The columns of a table that is given by rows of cells.

    A heading that begins with `<` is aligned to the left; one that ends with `...` may continue on
    a second line.
    """
    cells = list(zip(*rows, strict=True)) or [()] * len(headings)
    return [
        Column(
            heading.removeprefix("<").removesuffix("..."),
            column,
            left=heading.startswith("<"),
            folds=heading.endswith("..."),
        )
        for heading, column in zip(headings, cells, strict=True)
    ]


def labelled(rows: Sequence[tuple[str, Sequence[str]]], headings: Sequence[str]) -> list[Column]:
    """The columns of a table whose rows have a label each: the labels, then one per heading."""
    return from_rows([(label, *cells) for label, cells in rows], "<", *headings)


def fitting(columns: Iterable[Column], width: int) -> list[Column]:
    """The columns that fit a width, in their order; texts fold where those that stay do not fit.

    Columns with a rank whose cells are all unknown are left out as well.
    """
    kept = [c for c in columns if c.rank == 0 or any(cell not in ("", UNKNOWN) for cell in c.cells)]
    while width_of(kept) > width and any(column.rank for column in kept):
        kept.remove(max(kept, key=lambda column: column.rank))
    if width_of(kept) <= width:
        return kept
    return [replace(column, folds=True) if column.left else column for column in kept]


def shown(
    columns: Sequence[Column], width: int, lines: Iterable[str] = (), styles: Sequence[str] = ()
) -> list[RenderableType]:
    """The table of the columns that fit a width, and lines under it.

    The first line names the columns that were left out for want of width.
    """
    kept = fitting(columns, width)
    under = remarks([*left_out(columns, kept), *lines])
    rows: RenderableType = table(kept, styles)
    return [rows, "", *under] if under else [rows]


def left_out(columns: Sequence[Column], kept: Sequence[Column]) -> list[str]:
    """The line that names the columns that a narrow terminal does not show; none if it has all."""
    there = {column.name for column in kept}
    names = [c.name for c in fitting(columns, ANY_WIDTH) if c.name and c.name not in there]
    return [f"left out, the terminal is too narrow: {', '.join(names)}"] if names else []


def width_of(columns: Sequence[Column]) -> int:
    """The width of the table that these columns make, in characters."""
    widths = [max(map(len, (column.name, *column.cells))) for column in columns]
    return sum(widths) + _GAP * (len(widths) - 1)


def table(columns: Sequence[Column], styles: Sequence[str] = ()) -> Table:
    """The table that these columns make.

    Args:
        columns: all of the same length.
        styles: one style for each row; none if not given.
    """
    rendered = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        rendered.add_column(
            Text(column.name),
            justify="left" if column.left else "right",
            no_wrap=not column.folds,
            overflow="fold" if column.folds else "ellipsis",
        )
    rows = zip(*(column.cells for column in columns), strict=True)
    for index, row in enumerate(rows):
        rendered.add_row(*map(Text, row), style=styles[index] if styles else None)
    return rendered


def markdown(columns: Sequence[Column], headings: Sequence[str] = ()) -> list[str]:
    """The lines of a Markdown table; `headings` replace those of the columns."""
    names = list(headings) or [column.name for column in columns]
    rows = zip(*(column.cells for column in columns), strict=True)
    lines = [names, *rows]
    written = [f"| {' | '.join(map(markdown_text, line))} |" for line in lines]
    return [written[0], f"|{'---|' * len(names)}", *written[1:]]


_SPECIAL = str.maketrans(
    {c: f"\\{c}" for c in "\\`*_[]|"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
)


def markdown_text(text: str) -> str:
    """A text that Markdown shows as it is: names of modules may hold anything."""
    return one_line(text).translate(_SPECIAL)


def titled(title: str, *parts: RenderableType) -> Group:
    """A bold title, an empty line, and what follows."""
    return Group(line(title, "bold"), "", *parts)


def headed(title: str, traces: Iterable[tuple[str, Trace]]) -> str:
    """A title, with what could not be compiled of the step on some GPUs."""
    texts = [(gpu, eager_code(trace)) for gpu, trace in traces]
    on_gpus = notes_by_gpu((gpu, [text]) for gpu, text in texts if text)
    text = texts[0][1] if len({text for _, text in texts}) == 1 else "; ".join(on_gpus)
    return f"{title} ({text})" if text else title


def remarks(lines: Iterable[str]) -> list[Text]:
    """Lines under a table, in a dim style."""
    return [line(text, "dim") for text in lines]


def warnings(lines: Iterable[str]) -> list[Text]:
    """Lines under a table that a reader should not overlook."""
    return [line(text, "yellow") for text in lines]


def line(text: str, style: str = "") -> Text:
    """One line of text in a style; what would control the terminal is shown as escapes."""
    return Text(one_line(text), style=style)


def sentence(text: str) -> str:
    """A line as a sentence: with a capital letter and a full stop."""
    whole = text[:1].upper() + text[1:]
    return whole if whole.endswith((".", "?", "!")) else f"{whole}."


def listed(names: Sequence[str]) -> str:
    """Names with commas, each once: the first four of many, and how many more there are."""
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - _NAMES_SHOWN} more" if len(distinct) > _NAMES_SHOWN else ""
    return ", ".join(distinct[:_NAMES_SHOWN]) + more


def by_gpu(rows: Iterable[tuple[str, str]]) -> str:
    """The text of most GPUs, then those of the others; a row is a GPU's name with its text."""
    gpus: dict[str, list[str]] = {}
    for name, text in rows:
        gpus.setdefault(text, []).append(name)
    most, *others = sorted(gpus.items(), key=lambda item: -len(item[1]))
    return most[0] + "".join(f"; on {listed(names)}: {text}" for text, names in others)


def notes_by_gpu(rows: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """The notes of several GPUs, each once; a row is the name of a GPU with its notes."""
    gpus: dict[str, list[str]] = {}
    for name, texts in rows:
        for note in texts:
            gpus.setdefault(note, []).append(name)
    return [f"on {listed(names)}: {note}" for note, names in gpus.items()]


def notes(texts: Sequence[str]) -> list[Text]:
    """Warnings under a table, one line each: the first five of many, and every graph break."""
    chosen = [n for i, n in enumerate(texts) if i < _NOTES_SHOWN or _GRAPH_BREAK in n]
    shown = [line(f"note: {note}", "yellow") for note in chosen]
    if len(texts) > len(chosen):
        shown.append(Text(f"note: and {len(texts) - len(chosen)} more (--json lists all)"))
    return shown
