"""Predicted steps as tables in a terminal."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from wavecast.advice.proposals import StepAdvice
from wavecast.analysis.generation import TextGeneration
from wavecast.analysis.larger_batch import LargerBatch
from wavecast.footprint.memory import Memory
from wavecast.hardware.devices import Device
from wavecast.planning.cost import TrainingCost
from wavecast.planning.prices import Price, PriceBook, price_book
from wavecast.report.fields import ABSENT, Described, Field, columns, describe, output, some
from wavecast.report.results.caveats import (
    by_predictors,
    cautions,
    covered_by,
    host_lines,
    marks_of,
    not_ranked,
    predictor_lines,
    range_meanings,
    unpredicted_ops,
)
from wavecast.report.results.costs import hourly, price_lines, seen
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
from wavecast.report.units import (
    UNKNOWN,
    count,
    duration,
    memory,
    of_capacity,
    percent,
    quantity,
    time_range,
)
from wavecast.steps.prediction import WORTH_A_WORD, Prediction, Share, comparable, shares_by_line
from wavecast.steps.ranges import CoveredHosts
from wavecast.traces.step import Trace


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
    by_name = {c.name: c for c in columns(steps)}
    if not any(step.unpredicted for step in steps):
        del by_name["not predicted"]
    memory, others = by_name["memory"], [c for c in by_name.values() if c.name != "memory"]
    if not all(step.may_fit for step in steps):
        room = width - width_of(fitting([c for c in others if c.rank <= 1], ANY_WIDTH))
        cells = memory.cells
        if max(map(len, cells)) + 3 > room:
            cells = ["" if step.may_fit else "does not fit" for step in steps]
        by_name["memory"] = Column("memory", cells, left=True)
    return list(by_name.values())


def _setup(name: str, rows: Sequence[Prediction]) -> str:
    """The line about a published setup: which GPUs have the numbers of its paper."""
    from wavecast.predictors.habitat import published_setup

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
    """One row for each GPU, the greatest gain first."""
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
    named = [(step.device.id, (*step.notes, *step.trace.notes)) for _, step in rows]
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


def _fitting(step: TextGeneration) -> str:
    """The most sequences and their tokens: `118 x 2,048`."""
    if step.largest_batch is None:
        return UNKNOWN
    return f"{count(step.largest_batch)} x {count(step.context)}"


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
    text = "keys and values: those of all sequences, in the cache"
    if any(row.largest_batch is not None for row in rows):
        return f"{text}; most sequences x tokens: the largest batch of such sequences that fits"
    return f"{text}; what fits is said for few GPUs, not for compiled steps (wavecast max-batch)"


# Predicted steps, on one GPU or several, with the cheapest offer of their GPUs.


@dataclass(frozen=True)
class PricedStep:
    """A predicted step, with the cheapest offer of its GPUs."""

    step: Prediction
    offer: Price | None
    """The cheapest offer. None when none is known."""
    by: str | None = None
    """The breakdown of the GPU's time that JSON has: op, module, none; None for all."""
    depth: int = 2
    """How many names of a module's path the breakdown by module keeps."""
    training: TrainingCost | None = ABSENT
    """The whole training; None if it does not fit, and left out if it was not asked for."""
    mark: str = ""
    """What stands behind the name of the GPU, such as `[1]`."""
    label: str = ""
    """What it is called in place of its GPUs, such as a strategy."""

    @property
    def named(self) -> str:
        """The GPUs, with their mark."""
        return f"{self.label or self.step.name} {self.mark}".rstrip()

    @property
    def unit(self) -> str:
        """What the step counts."""
        return self.step.trace.unit

    @property
    def cost(self) -> TrainingCost | None:
        """The whole training; None if it was not asked for, or does not fit."""
        return None if self.training is ABSENT else self.training

    @property
    def is_comparable(self) -> bool:
        """Whether enough was predicted to compare GPUs."""
        return comparable(self.step)

    @property
    def may_fit(self) -> bool:
        """Whether the step fits, or its memory is unknown: profiler files do not record it."""
        return self.step.fits is not False

    @property
    def usd_per_hour(self) -> float | None:
        """The price of all GPUs, in USD an hour; of one GPU, its share of the machine."""
        if self.offer is None:
            return None
        gpus = self.step.gpus
        return self.offer.usd_per_hour if gpus == 1 else self.offer.usd_per_hour_of(gpus)

    @property
    def throughput_per_usd(self) -> float | None:
        """Samples, or what `unit` names, for a dollar. None when the price is unknown."""
        rate, price = self.step.throughput, self.usd_per_hour
        return None if rate is None or price is None else rate * 3600 / price

    @property
    def seconds(self) -> str:
        """The time of a step, which is a lower bound where much of it was not predicted."""
        return f"{'' if self.is_comparable else '> '}{duration(self.step.seconds)}"

    @property
    def span(self) -> str | None:
        """The range of the time. None where it has none, or much was not predicted."""
        step = self.step
        return time_range(step.low_s, step.high_s) if self.is_comparable else None

    @property
    def rate(self) -> float | None:
        """The throughput; None where the step does not fit, or too little of it was predicted."""
        return self.step.throughput if self.is_comparable and self.may_fit else None

    @property
    def rate_per_usd(self) -> float | None:
        """What is done for a dollar; None where `rate` is."""
        return None if self.rate is None else self.throughput_per_usd

    @property
    def memory(self) -> str | None:
        """The memory that the step needs and the GPU has."""
        needed = self.step.memory
        if needed is None:
            return None
        cell = of_capacity(needed.needed_bytes, self.step.device.memory_bytes)
        cell = f"> {cell}" if needed.unrecorded else cell
        return cell if self.may_fit else f"{cell}, does not fit"

    @property
    def unpredicted(self) -> str:
        """The share of a step that nobody could predict, `12% of its bytes`; empty where small.

        Where nothing at all could be predicted, the share is of its work.
        """
        share, shares = self.step.unpredicted_share, self.step.unpredicted_shares
        if share <= WORTH_A_WORD:
            return ""
        of = max(shares, key=shares.__getitem__) if share in shares.values() else "work"
        return f"{percent(share)} of its {of}"

    def share(self, name: str) -> float | None:
        """A time of the step as a share of the step."""
        step = self.step
        return float(getattr(step, name)) / step.seconds if step.seconds else None

    @property
    def op_shares(self) -> tuple[Share, ...]:
        """The GPU time of one rank by op, longest first."""
        return self.step.by_op() if self.by in (None, "op") else ABSENT

    @property
    def module_shares(self) -> tuple[Share, ...]:
        """The GPU time of one rank by module, longest first."""
        return self.step.by_module(self.depth) if self.by in (None, "module") else ABSENT

    @property
    def line_shares(self) -> tuple[Share, ...]:
        """The GPU time of one rank by line of code, longest first."""
        return shares_by_line(self.step.runs) if self.by == "line" else ABSENT


def offer_for(step: Prediction, book: PriceBook) -> Price | None:
    """The cheapest offer: machines that hold as many of the GPUs as those of the cluster do."""
    if step.cluster is None:
        return book.cheapest(step.device.id)
    together = min(step.gpus, step.cluster.gpus_per_node)
    return book.cheapest(step.device.id, step.gpus, together=together)


def priced(step: Prediction) -> PricedStep:
    """A step with the cheapest offer of today."""
    return PricedStep(step, offer_for(step, price_book()))


def priced_steps(
    steps: Sequence[Prediction],
    book: PriceBook | None = None,
    trainings: Iterable[TrainingCost | None] | None = None,
    by: str | None = None,
    depth: int = 2,
) -> list[PricedStep]:
    """Steps with their prices, today's if none are given, and the whole training of each."""
    prices = book or price_book()
    costs = [ABSENT for _ in steps] if trainings is None else list(trainings)
    pairs = zip(steps, costs, strict=True)
    return [PricedStep(step, offer_for(step, prices), by, depth, cost) for step, cost in pairs]


def of_share(name: str, title: str, rank: int) -> Field:
    """A column with a time of the step as a share of it."""
    return Field("", lambda row: row.share(name), title=title, rank=rank, text=percent)


def range_of(step: Prediction) -> str:
    """The range of a step's time, or `?`."""
    return time_range(step.low_s, step.high_s)


def memory_text(needed: Memory | None) -> str:
    """The memory that a GPU needs, and whether it does not fit."""
    if needed is None:
        return "unknown"
    return memory(needed.needed_bytes) + (", does not fit" if needed.fits is False else "")


_STEP = Field("", "seconds", title="step", left=False)
_NAMES = ("low_s", "high_s", "gpu_s", "host_s", "bound_by")
_SEVERAL = ("efficiency", "exposed_s", "idle_s", "waiting_s", "stages")
ONE = describe(
    PricedStep,
    Field("", "named", title="GPU"),
    _STEP,
    Field("", "span", title="range", rank=1, left=False),
    Field("", "memory", title="memory", rank=1),
    Field("", "rate", title="{unit}/s", rank=1, text=count),
    of_share("gpu_s", "GPU busy", 5),
    of_share("host_s", "host busy", 6),
    Field("", "step.bound_by", title="bound by", rank=3),
    Field("", "offer", title="$/h", rank=4, text=hourly),
    Field("", "rate_per_usd", title="{unit}/$", rank=2, text=quantity),
    Field("", "offer", title="price of", rank=7, text=seen),
    Field("", "unpredicted", title="not predicted", left=True),
    Field("gpu", "step.device.id", meaning="The id of the GPU."),
    Field("gpus", "step.gpus"),
    Field("cluster", "step.cluster.id", meaning="The machines. None on one GPU."),
    Field("strategy", "step.parallel"),
    Field("seconds", "step.seconds", drawn=True),
    *(Field(name, f"step.{name}") for name in _NAMES),
    Field("throughput_per_s", "step.throughput"),
    Field("unit", "step.trace.unit"),
    "usd_per_hour",
    Field("price", "offer"),
    "throughput_per_usd",
    Field("peak_bytes", "step.memory.peak_bytes"),
    Field("needed_bytes", "step.memory.needed_bytes"),
    Field("fits", "step.fits"),
    *(Field(name, f"step.{name}") for name in _SEVERAL),
    Field("by_phase_s", "step.by_phase"),
    Field("by_op", "op_shares", optional=True),
    Field("by_module", "module_shares", optional=True),
    Field("by_line", "line_shares", optional=True),
    Field("by_source", "step.sources"),
    Field("unpredicted", "step.unpredicted"),
    Field("unpredicted_share", "step.unpredicted_share"),
    Field("comparable", "is_comparable"),
    Field("host", "step.host.name", meaning="The host that issues the ops."),
    Field(
        "host_source",
        lambda row: getattr(row.step.host, "source", ""),
        kind=str,
        blank=True,
        meaning="Where the costs of that host come from.",
    ),
    Field(
        "covered_hosts",
        lambda row: covered_by(row.step),
        kind=CoveredHosts | None,
        meaning="The hosts that the range covers. None if the host was calibrated.",
    ),
    Field("notes", "step.notes"),
    Field("training", optional=True),
    unit="step.trace.unit",
)
SEVERAL = Described(
    PricedStep,
    some(
        Field("", "step.name", title="GPUs"),
        Field("", "step.seconds", title="step", text=duration),
        Field("", "step", title="range", rank=4, text=range_of),
        Field("", "step.throughput", title="{unit}/s", rank=1, text=count),
        Field("", "step.efficiency", title="efficiency"),
        of_share("exposed_s", "exposed communication", 3),
        of_share("idle_s", "bubble", 5),
        Field("", lambda row: memory_text(row.step.memory), title="memory", rank=2),
        Field("", "step.cluster.id", title="cluster", rank=6, absent=""),
    ),
    unit="step.trace.unit",
)
"""The columns of steps that are spread over several GPUs."""
describe(Prediction, Field("", priced, inline=True), shown_as=priced, parts="by_op")
describe(
    Share,
    Field("name", title="name", folds=True),
    Field("calls", title="calls"),
    Field("gpu_s", title="GPU time", drawn=True),
)


PREDICTED = output(
    "The prediction of a step on each GPU, or on several GPUs of each model.",
    Field("target", kind=str, meaning="What was predicted."),
    Field("trace", kind=Trace, meaning="The step; on several GPUs, a micro-batch on one of them."),
    Field("predictions", kind=[PricedStep], meaning="One prediction for each GPU."),
    Field("notes", kind=Sequence[str], meaning="What a reader should know, in whole sentences."),
    Field("advice", kind=StepAdvice, optional=True, meaning="What would make the step better."),
    Field("generation", kind=[TextGeneration], optional=True, meaning="What serving it takes."),
)
COMPILED = output(
    "The predictions of a step as it is written, and compiled.",
    Field("eager", kind=PREDICTED, meaning="The step as it is written."),
    Field("compiled", kind=PREDICTED, meaning="The compiled step."),
)


def predicted(
    target: str,
    rows: Sequence[Prediction],
    by: str | None = None,
    book: PriceBook | None = None,
    depth: int = 2,
    trainings: Iterable[TrainingCost | None] | None = None,
    advice: StepAdvice | None = None,
    generation: Sequence[TextGeneration] = (),
) -> dict[str, Any]:
    """The predictions of one target, as JSON has them.

    Args:
        target: what was predicted.
        rows: the predictions, in the order in which they are shown.
        by: the breakdown of the GPU's time, "op" or "module"; None for all.
        book: the prices; None for today's.
        depth: how many names of a module's path the breakdown by module keeps.
        trainings: the whole training of each, if one was asked for.
        advice: what would make the step better, if that was asked for.
        generation: the steps in the words of those who serve models, if they generate text.
    """
    steps = priced_steps(rows, book, trainings, by, depth)
    notes = notes_by_gpu((row.name, row.notes) for row in rows)
    values = {"target": target, "trace": rows[0].trace, "predictions": steps, "notes": notes}
    values |= {} if advice is None else {"advice": advice}
    return PREDICTED.record(values | ({"generation": generation} if generation else {}))
