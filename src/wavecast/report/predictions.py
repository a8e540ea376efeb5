"""Predicted steps as tables in a terminal."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from wavecast.analysis.generation import TextGeneration
from wavecast.analysis.larger_batch import LargerBatch
from wavecast.hardware.devices import Device
from wavecast.planning.prices import PriceBook, price_book
from wavecast.predictors.habitat import published_setup
from wavecast.report.caveats import (
    by_predictors,
    cautions,
    host_lines,
    marks_of,
    not_ranked,
    predictor_lines,
    range_meanings,
    unpredicted_ops,
)
from wavecast.report.costs import price_lines
from wavecast.report.fields import Field, columns, describe
from wavecast.report.html.documents import Section
from wavecast.report.html.markup import element, html_table, joined
from wavecast.report.html.reports import sentence
from wavecast.report.priced_steps import PricedStep, offer_for
from wavecast.report.tables import (
    ANY_WIDTH,
    Column,
    fitting,
    from_rows,
    headed,
    left_out,
    notes,
    notes_by_gpu,
    remarks,
    table,
    titled,
    warnings,
    width_of,
)
from wavecast.report.units import UNKNOWN, count, duration, memory, time_range
from wavecast.steps.prediction import Prediction


def predictions(
    title: str,
    rows: Sequence[Prediction],
    width: int,
    setup: str | None = None,
    book: PriceBook | None = None,
) -> RenderableType:
    """One row for each GPU; a narrow terminal shows fewer columns.

    Args:
        title: what was predicted.
        rows: the predictions, in the order in which they are shown.
        width: columns of the terminal.
        setup: the published setup whose numbers were used.
        book: the prices. None for those of the setup, or today's.
    """
    groups, prices = by_predictors(rows), book or price_book(setup)
    marks = marks_of(groups)
    steps = [
        PricedStep(row, offer_for(row, prices), mark=marks.get(index, ""))
        for index, row in enumerate(rows)
    ]
    every = _columns(steps, width)
    styles = ["" if step.may_fit else "dim" for step in steps]
    kept = fitting(every, width)
    return titled(
        headed(title, ((row.device.id, row.trace) for row in rows)),
        table(kept, styles),
        "",
        *remarks(left_out(every, kept)),
        *_footnotes(rows, groups, {column.name for column in kept}, setup, prices),
        *notes(
            [
                *notes_by_gpu((row.device.id, row.notes) for row in rows),
                *dict.fromkeys(note for row in rows for note in row.trace.notes),
            ]
        ),
    )


def _columns(steps: Sequence[PricedStep], width: int) -> list[Column]:
    """The columns of a table; where a step does not fit, that is shown at every width."""
    made = {c.name: c for c in columns(steps)}
    if not any(step.unpredicted for step in steps):
        del made["not predicted"]
    memory, others = made["memory"], [c for c in made.values() if c.name != "memory"]
    if not all(step.may_fit for step in steps):
        room = width - width_of(fitting([c for c in others if c.rank <= 1], ANY_WIDTH))
        cells = memory.cells
        if max(map(len, cells)) + 3 > room:
            cells = ["" if step.may_fit else "does not fit" for step in steps]
        made["memory"] = Column("memory", cells, left=True)
    return list(made.values())


def _setup(name: str, rows: Sequence[Prediction]) -> str:
    """The line about a published setup: which GPUs have the numbers of its paper."""
    gpus = published_setup(name).gpus
    others = [row.device.id for row in rows if row.device.id not in gpus]
    line = (
        f"setup: {name}, with the clocks and bandwidths of its paper; its networks also answer for "
        "layers larger than those that they were fitted on"
    )
    return f"{line}; not in the paper: {', '.join(others)}" if others else line


def _footnotes(
    rows: Sequence[Prediction],
    groups: Sequence[Mapping[int, Prediction]],
    shown: Container[str],
    setup: str | None,
    book: PriceBook,
) -> list[Text]:
    """What is to be known of the columns that are shown."""
    lines, has_ranges = [], any(row.low_s is not None for row in rows)
    if all(row.trace.samples is None for row in rows):
        lines.append("no throughput: how many samples a step takes is not known (give --batch)")
    if "$/h" in shown:
        lines += price_lines([book.cheapest(row.device.id) for row in rows], setup)
    lines += [
        *([] if setup is None else [_setup(setup, rows)]),
        *predictor_lines(groups),
        *host_lines(rows),
        *(range_meanings(rows) if "range" in shown or not has_ranges else ()),
    ]
    return [*warnings(cautions(rows)), *remarks(lines)]


# What compiling a step would gain, GPU by GPU, as a table in a terminal.


def gains(title: str, pairs: Sequence[tuple[Prediction, Prediction]]) -> RenderableType:
    """One row for each GPU, the greatest gain first.

    Args:
        title: what was predicted.
        pairs: the predictions of the step as written and compiled, on the same GPU.
    """
    rows = sorted(pairs, key=lambda pair: -gain(*pair))
    cells = [
        (
            eager.device.id,
            duration(eager.seconds),
            duration(compiled.seconds),
            f"{gain(eager, compiled):.2f}x",
            duration(eager.gpu_s),
            duration(compiled.gpu_s),
            _peak(eager),
            _peak(compiled),
        )
        for eager, compiled in rows
    ]
    names = ("eager", "compiled", "gain", "GPU busy", "compiled", "memory", "compiled")
    columns = from_rows(cells, "<GPU", *names)
    named = [(one.device.id, (*one.notes, *one.trace.notes)) for _, one in rows]
    title = headed(title, ((compiled.device.id, compiled.trace) for _, compiled in rows))
    return titled(title, table(columns), "", *notes(notes_by_gpu(named)))


def gain(eager: Prediction, compiled: Prediction) -> float:
    """How many times faster the compiled step is."""
    return eager.seconds / compiled.seconds


def _peak(prediction: Prediction) -> str:
    return UNKNOWN if prediction.memory is None else memory(prediction.memory.peak_bytes)


# The time of a step at a batch that was not traced, from a line through smaller batches.


def larger_batches(
    rows: Mapping[Device, LargerBatch],
    unit: str,
    width: int,
    points: Sequence[Prediction] = (),
) -> RenderableType:
    """The step time at a larger batch, extrapolated on each GPU from predictions, the points."""
    first = next(iter(rows.values()))
    sizes = ", ".join(map(str, first.points))
    lines = ["range: 90% range of the straight line; the error of each prediction is not in it"]
    answers = [GpuLargerBatch(gpu.id, larger) for gpu, larger in rows.items()]
    every = columns(answers, unit)
    kept = fitting(every, width)
    return titled(
        f"a batch of {first.batch} {unit}, extrapolated from batches of {sizes}",
        table(kept),
        "",
        *warnings([*unpredicted_ops(points), *not_ranked(points)]),
        *remarks([*left_out(every, kept), *lines]),
    )


def larger_by_gpu(
    rows: Mapping[Device, LargerBatch], points: Mapping[Device, Mapping[int, Prediction]]
) -> list[GpuLargerBatch]:
    """The step at a larger batch on each GPU, with what was not predicted of its points."""
    return [
        GpuLargerBatch(gpu.id, larger, max(p.unpredicted_share for p in points[gpu].values()))
        for gpu, larger in rows.items()
    ]


@dataclass(frozen=True)
class GpuLargerBatch:
    """The time of a step at a larger batch on one GPU, extrapolated from predictions."""

    gpu: str
    larger: LargerBatch
    unpredicted_share: float = 0.0
    """How much of the step could not be predicted, from 0 to 1."""


def _positive(seconds: float) -> str:
    return duration(max(seconds, 0.0))


def _line_range(larger: LargerBatch) -> str:
    return time_range(larger.low_s, larger.high_s)


describe(
    LargerBatch,
    Field("batch", title="batch"),
    Field("seconds", title="step"),
    Field("", _line_range, title="range", rank=2, left=False),
    Field("throughput_per_s", "throughput", title="{unit}/s", rank=1),
    Field("fixed_s", title="fixed part", rank=3, text=_positive),
    Field("per_sample_s", title="per sample", rank=4, text=_positive),
    *map(Field, ("low_s", "high_s", "points")),
)
describe(
    GpuLargerBatch,
    Field("gpu", title="GPU"),
    Field("", "larger.seconds", title="step", text=duration),
    Field("", "larger", title="range", rank=2, text=_line_range),
    Field("", "larger.throughput", title="{unit}/s", rank=1, text=count),
    Field("", "larger.fixed_s", title="fixed part", rank=3, text=_positive),
    Field("", "larger.per_sample_s", title="per sample", rank=4, text=_positive),
    Field("", "larger", inline=True),
    "unpredicted_share",
)


# Text generation as a table: times of tokens, keys and values, and what fits.


def _fitting(one: TextGeneration) -> str:
    """The most sequences and their tokens: `118 x 2,048`."""
    if one.largest_batch is None:
        return UNKNOWN
    return f"{count(one.largest_batch)} x {count(one.context)}"


describe(
    TextGeneration,
    Field("gpu", "step.device.id", title="GPU", meaning="The id of the GPU."),
    Field("first_token_s", title="time to first token"),
    Field("token_s", title="time per token"),
    Field("tokens_per_s", title="tokens/s"),
    Field("sequences", title="sequences", rank=1),
    Field("context"),
    Field("cache_bytes", title="keys and values"),
    Field("", _fitting, title="most sequences x tokens", left=False),
    Field("largest_batch"),
)


def generation_columns(rows: Sequence[TextGeneration]) -> list[Column]:
    """The columns that say something of these steps."""
    kept = columns(rows)
    return [column for column in kept if any(cell != UNKNOWN for cell in column.cells)]


def generation(rows: Sequence[TextGeneration], width: int) -> RenderableType:
    """A table of steps of text generation."""
    kept = fitting(generation_columns(rows), width)
    return titled("text generation", table(kept), "", *remarks([meaning(rows)]))


def meaning(rows: Sequence[TextGeneration]) -> str:
    """What the columns mean."""
    told = "keys and values: those of all sequences, in the cache"
    if any(row.largest_batch is not None for row in rows):
        return f"{told}; most sequences x tokens: the largest batch of such sequences that fits"
    return f"{told}; what fits is said for few GPUs, not for compiled steps (wavecast max-batch)"


# The section about text generation in the report of a prediction.


_TITLE = "Text generation"


def generation_sections(rows: Sequence[TextGeneration]) -> tuple[Section, ...]:
    """The times of tokens and what fits; nothing for steps that train."""
    if not rows:
        return ()
    listed = html_table(generation_columns(rows), caption=_TITLE)
    content = joined([listed, element("p", sentence(meaning(rows)))])
    return (Section("generation", _TITLE, content, short="tokens"),)
