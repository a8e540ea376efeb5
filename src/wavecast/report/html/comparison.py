"""The verdict in a sentence, and the GPUs side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

from wavecast.planning.candidates import in_order
from wavecast.planning.cost import Ranged
from wavecast.planning.selection import Candidate, tells_apart
from wavecast.report.costs import hourly, long_range, money_range
from wavecast.report.html.axes import title_of
from wavecast.report.html.markup import Html, element, empty_element, html_table, joined
from wavecast.report.priced_steps import PricedStep
from wavecast.report.tables import ANY_WIDTH, Column, fitting, listed
from wavecast.report.units import (
    UNKNOWN,
    count,
    duration,
    long_duration,
    memory,
    money,
    or_unknown,
    percent,
    quantity,
    time_range,
)
from wavecast.steps.prediction import Prediction

BOUNDS = {
    "gpu": "the GPU sets the pace",
    "host": "the host sets the pace: the GPU waits for it",
    "both": "host and GPU wait for each other",
}
"""What is said of a step by what it is bound by."""
_FITS = {True: "yes", False: "no", None: UNKNOWN}


def verdict(candidates: Sequence[PricedStep]) -> Html:
    """The answer in a sentence or three."""
    order = ranked(candidates)
    if not order:
        return _nothing_fits(candidates)
    if len(candidates) == 1:
        return _of_one(order[0])
    return joined([*_of_several(candidates, order), *_too_small(candidates)])


def strong(text: str) -> Html:
    """A text that stands out."""
    return element("strong", text)


def _of_one(row: PricedStep) -> Html:
    step = row.step
    parts = ["One step takes about ", strong(duration(step.seconds)), f" on {row.named}"]
    if step.low_s is not None:
        parts.append(f" (range {time_range(step.low_s, step.high_s)})")
    speed = f"each GPU has {percent(step.efficiency)} of the speed of one alone"
    parts.append(f"; {BOUNDS[step.bound_by] if step.parallel is None else speed}{_whole(row)}.")
    if step.memory is not None:
        needed = memory(step.memory.needed_bytes)
        parts += [" It ", strong("fits"), f": it needs {needed} of {_capacity(row)}."]
    return joined(parts)


def _whole(row: PricedStep) -> str:
    """What the whole training takes there, to end a sentence; nothing if it was not asked for."""
    if row.cost is None:
        return ""
    usd = row.cost.usd
    paid = "" if usd is None else f" and {money(usd.value)}"
    return f"; the whole training takes {long_duration(row.cost.seconds.value)}{paid}"


def _of_several(candidates: Sequence[PricedStep], order: Sequence[PricedStep]) -> list[str | Html]:
    first, close, value = order[0], cannot_be_told_apart(candidates), best_value(candidates)
    rate = first.step.throughput
    speed = "" if rate is None else f", {count(rate)} {first.unit}/s"
    parts: list[str | Html] = [
        *(strong(first.named), " is the fastest of "),
        f"{len(candidates)}: {duration(first.step.seconds)} a step{speed}{_whole(first)}.",
    ]
    if close:
        names = listed([row.named for row in close])
        parts.append(f" It cannot be told apart from {names}: their ranges overlap too far.")
    if value is not None and value.rate_per_usd is not None:
        most = f"{quantity(value.rate_per_usd)} {value.unit} per dollar"
        if value is first:
            parts.append(f" It also gives most for the money: {most}.")
        else:
            gives = f" gives most for the money: {most}{_whole(value)}."
            parts += [" ", strong(value.named), gives]
    return parts


def _too_small(candidates: Sequence[PricedStep]) -> list[str | Html]:
    names = [row.named for row in candidates if not row.may_fit]
    return [f" The step does not fit on {listed(names)}."] if names else []


def _nothing_fits(candidates: Sequence[PricedStep]) -> Html:
    sizes = [row.step.memory.needed_bytes for row in candidates if row.step.memory is not None]
    if not any(row.may_fit for row in candidates):
        alone = len(candidates) == 1
        where = "does not fit on this GPU" if alone else f"fits on none of {len(candidates)} GPUs"
        return joined(["The step ", strong(where), f": it needs {memory(min(sizes))}."])
    return joined(
        [
            strong("No GPU can be ranked"),
            ": too much of the step could not be predicted, so its times are lower bounds.",
        ]
    )


def _capacity(row: PricedStep) -> str:
    return memory(row.step.device.memory_bytes)


def tiles(row: PricedStep) -> Html:
    """The main figures of one candidate, large."""
    step, whole = row.step, row.cost
    spread = time_range(step.low_s, step.high_s) if step.low_s else "no range"
    figures = [("step", row.seconds, spread)]
    if row.rate is not None:
        figures.append(("speed", count(row.rate), f"{row.unit}/s"))
    if step.memory is not None:
        fits = {True: "fits", False: "does not fit", None: ""}[step.fits]
        needed = memory(step.memory.needed_bytes)
        figures.append(("memory", needed, f"of {_capacity(row)}, {fits}"))
    if row.rate_per_usd is not None:
        hourly = f"at ${row.usd_per_hour:.2f} an hour"
        figures.append((f"{row.unit} per dollar", quantity(row.rate_per_usd), hourly))
    if whole is not None:
        ends = "no range" if whole.seconds.low is None else long_range(whole.seconds)
        figures.append(("whole training", long_duration(whole.seconds.value), ends))
        if whole.usd is not None:
            figures.append(("its cost", money(whole.usd.value), money_range(whole.usd)))
    return figure_boxes(row.named, figures)


def figure_boxes(name: str, figures: Sequence[tuple[str, str, str]]) -> Html:
    """Figures of something in large letters: what each is, its value, and more about it."""
    boxes = [
        element(
            "div", element("dt", what), element("dd", figure), element("dd", more, class_="more")
        )
        for what, figure, more in figures
    ]
    return element("div", element("p", name, class_="of"), element("dl", *boxes), class_="tiles")


def comparison(candidates: Sequence[PricedStep]) -> Html:
    """One row for each candidate, with its range drawn; headings sort."""
    unit = candidates[0].unit
    columns = [
        Column("GPU", [row.named for row in candidates], left=True),
        Column("fits", [_FITS[row.step.fits] for row in candidates], left=True),
        Column("step", [row.seconds for row in candidates]),
        Column("range", [row.span or UNKNOWN for row in candidates], 2, left=True),
        Column(f"{unit}/s", [or_unknown(row.rate, count) for row in candidates], 2),
        Column("$/h", [_hourly(row) for row in candidates], 1),
        Column(f"{unit}/$", [or_unknown(row.rate_per_usd, quantity) for row in candidates], 2),
        Column("memory", [_memory(row) for row in candidates], 2),
        Column("bound by", [row.step.bound_by for row in candidates], 2, left=True),
    ]
    ends = _ends(candidates)

    def drawn(column: Column, number: int) -> Html | None:
        row = candidates[number]
        if column.name == "fits" and row.step.fits is not None:
            return _light(row.step.fits)
        is_drawn = column.name == "range" and row.is_comparable
        return _range_bar(row.step, ends) if is_drawn else None

    return html_table(
        fitting(columns, ANY_WIDTH),
        caption="The step on each GPU",
        sorts=len(candidates) > 1,
        drawn=drawn,
    )


def _light(is_good: bool) -> Html:
    """A green or a red dot before a word."""
    dot = empty_element("circle", cx="4", cy="4", r="4", class_="good" if is_good else "bad")
    return element("svg", dot, class_="light", width="8", height="8", aria_hidden="true")


def _ends(candidates: Sequence[PricedStep]) -> tuple[float, float]:
    """The shortest and the longest time that is drawn, both logarithms."""
    low = min(row.step.low_s or row.step.seconds for row in candidates)
    high = max(row.step.high_s or row.step.seconds for row in candidates)
    return math.log(low or high), math.log(high)


def _range_bar(step: Prediction, ends: tuple[float, float]) -> Html:
    """A line from the low to the high end, with a dot at the predicted time.

    The scale is logarithmic, so that ranges of fast and of slow GPUs can be compared.
    """
    low, high = ends

    def at(seconds: float) -> str:
        share = (math.log(seconds) - low) / (high - low) if seconds and high > low else 0.5
        return f"{4 + 92 * min(1.0, max(0.0, share)):.2f}%"

    parts = []
    if step.low_s is not None and step.high_s is not None:
        places = {"x1": at(step.low_s), "x2": at(step.high_s), "y1": "8", "y2": "8"}
        parts.append(empty_element("line", class_="whisker", **places))
    parts.append(empty_element("circle", cx=at(step.seconds), cy="8", r="4.5", class_="dot"))
    text = title_of(f"{duration(step.seconds)}, {time_range(step.low_s, step.high_s)}")
    return element("svg", text, *parts, class_="range", height="16", aria_hidden="true")


def _hourly(row: PricedStep) -> str:
    alone = row.step.gpus == 1
    return hourly(row.offer) if alone else or_unknown(row.usd_per_hour, "{:.2f}".format)


def _memory(row: PricedStep) -> str:
    needed = row.step.memory
    if needed is None:
        return UNKNOWN
    share = needed.needed_bytes / row.step.device.memory_bytes
    return f"{memory(needed.needed_bytes)} ({percent(share)})"


def ranked(steps: Sequence[PricedStep]) -> list[PricedStep]:
    """Those that can be chosen, fastest first: they may fit, and enough of them was predicted."""
    usable = [row for row in steps if row.is_comparable and row.may_fit]
    return in_order(usable, lambda row: row.step)


def best_value(steps: Sequence[PricedStep]) -> PricedStep | None:
    """The one that does most work for a dollar; None without prices."""
    priced = [row for row in ranked(steps) if row.rate_per_usd is not None]
    return max(priced, key=lambda row: row.rate_per_usd or 0.0, default=None)


def most_wanted(steps: Sequence[PricedStep]) -> list[PricedStep]:
    """The fastest first, then the one that gives most for the money, then the others."""
    first = [*ranked(steps)[:1], best_value(steps)]
    chosen = {id(row): row for row in first if row is not None}
    return [*chosen.values(), *(row for row in steps if id(row) not in chosen)]


def cannot_be_told_apart(steps: Sequence[PricedStep]) -> list[PricedStep]:
    """Those that may be as fast as the fastest (`planning.selection` has the rule)."""
    order = ranked(steps)
    if not order or order[0].step.low_s is None:
        return []
    first, *others = order
    return [row for row in others if row.step.low_s is not None and not _is_slower(first, row)]


def _is_slower(first: PricedStep, other: PricedStep) -> bool:
    pairs = [
        (Candidate(row.step.device, row.step.gpus, None), _per_sample(row.step))
        for row in (first, other)
    ]
    (fast, less), (slow, more) = pairs
    return tells_apart(fast, slow, less, more)


def _per_sample(step: Prediction) -> Ranged:
    """The time for a sample, or for a step where samples are not counted."""
    samples = step.throughput * step.seconds if step.throughput else 1.0
    return Ranged(step.seconds, step.low_s, step.high_s).times(1 / samples)
