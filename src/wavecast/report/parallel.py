"""Steps on several GPUs: predictions, searches and scaling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rich.console import RenderableType

from wavecast.parallel.strategy import Parallel
from wavecast.planning.cost import TrainingCost
from wavecast.planning.listing_order import comparable
from wavecast.planning.prices import PriceBook, price_book
from wavecast.planning.scaling import KNEE, ScalePoint, Scaling
from wavecast.report.fields import ABSENT, Field, columns, describe, output
from wavecast.report.priced_steps import (
    SEVERAL,
    PricedStep,
    offer_for,
    priced,
)
from wavecast.report.tables import Column, by_gpu, headed, notes, shown, titled
from wavecast.report.units import (
    count,
    duration,
    percent,
    quantity,
)
from wavecast.steps.prediction import Prediction
from wavecast.steps.unpredicted import TOO_MUCH

EFFICIENCY_LINE = (
    "efficiency: speed per GPU, relative to one GPU that runs the same micro-batches and updates "
    "all weights alone; above 100% where GPUs share that update"
)


def strategy_text(strategy: Parallel | None) -> str:
    """A strategy in a few words: "data 8, shard 3, tensor 4"."""
    words = []
    for field in fields(strategy) if strategy is not None else ():
        value = getattr(strategy, field.name)
        if value != field.default and field.name not in ("tensor_plan", "cluster", "nodes"):
            name = field.name.replace("_", " ")
            words.append(name if value is True else f"{name} {value}")
    return ", ".join(words) or "one GPU"


def exposed_line(strategy: Parallel | None) -> str:
    """What "exposed communication" means for a strategy."""
    line = "exposed communication: the share of the step in which a rank only communicates"
    on_host = strategy is not None and strategy.offload != "none"
    return f"{line}, or waits for the optimizer on the host" if on_host else line


def predictions(title: str, steps: Sequence[Prediction], width: int) -> RenderableType:
    """One row for each GPU model, all with the same strategy."""
    first = steps[0]
    every = SEVERAL.columns([priced(step) for step in steps])
    told = [
        f"one optimizer step: {strategy_text(first.parallel)}",
        EFFICIENCY_LINE,
        exposed_line(first.parallel),
        f"host: {by_gpu((step.device.id, step.host.name) for step in steps)}",
    ]
    told += unpredicted(steps)
    return titled(
        headed(title, ((step.device.id, step.trace) for step in steps)),
        *shown(every, width, told),
        *notes([*dict.fromkeys(note for step in steps for note in step.notes), *first.trace.notes]),
    )


def unpredicted(steps: Sequence[Prediction]) -> list[str]:
    """The ops that nobody could predict, and the steps that therefore cannot be compared."""
    missing = sorted({name for step in steps for name in step.unpredicted})
    if not missing:
        return []
    told = [f"not predicted, counted as 0: {', '.join(missing[:4])}"]
    left_out = [step.name for step in steps if not comparable(step)]
    if left_out:
        told.append(
            f"on {', '.join(left_out)} that is more than {percent(TOO_MUCH)} of the step, so its "
            "time is a lower bound"
        )
    return told


def _cluster(step: Prediction) -> str:
    return "" if step.cluster is None else step.cluster.id


@dataclass(frozen=True)
class PricedPoint:
    """A number of GPUs, with its price."""

    step: PricedStep
    relative: float
    """The speed per GPU, divided by that of the fewest GPUs."""
    is_knee: bool
    """Whether more GPUs no longer pay."""

    @property
    def speed(self) -> str:
        """The speed per GPU, and whether more GPUs no longer pay."""
        return percent(self.relative) + (" <- knee" if self.is_knee else "")

    @property
    def exposed(self) -> float | None:
        """The share of the step in which a rank only communicates."""
        return self.step.share("exposed_s")

    @property
    def machines(self) -> int:
        """The machines that hold the GPUs."""
        step = self.step.step
        return -(-step.gpus // (1 if step.cluster is None else step.cluster.gpus_per_node))


describe(
    PricedPoint,
    Field("", "step.step.gpus", title="GPUs", text=str),
    Field("", "step.step.seconds", title="step", text=duration),
    Field("", "step.step.throughput", title="{unit}/s", text=count),
    Field("", "speed", title="speed per GPU"),
    Field("", "exposed", title="exposed communication", rank=3, text=percent),
    Field("", "machines", title="machines", rank=4, text=str),
    Field("", "step.throughput_per_usd", title="{unit}/$", rank=2, text=quantity),
    "relative",
    Field("", "step", inline=True),
    unit="step.step.trace.unit",
)


_CURVE = output(
    "The speed of a training over the number of GPUs.",
    Field("scaling", kind=str, meaning="strong if the samples of a step stay the same, else weak."),
    Field("knee", kind=int | None, meaning="The most GPUs that still pay. None if all do."),
    Field("points", kind=[PricedPoint], meaning="One for each number of GPUs."),
)
SCALING = output(
    "How the speed of a training grows with the number of GPUs.",
    Field("target", kind=str, meaning="What is trained."),
    Field("", "curve", kind=_CURVE, inline=True),
)


def priced_points(
    curve: Scaling,
    book: PriceBook | None = None,
    trainings: Iterable[TrainingCost | None] | None = None,
) -> list[PricedPoint]:
    """The points of a curve with prices, today's if none are given, and the training at each."""
    prices = book or price_book()
    costs = [ABSENT for _ in curve.points] if trainings is None else list(trainings)
    return [
        PricedPoint(
            PricedStep(p.prediction, offer_for(p.prediction, prices), "none", training=cost),
            p.relative,
            p.gpus == curve.knee,
        )
        for p, cost in zip(curve.points, costs, strict=True)
    ]


def scaling_record(curve: Scaling, **more: Any) -> dict[str, Any]:
    """A curve as plain data, with prices and trainings as `priced_points` takes them."""
    kind = "strong" if curve.is_strong else "weak"
    points = priced_points(curve, **more)
    return _CURVE.record({"scaling": kind, "knee": curve.knee, "points": points})


describe(
    Scaling,
    Field("", lambda curve: "strong" if curve.is_strong else "weak", title="scaling"),
    Field("", "knee", title="knee", absent=""),
    Field("", scaling_record, kind=_CURVE, inline=True),
    parts="points",
)
describe(
    ScalePoint,
    Field("gpus", title="GPUs", text=str),
    Field("", "prediction.seconds", title="step", text=duration),
    Field("relative", title="speed per GPU", drawn=True),
    Field("", "prediction", inline=True),
)


def scaling(
    title: str, curve: Scaling, width: int, book: PriceBook | None = None
) -> RenderableType:
    """Speed, efficiency and price over the number of GPUs."""
    return titled(title, *shown(scaling_columns(curve, book), width, scaling_remarks(curve)))


def scaling_columns(curve: Scaling, book: PriceBook | None = None) -> list[Column]:
    """The columns of a table of speeds by number of GPUs; with today's prices if none are given."""
    return columns(priced_points(curve, book))


def scaling_remarks(curve: Scaling) -> list[str]:
    """What a curve of speeds is about, and where more GPUs no longer pay."""
    step = curve.points[0].prediction
    kind = "strong" if curve.is_strong else "weak"
    told = [f"{kind} scaling of {strategy_text(step.parallel)} on {_cluster(step)}"]
    told.append(f"host: {step.host.name}")
    if curve.knee is not None:
        told.append(f"beyond {curve.knee} GPUs each has less than {KNEE:.0%} of the first's speed")
    return told
