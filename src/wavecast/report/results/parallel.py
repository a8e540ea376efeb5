"""Steps on several GPUs: predictions, searches and scaling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rich.console import Group, RenderableType

from wavecast.footprint.memory import Memory
from wavecast.parallel.strategy import Parallel, option_of
from wavecast.planning.cost import Interruptions, TrainingCost
from wavecast.planning.layouts import Layout, NetworkPoint, model_flops_utilization
from wavecast.planning.prices import PriceBook
from wavecast.planning.scaling import KNEE, ScalePoint, Scaling
from wavecast.report.fields import Field, columns, describe, output
from wavecast.report.results.predictions import (
    SEVERAL,
    PricedStep,
    memory_text,
    priced,
    priced_steps,
    range_of,
)
from wavecast.report.tables import Column, by_gpu, headed, notes, remarks, shown, titled
from wavecast.report.units import (
    count,
    duration,
    long_duration,
    memory,
    percent,
    quantity,
)
from wavecast.steps.prediction import TOO_MUCH, Prediction, comparable

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
    lines = [
        f"one optimizer step: {strategy_text(first.parallel)}",
        EFFICIENCY_LINE,
        exposed_line(first.parallel),
        f"host: {by_gpu((step.device.id, step.host.name) for step in steps)}",
    ]
    lines += unpredicted(steps)
    return titled(
        headed(title, ((step.device.id, step.trace) for step in steps)),
        *shown(every, width, lines),
        *notes([*dict.fromkeys(note for step in steps for note in step.notes), *first.trace.notes]),
    )


def unpredicted(steps: Sequence[Prediction]) -> list[str]:
    """The ops that nobody could predict, and the steps that therefore cannot be compared."""
    missing = sorted({name for step in steps for name in step.unpredicted})
    if not missing:
        return []
    lines = [f"not predicted, counted as 0: {', '.join(missing[:4])}"]
    left_out = [step.name for step in steps if not comparable(step)]
    if left_out:
        lines.append(
            f"on {', '.join(left_out)} that is more than {percent(TOO_MUCH)} of the step, so its "
            "time is a lower bound"
        )
    return lines


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
    steps = priced_steps([point.prediction for point in curve.points], book, trainings, "none")
    return [
        PricedPoint(step, point.relative, point.gpus == curve.knee)
        for step, point in zip(steps, curve.points, strict=True)
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
    place = "" if step.cluster is None else step.cluster.id
    lines = [f"{kind} scaling of {strategy_text(step.parallel)} on {place}"]
    lines.append(f"host: {step.host.name}")
    if curve.knee is not None:
        lines.append(f"beyond {curve.knee} GPUs each has less than {KNEE:.0%} of the first's speed")
    return lines


# The strategies that a search found: the best ones, and why others cannot be used.


_LOST_SHOWN = 8
MFU_LINE = (
    "MFU: the FLOPs of forward and backward pass, without what is recomputed, over what the GPUs "
    "could compute in that time"
)


def layouts(
    title: str, every: Sequence[Layout], width: int, most: int = 10, notes: Sequence[str] = ()
) -> RenderableType:
    """The best strategies of a search, and why some of the others lost."""
    working = [layout for layout in every if layout.prediction is not None][:most]
    lines = [*lost_layouts(every), *notes]
    if not working:
        nothing = "no strategy fits" if not_tried(every) == 0 else "no strategy that fits so far"
        return titled(title, nothing, "", *remarks(lines))
    use = f"to predict the first alone: --parallel {option_of(working[0].strategy)}"
    batch = f" --batch {working[0].micro_batch}{_RECOMPUTED[working[0].recompute]}"
    return titled(title, *shown(columns(working), width, [use + batch, MFU_LINE, *lines]))


_RECOMPUTED = {"none": "", "selective": " --recompute selective", "full": " --checkpointing"}


def _step(layout: Layout) -> PricedStep | None:
    """The step; null when it does not fit, cannot be done, or was not played."""
    step = layout.prediction
    return None if step is None else priced_steps([step], by="none")[0]


def _share(needed: Memory | None) -> float | None:
    """How full the fullest GPU is. Null where its memory is unknown."""
    if needed is None or needed.device is None:
        return None
    return needed.needed_bytes / needed.device.memory_bytes


def _filled(needed: Memory | None) -> str:
    """The memory of the fullest GPU, of all that it has."""
    share = _share(needed)
    if needed is None or needed.device is None or share is None:
        return memory_text(needed)
    return f"{memory_text(needed)} of {memory(needed.device.memory_bytes)}, {percent(share)}"


def _rate(layout: Layout) -> float | None:
    """Samples, or what `unit` names, per second of each GPU."""
    step = layout.prediction
    return None if step is None or step.throughput is None else step.throughput / step.gpus


def _utilization(layout: Layout) -> float | None:
    """The model FLOPs utilisation (MFU). None where `prediction` is, or a rate is unknown."""
    return None if layout.prediction is None else model_flops_utilization(layout.prediction)


describe(
    Layout,
    Field(
        "option",
        lambda layout: option_of(layout.strategy),
        title="strategy",
        left=True,
        kind=str,
        meaning="The strategy as --parallel takes it.",
    ),
    Field("micro_batch", title="micro-batch", rank=4, text=str),
    Field("recompute", title="recomputed", rank=4),
    Field("", "seconds", title="step", drawn=True),
    Field("", "prediction", title="range", rank=5, text=range_of, absent=""),
    Field("throughput_per_gpu", _rate, title="{unit}/s per GPU", rank=2, text=count),
    Field("mfu", _utilization, title="MFU", rank=2, text=percent),
    Field("", "memory", title="memory", rank=2, left=False, text=_filled),
    Field("reason", title="loses time with", rank=3),
    "strategy",
    "least_s",
    Field("memory_bytes", "memory.needed_bytes", meaning="The memory of the fullest GPU."),
    Field(
        "memory_share",
        lambda layout: _share(layout.memory),
        kind=float | None,
        meaning="Its share of the GPU's.",
    ),
    Field("prediction", _step),
    unit="prediction.trace.unit",
)


@dataclass(frozen=True)
class TargetLayout:
    """One way to spread a step over GPUs."""

    target: str
    """What the step is, with its sizes."""
    layout: Layout


describe(TargetLayout, "target", Field("", "layout", inline=True))


def told_layouts(target: str, every: Sequence[Layout]) -> list[TargetLayout]:
    """The layouts that JSON has: those that were played, and one for each other reason."""
    played = [layout for layout in every if layout.prediction is not None]
    others = {layout.reason: layout for layout in reversed(every) if layout.prediction is None}
    return [TargetLayout(target, layout) for layout in (*played, *reversed(others.values()))]


def lost_layouts(every: Sequence[Layout]) -> list[str]:
    """How many strategies cannot be used, and why."""
    lost = [layout for layout in every if layout.prediction is None]
    slower = sum(layout.least_s is not None for layout in lost)
    large = sum(not layout.fits for layout in lost)
    untried = not_tried(every)
    played = len(every) - len(lost)
    lines = [
        f"{len(every)} strategies: {played} played, {large} do not fit, {slower} "
        "cannot be among the first by a lower bound, "
        f"{len(lost) - large - slower - untried} cannot be done"
    ]
    if untried:
        reason = next(layout.reason for layout in lost if not layout.is_tried)
        lines.append(f"{untried} {reason}" + ("; shown is the best so far" if played else ""))
    reasons: dict[str, list[str]] = {}
    for layout in lost:
        if layout.fits and layout.least_s is None and layout.is_tried:
            reasons.setdefault(layout.reason, []).append(option_of(layout.strategy))
    for reason, names in list(reasons.items())[:_LOST_SHOWN]:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"{names[0]}{more}: {reason}")
    smallest = min((layout for layout in lost if not layout.fits), key=_needed, default=None)
    if large == len(lost) == len(every) and smallest is not None:
        lines.append(f"{option_of(smallest.strategy)}: {smallest.reason}")
    hosts = dict.fromkeys(layout.prediction.host.name for layout in every if layout.prediction)
    return [*lines, *(f"host: {host}" for host in hosts)]


def not_tried(every: Sequence[Layout]) -> int:
    """How many strategies a search that was stopped did not come to."""
    return sum(not layout.is_tried for layout in every)


def _needed(layout: Layout) -> float:
    return float("inf") if layout.least_bytes is None else layout.least_bytes


describe(
    NetworkPoint,
    Field("factor", title="network", text=lambda factor: f"x {factor:g}"),
    Field("bytes_per_s", title="of a machine", text=lambda rate: f"{rate / 1e9:.0f} GB/s"),
    Field("seconds", title="step", text=duration),
    Field("relative", title="speed", text=percent),
    Field("", lambda point: option_of(point.strategy), title="strategy", left=True),
    "strategy",
)


def networks(points: Sequence[NetworkPoint], width: int) -> RenderableType:
    """What slower and faster networks do to the strategies shown first."""
    title = "what network is needed: the fastest of the first strategies on slower and faster ones"
    return Group("", titled(title, *shown(columns(points), width, [])))


def interruptions_lines(lost: Interruptions, training_s: float) -> list[str]:
    """What failures and checkpoints add to a training, in words."""
    return [
        f"failures: one every {long_duration(lost.hours_between * 3600)} is expected, "
        f"{lost.failures:.1f} in all; with a checkpoint every "
        f"{long_duration(lost.checkpoint_every_s)} they and the checkpoints add "
        f"{percent(lost.share)}, so the first training takes "
        f"{long_duration(training_s * (1 + lost.share))} in all"
    ]
