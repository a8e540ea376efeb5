"""Drawings that keep the size of their letters at any width: positions are percentages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from wavecast.report.html.markup import Html, element, empty_element, escaped

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
