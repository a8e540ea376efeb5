"""The verdict in a sentence, and the GPUs side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from wavecast.footprint.memory import Memory
from wavecast.hardware.devices import Device
from wavecast.planning.candidates import comparable
from wavecast.planning.cost import Ranged, TrainingCost
from wavecast.planning.prices import Price, PriceBook
from wavecast.planning.selection import Candidate, tells_apart
from wavecast.report.costs import hourly, long_range, money_range
from wavecast.report.html.axes import title_of
from wavecast.report.html.markup import Html, element, empty_element, html_table, joined
from wavecast.report.priced_steps import offer_for
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
from wavecast.steps.player import Timetable
from wavecast.steps.prediction import Prediction

_BOUNDS = {
    "gpu": "the GPU sets the pace",
    "host": "the host sets the pace: the GPU waits for it",
    "both": "host and GPU wait for each other",
}


def verdict(candidates: Sequence[ComparedStep]) -> Html:
    """The answer in a sentence or three."""
    order = ranked(candidates)
    if not order:
        return _nothing_fits(candidates)
    if len(candidates) == 1:
        return _of_one(order[0])
    return joined([*_of_several(candidates, order), *_too_small(candidates)])


def _strong(text: str) -> Html:
    return element("strong", text)


def _of_one(one: ComparedStep) -> Html:
    parts = ["One step takes about ", _strong(duration(one.seconds)), f" on {one.name}"]
    if one.low_s is not None:
        parts.append(f" (range {time_range(one.low_s, one.high_s)})")
    parts.append(f"; {one.remark or _BOUNDS[one.bound_by]}{_whole(one)}.")
    if one.memory is not None:
        needed = memory(one.memory.needed_bytes)
        parts += [" It ", _strong("fits"), f": it needs {needed} of {_capacity(one)}."]
    return joined(parts)


def _whole(one: ComparedStep) -> str:
    """What the whole training takes there, to end a sentence; nothing if it was not asked for."""
    if one.training is None:
        return ""
    usd = one.training.usd
    paid = "" if usd is None else f" and {money(usd.value)}"
    return f"; the whole training takes {long_duration(one.training.seconds.value)}{paid}"


def _of_several(
    candidates: Sequence[ComparedStep], order: Sequence[ComparedStep]
) -> list[str | Html]:
    first, close, value = order[0], cannot_be_told_apart(candidates), best_value(candidates)
    speed = or_unknown(first.throughput, lambda rate: f"{count(rate)} {first.unit}/s")
    told = "" if first.throughput is None else f", {speed}"
    parts: list[str | Html] = [
        *(_strong(first.name), " is the fastest of "),
        f"{len(candidates)}: {duration(first.seconds)} a step{told}{_whole(first)}.",
    ]
    if close:
        names = listed([one.name for one in close])
        parts.append(f" It cannot be told apart from {names}: their ranges overlap too far.")
    if value is not None and value.per_usd is not None:
        most = f"{quantity(value.per_usd)} {value.unit} per dollar"
        if value is first:
            parts.append(f" It also gives most for the money: {most}.")
        else:
            parts += [
                " ",
                _strong(value.name),
                f" gives most for the money: {most}{_whole(value)}.",
            ]
    return parts


def _too_small(candidates: Sequence[ComparedStep]) -> list[str | Html]:
    names = [one.name for one in candidates if one.fits is False]
    return [f" The step does not fit on {listed(names)}."] if names else []


def _nothing_fits(candidates: Sequence[ComparedStep]) -> Html:
    if all(one.fits is False for one in candidates):
        needed = min(one.memory.needed_bytes for one in candidates if one.memory is not None)
        names = "this GPU" if len(candidates) == 1 else f"none of {len(candidates)} GPUs"
        does = "does not fit on" if len(candidates) == 1 else "fits on"
        parts = ["The step ", _strong(f"{does} {names}"), f": it needs {memory(needed)}."]
        return joined(parts)
    return joined(
        [
            _strong("No GPU can be ranked"),
            ": too much of the step could not be predicted, so its times are lower bounds.",
        ]
    )


def _capacity(one: ComparedStep) -> str:
    return memory(one.device.memory_bytes)


def tiles(one: ComparedStep) -> Html:
    """The main figures of one candidate, large."""
    shown = [("step", _step(one), time_range(one.low_s, one.high_s) if one.low_s else "no range")]
    if one.rate is not None:
        shown.append(("speed", f"{count(one.rate)}", f"{one.unit}/s"))
    if one.memory is not None:
        fits = {True: "fits", False: "does not fit", None: ""}[one.fits]
        needed = memory(one.memory.needed_bytes)
        shown.append(("memory", needed, f"of {_capacity(one)}, {fits}"))
    if one.per_usd is not None:
        hourly = f"at ${one.usd_per_hour:.2f} an hour"
        shown.append((f"{one.unit} per dollar", quantity(one.per_usd), hourly))
    if one.training is not None:
        whole = one.training
        shown.append(("whole training", long_duration(whole.seconds.value), _or_no(whole.seconds)))
        if whole.usd is not None:
            shown.append(("its cost", money(whole.usd.value), money_range(whole.usd)))
    boxes = [
        element(
            "div", element("dt", what), element("dd", figure), element("dd", more, class_="more")
        )
        for what, figure, more in shown
    ]
    name = element("p", one.name, class_="of")
    return element("div", name, element("dl", *boxes), class_="tiles")


def _or_no(seconds: Ranged) -> str:
    return "no range" if seconds.low is None else long_range(seconds)


def _step(one: ComparedStep) -> str:
    return f"{'' if one.is_comparable else '> '}{duration(one.seconds)}"


def comparison(candidates: Sequence[ComparedStep]) -> Html:
    """One row for each candidate, with its range drawn; headings sort."""
    unit = candidates[0].unit
    columns = [
        Column("GPU", [one.name for one in candidates], left=True),
        Column("fits", [_fits(one) for one in candidates], left=True),
        Column("step", [_step(one) for one in candidates]),
        Column("range", [_range(one) for one in candidates], 2, left=True),
        Column(f"{unit}/s", [or_unknown(one.rate, count) for one in candidates], 2),
        Column("$/h", [_hourly(one) for one in candidates], 1),
        Column(f"{unit}/$", [or_unknown(one.per_usd, quantity) for one in candidates], 2),
        Column("memory", [_memory(one) for one in candidates], 2),
        Column("bound by", [one.bound_by for one in candidates], 2, left=True),
    ]
    ends = _ends(candidates)

    def drawn(column: Column, row: int) -> Html | None:
        one = candidates[row]
        if column.name == "fits" and one.fits is not None:
            return _light(one.fits)
        return _range_bar(one, ends) if column.name == "range" and one.is_comparable else None

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


def _ends(candidates: Sequence[ComparedStep]) -> tuple[float, float]:
    """The shortest and the longest time that is drawn, both logarithms."""
    low = min(one.low_s or one.seconds for one in candidates)
    high = max(one.high_s or one.seconds for one in candidates)
    return math.log(low or high), math.log(high)


def _range_bar(one: ComparedStep, drawn: tuple[float, float]) -> Html:
    """A line from the low to the high end, with a dot at the predicted time.

    The scale is logarithmic, so that ranges of fast and of slow GPUs can be compared.
    """
    low, high = drawn

    def at(seconds: float) -> str:
        share = (math.log(seconds) - low) / (high - low) if seconds and high > low else 0.5
        return f"{4 + 92 * min(1.0, max(0.0, share)):.2f}%"

    parts = []
    if one.low_s is not None and one.high_s is not None:
        ends = {"x1": at(one.low_s), "x2": at(one.high_s), "y1": "8", "y2": "8"}
        parts.append(empty_element("line", class_="whisker", **ends))
    parts.append(empty_element("circle", cx=at(one.seconds), cy="8", r="4.5", class_="dot"))
    text = title_of(f"{duration(one.seconds)}, {time_range(one.low_s, one.high_s)}")
    return element("svg", text, *parts, class_="range", height="16", aria_hidden="true")


def _hourly(one: ComparedStep) -> str:
    return hourly(one.offer) if one.gpus == 1 else or_unknown(one.usd_per_hour, "{:.2f}".format)


def _range(one: ComparedStep) -> str:
    return time_range(one.low_s, one.high_s) if one.is_comparable else UNKNOWN


def _fits(one: ComparedStep) -> str:
    return {True: "yes", False: "no", None: UNKNOWN}[one.fits]


def _memory(one: ComparedStep) -> str:
    if one.memory is None:
        return UNKNOWN
    share = one.memory.needed_bytes / one.device.memory_bytes
    return f"{memory(one.memory.needed_bytes)} ({percent(share)})"


# What is compared on a page: a step on one GPU, or spread over several of one model.


@dataclass(frozen=True)
class ComparedStep:
    """One step on one or several GPUs, with what a page says about it."""

    name: str
    """The GPUs: "l4" or "8 x l4"."""
    device: Device
    seconds: float
    low_s: float | None
    high_s: float | None
    throughput: float | None
    """Samples (`unit`) per second of all GPUs together. None when unknown."""
    unit: str
    offer: Price | None
    """The cheapest known offer of the GPUs. None when unknown."""
    memory: Memory | None
    """The memory of the fullest GPU. None when unknown."""
    bound_by: str
    is_comparable: bool
    """Whether enough of the step was predicted to rank it."""
    timetables: Callable[[], Mapping[str, Timetable]]
    """A function that gives the timetable of each distinct rank, by what it is called."""
    gpus: int = 1
    remark: str = ""
    """What the verdict adds; empty to say what the step is bound by."""
    training: TrainingCost | None = None
    """What the whole training takes. None if it was not asked for, or cannot run."""

    @property
    def usd_per_hour(self) -> float | None:
        """The price of all GPUs; of one, its share of the machine. None when unknown."""
        if self.offer is None:
            return None
        return self.offer.usd_per_hour if self.gpus == 1 else self.offer.usd_per_hour_of(self.gpus)

    @property
    def rate(self) -> float | None:
        """The throughput; None where the step does not fit, or too little of it was predicted."""
        return self.throughput if self.is_comparable and self.fits is not False else None

    @property
    def fits(self) -> bool | None:
        """Whether the step fits in memory. None when unknown."""
        return None if self.memory is None else self.memory.fits

    @property
    def per_usd(self) -> float | None:
        """Samples per dollar. None when the price or the throughput is unknown."""
        if self.usd_per_hour is None or self.rate is None:
            return None
        return self.rate * 3600 / self.usd_per_hour


def of_prediction(
    step: Prediction, book: PriceBook, training: TrainingCost | None = None
) -> ComparedStep:
    """A step, with the cheapest offer of a table of prices, and what a whole training takes."""
    speed = f"each GPU has {percent(step.efficiency)} of the speed of one alone"
    return ComparedStep(
        name=step.name,
        device=step.device,
        seconds=step.seconds,
        low_s=step.low_s,
        high_s=step.high_s,
        throughput=step.throughput,
        unit=step.trace.unit,
        offer=offer_for(step, book),
        memory=step.memory,
        bound_by=step.bound_by,
        is_comparable=comparable(step),
        timetables=lambda: step.timetables,
        gpus=step.gpus,
        remark="" if step.parallel is None else speed,
        training=training,
    )


def ranked(steps: Sequence[ComparedStep]) -> list[ComparedStep]:
    """Those that can be chosen, fastest first: they may fit, and enough of them was predicted."""
    usable = (one for one in steps if one.is_comparable and one.fits is not False)
    return sorted(usable, key=lambda one: -(one.throughput or 1 / one.seconds))


def best_value(steps: Sequence[ComparedStep]) -> ComparedStep | None:
    """The one that does most work for a dollar; None without prices."""
    priced = [one for one in ranked(steps) if one.per_usd is not None]
    return max(priced, key=lambda one: one.per_usd or 0.0, default=None)


def most_wanted(steps: Sequence[ComparedStep]) -> list[ComparedStep]:
    """The fastest first, then the one that gives most for the money, then the others."""
    value = best_value(steps)
    order = ranked(steps)
    first = [*order[:1], *([] if value is None or value in order[:1] else [value])]
    chosen = {id(one) for one in first}
    return [*first, *(one for one in steps if id(one) not in chosen)]


def cannot_be_told_apart(steps: Sequence[ComparedStep]) -> list[ComparedStep]:
    """Those that may be as fast as the fastest (`planning.selection` has the rule)."""
    order = ranked(steps)
    if not order or order[0].low_s is None:
        return []
    first, *others = order
    return [one for one in others if one.low_s is not None and not _is_slower(first, one)]


def _is_slower(first: ComparedStep, other: ComparedStep) -> bool:
    pairs = [(Candidate(one.device, one.gpus, None), _per_sample(one)) for one in (first, other)]
    (fast, less), (slow, more) = pairs
    return tells_apart(fast, slow, less, more)


def _per_sample(one: ComparedStep) -> Ranged:
    """The time for a sample, or for a step where samples are not counted."""
    samples = one.throughput * one.seconds if one.throughput else 1.0
    return Ranged(one.seconds, one.low_s, one.high_s).times(1 / samples)
