"""Whole pages about predicted steps: results in, one text of HTML out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wavecast.footprint.advice import Advice
from wavecast.footprint.memory import Memory
from wavecast.planning.scaling import Scaling
from wavecast.report import predictions as prediction_texts
from wavecast.report.html import memory_charts, scaling_charts
from wavecast.report.html.candidates import Candidate, of_parallel, of_prediction, ranked
from wavecast.report.html.comparison import comparison, tiles, verdict
from wavecast.report.html.details import Details, details
from wavecast.report.html.documents import Section, document
from wavecast.report.html.markup import Html, bullets, element, folded, joined, table
from wavecast.report.parallel import scaling_remarks, strategy_text
from wavecast.report.tables import Column, notes_by_gpu
from wavecast.report.units import duration, memory, percent
from wavecast.steps.parallel_prediction import ParallelPrediction
from wavecast.steps.prediction import Prediction

_PRICES = "prices are the cheapest known on-demand offers in USD per GPU and hour"


def prediction_page(title: str, rows: Sequence[Prediction], setup: str | None = None) -> str:
    """Predictions of one step on some GPUs. With a setup, prices are those of its paper."""
    candidates = [of_prediction(row, setup) for row in rows]
    shown = details(candidates)
    return _page(title, candidates, shown, [_how_sure(rows)])


def parallel_page(title: str, rows: Sequence[tuple[ParallelPrediction, Memory | None]]) -> str:
    """Predictions of one step that is spread over several GPUs, with the fullest rank's memory."""
    candidates = [of_parallel(step, needed) for step, needed in rows]
    shown = details(candidates)
    steps = [step for step, _ in rows]
    return _page(title, candidates, shown, [_stages(steps), _how_sure_of_ranks(steps)])


def scaling_page(title: str, curve: Scaling) -> str:
    """How the speed grows with the number of GPUs, with details of the fewest and the most."""
    points = curve.points
    steps = [point.prediction for point in points]
    candidates = [of_parallel(step, None) for step in steps]
    shown = details([candidates[-1], *candidates[:1]] if len(points) > 1 else candidates)
    chart = joined([scaling_charts.scaling_chart(curve), scaling_charts.scaling_table(curve)])
    section = Section("scaling", "Scaling", chart, ". ".join(scaling_remarks(curve)) + ".")
    last = points[-1]
    told = joined(
        [
            f"{last.gpus} GPUs run ",
            element("strong", f"{last.relative * last.gpus / points[0].gpus:.3g} times"),
            f" as fast as {points[0].gpus}: {percent(last.relative)} of perfect scaling.",
            f" Beyond {curve.knee} GPUs, each adds less." if curve.knee is not None else "",
        ]
    )
    sections = [section, *shown.sections, _how_sure_of_ranks(steps)]
    return document(title, told, tiles(candidates[-1]), sections, shown.subjects, shown.names)


def memory_page(title: str, memories: Sequence[Memory], advice: Sequence[Advice] = ()) -> str:
    """The memory of one step on some GPUs, or on none in particular."""
    first = memories[0]
    sections = [
        Section(f"memory-{index}", _memory_title(needed), _memory_part(needed, advice if not index else ()))
        for index, needed in enumerate(memories)
    ]
    notes = [*first.trace.notes, *(note for needed in memories for note in needed.notes)]
    if notes:
        sections.append(Section("notes", "Notes", bullets(dict.fromkeys(notes))))
    return document(title, _memory_verdict(memories), Html(), sections)


def _page(
    title: str, candidates: Sequence[Candidate], shown: Details, more: Iterable[Section]
) -> str:
    best = next(iter(ranked(candidates)), candidates[0])
    compared = Section(
        "comparison",
        "The GPUs compared" if len(candidates) > 1 else "The step",
        comparison(candidates),
        f"The dot is the predicted time, the line its range; {_PRICES}.",
    )
    sections = [compared, *shown.sections, *more]
    return document(title, verdict(candidates), tiles(best), sections, shown.subjects, shown.names)


def _how_sure(rows: Sequence[Prediction]) -> Section:
    """How the prediction was made, and what is not in it."""
    notes = [
        *notes_by_gpu((row.device.id, row.notes) for row in rows),
        *dict.fromkeys(note for row in rows for note in row.trace.notes),
    ]
    return _sureness(prediction_texts.cautions(rows), prediction_texts.methods(rows), notes)


def _how_sure_of_ranks(steps: Sequence[ParallelPrediction]) -> Section:
    missing = sorted({share.name for step in steps for share in step.unpredicted})
    cautions = [f"not predicted, counted as 0: {', '.join(missing)}"] if missing else []
    methods = [
        f"one optimizer step: {strategy_text(steps[0].strategy)}, on {steps[0].cluster.id}",
        "range: from the ranges of the op times alone",
        "efficiency: speed per GPU, relative to one GPU that runs the same micro-batches alone",
    ]
    notes = dict.fromkeys(note for step in steps for note in (*step.notes, *step.trace.notes))
    return _sureness(cautions, methods, list(notes))


def _sureness(
    cautions: Sequence[str], methods: Sequence[str], notes: Sequence[str]
) -> Section:
    content = joined(
        [
            bullets(map(_sentence, cautions), class_="cautions"),
            bullets(map(_sentence, methods)),
            joined([element("h3", "Notes"), bullets(map(_sentence, notes))]) if notes else Html(),
        ]
    )
    lead = "A prediction is a model's answer, not a measurement."
    return Section("method", "How this was predicted, and how sure it is", content, lead)


def _sentence(text: str) -> str:
    whole = text[:1].upper() + text[1:]
    return whole if whole.endswith((".", "?", "!")) else f"{whole}."


def _stages(steps: Sequence[ParallelPrediction]) -> Section:
    """The times of the pipeline stages, or of all ranks."""
    rows = [(step, stage) for step in steps for stage in step.stages]
    columns = [
        Column("GPUs", [f"{s.gpus} x {s.device.id}" for s, _ in rows], left=True),
        Column("stage", [str(stage.stage) for _, stage in rows]),
        Column("ranks", [str(stage.ranks) for _, stage in rows]),
        Column("forward", [duration(stage.forward_s) for _, stage in rows]),
        Column("backward", [duration(stage.backward_s) for _, stage in rows]),
        Column("last micro-batch adds", [duration(max(0.0, stage.last_s)) for _, stage in rows]),
        Column("communication", [duration(stage.communication_s) for _, stage in rows]),
        Column("of it exposed", [duration(stage.exposed_s) for _, stage in rows]),
        Column("waits for others", [duration(stage.idle_s) for _, stage in rows]),
    ]
    efficiency = ", ".join(dict.fromkeys(percent(step.efficiency) for step in steps))
    lead = f"Forward and backward are of one micro-batch. Efficiency: {efficiency}."
    return Section("stages", "Each rank", table(columns, caption="Times of the ranks"), lead)


def _memory_title(needed: Memory) -> str:
    return f"Memory on {needed.device.id}" if needed.device else "Memory"


def _memory_part(needed: Memory, advice: Sequence[Advice]) -> Html:
    parts = [
        memory_charts.memory_bar(needed),
        memory_charts.memory_chart(needed),
        folded("Largest tensors at the peak", memory_charts.largest_tensors(needed)),
        folded("Largest modules at the peak", memory_charts.largest_modules(needed)),
    ]
    if advice:
        columns = [
            Column("change", [change.name for change in advice], left=True),
            Column("saves", [memory(change.saved_bytes) for change in advice]),
            Column("how", [change.how for change in advice], left=True),
        ]
        caption = "Changes that would save memory"
        parts += [element("h3", caption), table(columns, caption=caption)]
    return joined(parts)


def _memory_verdict(memories: Sequence[Memory]) -> Html:
    first = memories[0]
    if first.device is None:
        size = memory(first.reserved_bytes)
        return joined(["The step needs ", element("strong", size), " beside CUDA's context."])
    fitting = [needed.device.id for needed in memories if needed.device and needed.fits]
    size = memory(max(needed.needed_bytes for needed in memories))
    if len(fitting) == len(memories):
        where = fitting[0] if len(fitting) == 1 else f"all {len(fitting)} GPUs"
        return joined(["It ", element("strong", "fits"), f" on {where}: it needs up to {size}."])
    if not fitting:
        return joined(["It ", element("strong", "does not fit"), f": it needs up to {size}."])
    return joined(["It ", element("strong", f"fits on {', '.join(fitting)}"), ", not on the others."])
