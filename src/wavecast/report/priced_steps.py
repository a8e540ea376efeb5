"""Predicted steps, on one GPU or several, with the cheapest offer of their GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from wavecast.advice.proposals import StepAdvice
from wavecast.analysis.generation import TextGeneration
from wavecast.footprint.memory import Memory
from wavecast.planning.candidates import comparable
from wavecast.planning.cost import TrainingCost
from wavecast.planning.prices import Price, PriceBook, price_book
from wavecast.report.caveats import covered_by
from wavecast.report.costs import hourly, seen
from wavecast.report.fields import ABSENT, Described, Field, describe, output, some
from wavecast.report.tables import notes_by_gpu
from wavecast.report.units import (
    count,
    duration,
    memory,
    of_capacity,
    percent,
    quantity,
    time_range,
)
from wavecast.steps.prediction import (
    WORTH_A_WORD,
    Prediction,
    Share,
    shares_by_line,
)
from wavecast.steps.ranges import CoveredHosts
from wavecast.traces.step import Trace


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

    @property
    def named(self) -> str:
        """The GPUs, with their mark."""
        return f"{self.step.name} {self.mark}".rstrip()

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
    book = book or price_book()
    costs = [ABSENT for _ in rows] if trainings is None else list(trainings)
    pairs = zip(rows, costs, strict=True)
    steps = [PricedStep(row, offer_for(row, book), by, depth, cost) for row, cost in pairs]
    notes = notes_by_gpu((row.name, row.notes) for row in rows)
    told = {"target": target, "trace": rows[0].trace, "predictions": steps, "notes": notes}
    told |= {} if advice is None else {"advice": advice}
    return PREDICTED.record(told | ({"generation": generation} if generation else {}))
