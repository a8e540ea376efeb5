"""Whole pages about predicted steps: results in, one text of HTML out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from wavecast.analysis.generation import TextGeneration
from wavecast.planning.cost import Ranged
from wavecast.planning.layouts import Layout
from wavecast.planning.prices import PriceBook
from wavecast.planning.scaling import KNEE, Scaling
from wavecast.planning.selection import Candidate, tells_apart
from wavecast.report.fields import columns as columns_of
from wavecast.report.html.details import details
from wavecast.report.html.documents import Report, Section
from wavecast.report.html.markup import (
    Html,
    Plot,
    PlotAxis,
    bullets,
    element,
    empty_element,
    html_table,
    joined,
    title_of,
)
from wavecast.report.results import caveats
from wavecast.report.results.costs import (
    ENERGY_LINE,
    WholeTraining,
    hourly,
    long_range,
    money_range,
    plan_text,
    price_lines,
)
from wavecast.report.results.parallel import (
    lost_layouts,
    scaling_columns,
    scaling_remarks,
    strategy_text,
    unpredicted,
)
from wavecast.report.results.predictions import (
    PricedStep,
    generation_columns,
    meaning,
    priced_steps,
)
from wavecast.report.tables import (
    ANY_WIDTH,
    Column,
    fitting,
    from_rows,
    headed,
    listed,
    notes_by_gpu,
    sentence,
)
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
from wavecast.steps.prediction import Prediction, in_order

_BEST = 3
"""How many strategies have details."""
_LISTED = 20
_WHOLE_LINE = (
    "the error is the same in every step, so the range of the whole is as wide as that of a step"
)


def prediction_report(
    title: str,
    rows: Sequence[Prediction],
    book: PriceBook | None = None,
    training: WholeTraining | None = None,
) -> Report:
    """Predictions of one step on some GPUs, or spread over several of each.

    Args:
        title: what was predicted.
        rows: the predictions, in the order in which they are shown.
        book: the prices. None for today's.
        training: what a whole training takes on each; None if it was not asked for.
    """
    candidates = priced_steps(rows, book, None if training is None else training.costs)
    alone = rows[0].parallel is None
    more = [_how_sure(rows)] if alone else [_stages(rows), _how_sure_of_ranks(rows)]
    best_first = most_wanted(candidates)
    lines = ["the dot is the predicted time, the line its range"]
    lines += price_lines([row.offer for row in candidates])
    compared = Section(
        "comparison",
        "The GPUs compared" if len(candidates) > 1 else "The step",
        comparison(candidates),
        " ".join(map(sentence, lines)),
        "comparison",
    )
    shown = details(best_first)
    whole = training_sections(training, candidates[0].unit)
    sections = (compared, *whole, *shown.sections, *more)
    head = tiles(best_first[0])
    title = headed(title, ((row.device.id, row.trace) for row in rows))
    return Report(title, verdict(candidates), sections, head, shown.subjects, shown.names)


def training_sections(training: WholeTraining | None, unit: str) -> list[Section]:
    """What a whole training takes on each GPU; nothing if it was not asked for."""
    if training is None:
        return []
    known = [cost for cost in training.costs if cost is not None]
    shown = fitting(columns_of(known), ANY_WIDTH)
    listed = html_table(shown, caption="The whole training on each GPU", sorts=len(known) > 1)
    none = element("p", "The training fits on none of the GPUs.")
    lines = [plan_text(training.plan, unit), *training.remarks, _WHOLE_LINE, ENERGY_LINE]
    lead = " ".join(map(sentence, lines))
    content = listed if known else none
    return [Section("training", "The whole training", content, lead, "training")]


def scaling_report(title: str, curve: Scaling, training: WholeTraining | None = None) -> Report:
    """How the speed grows with the number of GPUs, with details of the fewest and the most."""
    steps = [point.prediction for point in curve.points]
    candidates = priced_steps(steps, trainings=None if training is None else training.costs)
    shown = details(candidates[::-1] if len(steps) < 3 else [candidates[-1], candidates[0]])
    chart = joined([scaling_chart(curve), scaling_table(curve)])
    lead = " ".join(map(sentence, scaling_remarks(curve)))
    sections = (
        Section("scaling", "Scaling", chart, lead, "scaling"),
        *training_sections(training, candidates[0].unit),
        *shown.sections,
        _how_sure_of_ranks(steps),
    )
    answer, head = _scaling_verdict(curve), tiles(candidates[-1])
    return Report(title, answer, sections, head, shown.subjects, shown.names)


def _scaling_verdict(curve: Scaling) -> Html:
    first, last = curve.points[0], curve.points[-1]
    if first is last:
        return joined(
            ["One number of GPUs was predicted: ", element("strong", str(first.gpus)), "."]
        )
    times = f"{last.relative * last.gpus / first.gpus:.3g} times"
    return joined(
        [
            f"{last.gpus} GPUs run ",
            element("strong", times),
            f" as fast as {first.gpus}: {percent(last.relative)} of perfect scaling.",
            f" Beyond {curve.knee} GPUs, each adds less." if curve.knee is not None else "",
        ]
    )


def _how_sure(rows: Sequence[Prediction]) -> Section:
    """How the prediction was made, and what is not in it."""
    notes = [
        *notes_by_gpu((row.device.id, row.notes) for row in rows),
        *dict.fromkeys(note for row in rows for note in row.trace.notes),
    ]
    return _sureness(caveats.cautions(rows), caveats.methods(rows), notes)


def _how_sure_of_ranks(steps: Sequence[Prediction]) -> Section:
    place = "" if steps[0].cluster is None else f", on {steps[0].cluster.id}"
    methods = [
        f"one optimizer step: {strategy_text(steps[0].parallel)}{place}",
        "range: from the ranges of the op times alone",
        "efficiency: speed per GPU, relative to one GPU that runs the same micro-batches alone",
    ]
    notes = dict.fromkeys(note for step in steps for note in (*step.notes, *step.trace.notes))
    return _sureness(unpredicted(steps), methods, list(notes))


def _sureness(cautions: Sequence[str], methods: Sequence[str], notes: Sequence[str]) -> Section:
    content = joined(
        [
            bullets(map(sentence, cautions), class_="cautions"),
            bullets(map(sentence, methods)),
            joined([element("h3", "Notes"), bullets(map(sentence, notes))]) if notes else Html(),
        ]
    )
    lead = "A prediction is a model's answer, not a measurement."
    title = "How this was predicted, and how sure it is"
    return Section("method", title, content, lead, "how sure")


def _stages(steps: Sequence[Prediction]) -> Section:
    """The times of the pipeline stages, or of all ranks."""
    rows = [(step, stage) for step in steps for stage in step.stages]
    columns = from_rows(
        [
            (
                *(step.name, str(stage.stage), str(stage.ranks)),
                *map(duration, (stage.forward_s, stage.backward_s, max(0.0, stage.last_s))),
                *map(duration, (stage.communication_s, stage.exposed_s, stage.idle_s)),
            )
            for step, stage in rows
        ],
        *("<GPUs", "stage", "ranks", "forward", "backward", "last micro-batch adds"),
        *("communication", "of it exposed", "waits for others"),
    )
    efficiency = ", ".join(dict.fromkeys(percent(step.efficiency) for step in steps))
    lead = f"Forward and backward are of one micro-batch. Efficiency: {efficiency}."
    return Section(
        "stages", "Each rank", html_table(columns, caption="Times of the ranks"), lead, "ranks"
    )


def layouts_report(title: str, layouts: Sequence[Layout], changes: Sequence[str] = ()) -> Report:
    """The strategies of a search, with details of the best ones; and why others cannot be used."""
    working = [
        (candidate, candidate.prediction)
        for candidate in layouts
        if candidate.prediction is not None
    ]
    lost = bullets(map(sentence, [*lost_layouts(layouts), *changes]))
    why = Section("lost", "What cannot be used", lost, short="not used")
    if not working:
        nothing = joined([element("strong", "No strategy fits"), "."])
        return Report(title, nothing, (why,))
    best = priced_steps([step for _, step in working[:_BEST]])
    named = [
        replace(row, label=strategy_text(layout.strategy))
        for row, (layout, _) in zip(best, working, strict=False)
    ]
    shown = details(named)
    layout, step = working[0]
    answer = joined(
        [
            element("strong", strategy_text(layout.strategy)),
            f" is the fastest of {len(layouts)} strategies: {duration(step.seconds)} a step, ",
            f"with micro-batches of {layout.micro_batch}.",
        ]
    )
    columns = columns_of([layout for layout, _ in working[:_LISTED]])
    compared = html_table(columns, caption="The fastest strategies")
    sections = (
        Section("strategies", "The fastest strategies", compared, short="strategies"),
        *shown.sections,
        why,
        _how_sure_of_ranks([step]),
    )
    return Report(title, answer, sections, tiles(named[0]), shown.subjects, shown.names)


# How the speed grows with the number of GPUs.


def scaling_chart(curve: Scaling) -> Html:
    """The speed per GPU over the number of GPUs; perfect scaling keeps it."""
    points = curve.points
    first, last = points[0], points[-1]
    ticks = tuple((float(point.gpus), str(point.gpus)) for point in points)
    across = PlotAxis(float(first.gpus), float(max(last.gpus, 2 * first.gpus)), ticks, is_log=True)
    high = max(1.0, *(point.relative for point in points))
    up = PlotAxis(
        0.0, 1.1 * high, tuple((mark, percent(mark)) for mark in (0, 0.25, 0.5, 0.75, 1.0))
    )
    plot = Plot(across, up)
    xs, ys = [float(point.gpus) for point in points], [point.relative for point in points]
    bottom = plot.area(xs, ys, [0.0] * len(xs))
    area = empty_element("polygon", points=bottom, class_="under-curve")
    line = empty_element("polyline", points=plot.path(xs, ys), class_="curve")
    mark = plot.level(plot.y(KNEE), "ideal")
    plot = plot.with_parts([plot.stretched(area, line), mark, *_dots(curve, plot)])
    label = (
        f"Speed per GPU from {first.gpus} to {last.gpus} GPUs: in the end it is "
        f"{percent(last.relative)} of that of {first.gpus}."
    )
    under = f"GPUs; the height is the speed of each, and the dashed line marks {percent(KNEE)}"
    return plot.drawn(label, under)


def _dots(curve: Scaling, plot: Plot) -> Iterable[Html]:
    for point in curve.points:
        text = (
            f"{point.gpus} GPUs: {duration(point.prediction.seconds)} a step, "
            f"{percent(point.relative)} of the speed per GPU"
        )
        x, y = plot.x(point.gpus), plot.y(point.relative)
        yield element("circle", title_of(text), cx=x, cy=y, r="4.5", class_="dot")
        knee = "knee: " if point.gpus == curve.knee else ""
        shown = f"{knee}{percent(point.relative)}"
        yield element("text", shown, x=x, y=y - 10, class_=f"{plot.side(point.gpus)} strong halo")


def scaling_table(curve: Scaling) -> Html:
    """The same numbers as a table."""
    return html_table(scaling_columns(curve), caption="Speed by number of GPUs")


# The verdict in a sentence, and the GPUs side by side.


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


# The section about text generation in the report of a prediction.


def generation_sections(rows: Sequence[TextGeneration]) -> tuple[Section, ...]:
    """The times of tokens and what fits; nothing for steps that train."""
    if not rows:
        return ()
    listed = html_table(generation_columns(rows), caption="Text generation")
    content = joined([listed, element("p", sentence(meaning(rows)))])
    return (Section("generation", "Text generation", content, short="tokens"),)
