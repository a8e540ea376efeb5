"""HTML in which every text is escaped: names of ops and modules come from files of others."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from wavecast.footprint.memory import KINDS
from wavecast.ops import Kind
from wavecast.report.tables import Column
from wavecast.report.units import one_line


class Html(str):
    """Text that is HTML already. Any other text is escaped before it becomes part of a page."""

    __slots__ = ()


NOTHING = Html()
_LONG = 18
"""Texts with more characters than this may be broken into lines."""

Content = str | Html | float | int | None


def escaped(text: Content) -> Html:
    """The text with markup and control characters made harmless; HTML stays as it is."""
    if isinstance(text, Html):
        return text
    return Html("" if text is None else html.escape(one_line(str(text)), quote=True))


def joined(parts: Iterable[Content]) -> Html:
    """The parts one after the other, each escaped unless it is HTML."""
    return Html("".join(map(escaped, parts)))


def element(name: str, *content: Content, **attributes: str | float | bool | None) -> Html:
    """An element with its content, escaped unless it is HTML.

    Names of attributes may end with an underscore (`class_`), and others stand for hyphens. An
    attribute that is True has no value; one that is False or None is left out.
    """
    return Html(f"<{name}{_attributes(attributes)}>{joined(content)}</{name}>")


def empty_element(name: str, **attributes: str | float | bool | None) -> Html:
    """An element without content, such as a line of a drawing."""
    return Html(f"<{name}{_attributes(attributes)}/>")


def _attributes(attributes: dict[str, str | float | bool | None]) -> str:
    written = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        shown = name.rstrip("_").replace("_", "-")
        text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
        written.append(f" {shown}" if value is True else f' {shown}="{escaped(str(text))}"')
    return "".join(written)


def html_table(
    columns: Sequence[Column],
    *,
    caption: str,
    sorts: bool = False,
    drawn: Callable[[Column, int], Html | None] = lambda column, row: None,
) -> Html:
    """Columns as a table that scrolls by itself where the page is too narrow.

    Args:
        columns: all of the same length; the cells of the first name the rows.
        caption: what the table shows; read aloud, not drawn.
        sorts: whether a click on a heading sorts the rows.
        drawn: what a cell shows beside its text, such as a bar.
    """
    heads = [
        element(
            "th",
            element("button", column.name, type="button") if sorts else column.name,
            scope="col",
            class_=_side(column),
            data_rank=_rank(column),
        )
        for column in columns
    ]
    rows = [
        element(
            "tr", *(_cell(column, row, drawn, index == 0) for index, column in enumerate(columns))
        )
        for row in range(len(columns[0].cells) if columns else 0)
    ]
    whole = element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", element("tr", *heads)),
        element("tbody", *rows),
        class_="sorts" if sorts else None,
    )
    return element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _cell(
    column: Column, row: int, drawn: Callable[[Column, int], Html | None], is_head: bool
) -> Html:
    content = joined([drawn(column, row) or Html(), column.cells[row]])
    is_long = column.left and len(column.cells[row]) > _LONG
    class_ = f"{_side(column)} long" if is_long else _side(column)
    if is_head:
        return element("th", content, scope="row", class_=class_)
    return element("td", content, class_=class_, data_rank=_rank(column))


def _rank(column: Column) -> str | None:
    """The rank of a column, by which a style sheet leaves it out where there is little room."""
    return str(column.rank) if column.rank else None


def _side(column: Column) -> str:
    return "text" if column.left else "number"


def folded(summary: str, *content: Content) -> Html:
    """Content that opens on a click or a key."""
    return element("details", element("summary", summary), *content)


def bullets(lines: Iterable[Content], class_: str | None = None) -> Html:
    """Lines as a list; nothing if there are none."""
    items = [element("li", line) for line in lines]
    return element("ul", *items, class_=class_) if items else Html()


def data_element(identity: str, value: Any) -> Html:
    """Data for the script of a page, in an element from which it cannot break out."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029\x7f":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(f'<script type="application/json" id="{escaped(identity)}">{text}</script>')


# Which color a kind of op or of memory has; the style sheet says what each looks like.


_OTHER = 9
_COLORS = {
    Kind.MATMUL: 0,
    Kind.LINEAR_ALGEBRA: 0,
    Kind.FFT: 0,
    Kind.CONVOLUTION: 1,
    Kind.ATTENTION: 2,
    Kind.RNN: 3,
    Kind.NORM: 4,
    Kind.SOFTMAX: 5,
    Kind.LOSS: 5,
    Kind.REDUCTION: 5,
    Kind.ELEMENTWISE: 6,
    Kind.EMBEDDING: 7,
    Kind.INDEXING: 7,
    Kind.SORT: 7,
    Kind.POOLING: 8,
    Kind.RESAMPLING: 8,
    Kind.OPTIMIZER: 10,
    Kind.COLLECTIVE: 11,
}
_MEMORY = dict(zip(KINDS, (0, 4, 10, 2, 7, 1, 9, 8), strict=True))


def color_of_kind(kind: str) -> int:
    """The number of the color of an op kind; copies, fills and unknown ops share one."""
    return next((color for name, color in _COLORS.items() if name == kind), _OTHER)


def color_of_memory(kind: str) -> str:
    """The class of a kind of memory, one of `KINDS`."""
    return f"c{_MEMORY[kind]}"


def key(entries: dict[str, str]) -> Html:
    """What the colors of a drawing mean: classes by name."""
    return element(
        "ul",
        *(element("li", joined([_swatch(class_), name])) for name, class_ in entries.items()),
        class_="key",
    )


def kind_key(kinds: Iterable[str]) -> Html:
    """What the colors of kinds of ops mean; kinds that share a color are named together."""
    names: dict[int, dict[str, None]] = {}
    for kind in kinds:
        names.setdefault(color_of_kind(kind), {})[kind.replace("_", " ")] = None
    return key({", ".join(named): f"c{color}" for color, named in names.items()})


def _swatch(class_: str) -> Html:
    square = empty_element("rect", width="10", height="10", rx="2", class_=class_)
    return element("svg", square, width="10", height="10", aria_hidden="true")
