"""HTML in which every text is escaped: names of ops and modules come from files of others."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
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


# Drawings that keep the size of their letters at any width: positions are percentages.


HEIGHT = 260
"""The height of a drawing's plot, in pixels."""
_BELOW = 26
"""Room for the labels under the plot, in pixels."""
_FINE = 1000.0
"""The units of a nested drawing, which is stretched to the plot."""


@dataclass(frozen=True)
class PlotAxis:
    """One axis of a plot: its ends, marks and their labels."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    is_log: bool = False

    def share(self, value: float) -> float:
        """Where a value is between the ends, 0 to 1."""
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = (math.log10(max(number, 1e-300)) for number in (value, low, high))
        return min(1.0, max(0.0, (value - low) / (high - low or 1.0)))


def linear_axis(high: float, label: Callable[[float], str], *, binary: bool = False) -> PlotAxis:
    """An axis from 0 to at least `high`, with three to six marks at round numbers."""
    step = _round_step(high / 4 or 1.0, binary)
    marks = [index * step for index in range(math.ceil(high / step - 1e-9) + 1)]
    return PlotAxis(0.0, max(high, marks[-1]), tuple((mark, label(mark)) for mark in marks))


def log_axis(low: float, high: float, label: Callable[[float], str]) -> PlotAxis:
    """A logarithmic axis with marks at powers of ten, all or every second, third, ... one."""
    first = math.floor(math.log10(low) + 1e-9)
    last = max(math.ceil(math.log10(high) - 1e-9), first + 1)
    every = max(1, math.ceil((last - first) / 7))
    marks = [10.0**power for power in range(first, last + 1, every)]
    ticks = tuple((mark, label(mark)) for mark in marks)
    return PlotAxis(10.0**first, 10.0**last, ticks, is_log=True)


def _round_step(step: float, binary: bool) -> float:
    if binary:  # of bytes: 1, 2, 4, ... of any unit
        return float(2 ** math.ceil(math.log2(step)))
    size = 10 ** math.floor(math.log10(step))
    return float(
        next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= step * 0.999)
    )


@dataclass(frozen=True)
class Plot:
    """Two axes, and what is drawn between them."""

    across: PlotAxis
    up: PlotAxis
    parts: tuple[Html, ...] = ()
    height: int = HEIGHT
    has_long_names: bool = False
    """Whether the marks of the axis up are names of rows, which need more room than numbers."""

    def x(self, value: float) -> str:
        """The place of a value along the plot: `12.5%`."""
        return f"{100 * self.across.share(value):.2f}%"

    def y(self, value: float) -> float:
        """The place of a value from the top, in pixels."""
        return self.height * (1 - self.up.share(value))

    def with_parts(self, parts: Iterable[Html]) -> Plot:
        """The plot with more drawn over it."""
        return replace(self, parts=(*self.parts, *parts))

    def area(self, xs: Sequence[float], tops: Sequence[float], bottoms: Sequence[float]) -> str:
        """The corners of an area between two lines, for `stretched`."""
        there = [self._fine(x, top) for x, top in zip(xs, tops, strict=True)]
        back = [self._fine(x, bottom) for x, bottom in zip(xs, bottoms, strict=True)]
        return " ".join([*there, *reversed(back)])

    def steps(self, xs: Sequence[float], tops: Sequence[float], bottoms: Sequence[float]) -> str:
        """The outline of an area whose height stays until the next x, for `stretched`."""
        across = [round(_FINE * self.across.share(x)) for x in xs]
        upper, lower = (
            [round(_FINE * (1 - self.up.share(y))) for y in ys] for ys in (tops, bottoms)
        )
        moves = [f"M{across[0]} {upper[0]}"]
        for i in range(1, len(across)):
            moves += [_move("h", across[i] - across[i - 1]), _move("v", upper[i] - upper[i - 1])]
        moves.append(_move("v", lower[-1] - upper[-1]))
        for i in range(len(across) - 1, 0, -1):
            moves += [_move("v", lower[i - 1] - lower[i]), _move("h", across[i - 1] - across[i])]
        return "".join(moves) + "z"

    def path(self, xs: Sequence[float], ys: Sequence[float]) -> str:
        """The points of a line, for `stretched`."""
        return " ".join(self._fine(x, y) for x, y in zip(xs, ys, strict=True))

    def _fine(self, x: float, y: float) -> str:
        return f"{_FINE * self.across.share(x):.1f},{_FINE * (1 - self.up.share(y)):.1f}"

    def stretched(self, *parts: Html) -> Html:
        """Areas and lines, stretched over the whole plot."""
        return element(
            "svg",
            *parts,
            viewBox=f"0 0 {_FINE:.0f} {_FINE:.0f}",
            preserveAspectRatio="none",
            width="100%",
            height=str(self.height),
        )

    def level(self, y_px: float, class_: str) -> Html:
        """A line across the plot."""
        return empty_element("line", x1="0", x2="100%", y1=y_px, y2=y_px, class_=class_)

    def upright(self, x: float, class_: str, top_px: float = 0.0) -> Html:
        """A line from the bottom of the plot upwards."""
        at, bottom = self.x(x), float(self.height)
        return empty_element("line", x1=at, x2=at, y1=top_px, y2=bottom, class_=class_)

    def side(self, x: float) -> str:
        """How a text at x is anchored, so that it stays in the plot."""
        share = self.across.share(x)
        return "first" if share < 0.04 else "last" if share > 0.96 else "middle"

    def names(self, points: Iterable[tuple[float, float, str]], class_: str) -> Iterable[Html]:
        """Names of points that do not cover each other.

        Args:
            points: where each is across, the height of its name in pixels, and its name.
            class_: what the names look like.
        """
        placed: list[tuple[float, float]] = []
        for x, y_px, name in points:
            across = self.across.share(x)
            if all(abs(y_px - other) > 14 or abs(across - at) > 0.32 for at, other in placed):
                placed.append((across, y_px))
                side = "first" if across < 0.2 else "last"
                yield element("text", name, x=self.x(x), y=y_px, class_=f"{side} {class_}")

    def drawn(self, label: str, under: str = "") -> Html:
        """The whole drawing, with a text for those who cannot see it.

        Args:
            label: what it shows, in a sentence or two.
            under: what the axis across means.
        """
        height = str(self.height + _BELOW)
        beside = [
            element("text", text, x="100%", y=min(self.height - 1.0, max(10.0, self.y(value) + 4)))
            for value, text in self.up.ticks
        ]
        if self.has_long_names:
            lines = [self.upright(value, "grid") for value, _ in self.across.ticks]
        else:
            lines = [self.level(self.y(value), "grid") for value, _ in self.up.ticks]
        below = [
            element("text", text, x=self.x(value), y=self.height + 17.0, class_=self.side(value))
            for value, text in self.across.ticks
        ]
        plot = element("svg", *lines, *self.parts, *below, height=height, class_="plot")
        room = "beside wide" if self.has_long_names else "beside"
        scale = element("svg", *beside, height=height, class_=room, aria_hidden="true")
        name = element("p", under, class_="under", aria_hidden="true") if under else Html()
        return element("div", scale, plot, name, class_="chart", role="img", aria_label=label)


def _move(direction: str, length: int) -> str:
    return f"{direction}{length}" if length else ""


def label_at(plot: Plot, x: float, y_px: float, text: str, class_: str = "") -> Html:
    """A text in the plot, beginning or ending at x, whichever has more room."""
    side = "first" if plot.across.share(x) < 0.5 else "last"
    return element("text", text, x=plot.x(x), y=y_px, class_=f"{side} {class_}".strip())


def title_of(text: str) -> Html:
    """The text that a pointer over a part of a drawing shows."""
    return Html(f"<title>{escaped(text)}</title>")


def bar(parts: Sequence[tuple[float, str, str]], label: str, height: int = 14) -> Html:
    """A horizontal bar of parts: the share of the width of each, its class and its title."""
    drawn, at = [], 0.0
    for share, class_, text in parts:
        width = max(0.0, min(share, 1 - at))
        if width > 0:
            drawn.append(
                element(
                    "rect",
                    title_of(text),
                    x=f"{100 * at:.3f}%",
                    width=f"{100 * width:.3f}%",
                    y="0",
                    height=str(height),
                    class_=class_,
                )
            )
        at += width
    hidden = {"aria_hidden": "true"} if not label else {"role": "img", "aria_label": label}
    return element("svg", *drawn, class_="bar", height=str(height), **hidden)
