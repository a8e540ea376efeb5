"""Whole pages about predicted steps: results in, one text of HTML out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from wavecast.planning.layouts import Layout
from wavecast.planning.prices import PriceBook
from wavecast.planning.scaling import KNEE, Scaling
from wavecast.report import caveats
from wavecast.report.costs import ENERGY_LINE, WholeTraining, plan_text, price_lines
from wavecast.report.fields import columns as columns_of
from wavecast.report.html.axes import Plot, PlotAxis, title_of
from wavecast.report.html.comparison import comparison, most_wanted, tiles, verdict
from wavecast.report.html.details import details
from wavecast.report.html.documents import Report, Section
from wavecast.report.html.markup import Html, bullets, element, empty_element, html_table, joined
from wavecast.report.parallel import (
    lost_layouts,
    scaling_columns,
    scaling_remarks,
    strategy_text,
    unpredicted,
)
from wavecast.report.priced_steps import priced_steps
from wavecast.report.tables import ANY_WIDTH, fitting, from_rows, headed, notes_by_gpu, sentence
from wavecast.report.units import duration, percent
from wavecast.steps.prediction import Prediction

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
    wanted = most_wanted(candidates)
    told = ["the dot is the predicted time, the line its range"]
    told += price_lines([row.offer for row in candidates])
    compared = Section(
        "comparison",
        "The GPUs compared" if len(candidates) > 1 else "The step",
        comparison(candidates),
        " ".join(map(sentence, told)),
        "comparison",
    )
    shown = details(wanted)
    whole = training_sections(training, candidates[0].unit)
    sections = (compared, *whole, *shown.sections, *more)
    head = tiles(wanted[0])
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
    told = [plan_text(training.plan, unit), *training.remarks, _WHOLE_LINE, ENERGY_LINE]
    lead = " ".join(map(sentence, told))
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
    told, head = _scaling_verdict(curve), tiles(candidates[-1])
    return Report(title, told, sections, head, shown.subjects, shown.names)


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


def layouts_report(title: str, found: Sequence[Layout], changes: Sequence[str] = ()) -> Report:
    """The strategies of a search, with details of the best ones; and why others cannot be used.

    Args:
        title: what was searched.
        found: the strategies.
        changes: what to change where nothing fits.
    """
    working = [(one, one.prediction) for one in found if one.prediction is not None]
    lost = bullets(map(sentence, [*lost_layouts(found), *changes]))
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
    told = joined(
        [
            element("strong", strategy_text(layout.strategy)),
            f" is the fastest of {len(found)} strategies: {duration(step.seconds)} a step, ",
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
    return Report(title, told, sections, tiles(named[0]), shown.subjects, shown.names)


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
