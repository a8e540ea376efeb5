"""The strategies that a search found: the best ones, and why others cannot be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType

from wavecast.footprint.memory import Memory
from wavecast.parallel.strategy import option_of
from wavecast.planning.failures import Interruptions
from wavecast.planning.layouts import Layout
from wavecast.planning.networks import NetworkPoint
from wavecast.planning.prices import price_book
from wavecast.planning.utilization import model_flops_utilization
from wavecast.report.fields import Field, columns, describe
from wavecast.report.priced_steps import PricedStep, memory_text, offer_for, range_of
from wavecast.report.tables import remarks, shown, titled
from wavecast.report.units import count, duration, long_duration, memory, percent

_LOST_SHOWN = 8
MFU_LINE = (
    "MFU: the FLOPs of forward and backward pass, without what is recomputed, over what the GPUs "
    "could compute in that time"
)


def layouts(
    title: str, found: Sequence[Layout], width: int, most: int = 10, notes: Sequence[str] = ()
) -> RenderableType:
    """The best strategies of a search, and why some of the others lost."""
    working = [layout for layout in found if layout.prediction is not None][:most]
    told = [*lost_layouts(found), *notes]
    if not working:
        nothing = "no strategy fits" if not_tried(found) == 0 else "no strategy that fits so far"
        return titled(title, nothing, "", *remarks(told))
    use = f"to predict the first alone: --parallel {option_of(working[0].strategy)}"
    batch = f" --batch {working[0].micro_batch}{_RECOMPUTED[working[0].recompute]}"
    return titled(title, *shown(columns(working), width, [use + batch, MFU_LINE, *told]))


_RECOMPUTED = {"none": "", "selective": " --recompute selective", "full": " --checkpointing"}


def _step(layout: Layout) -> PricedStep | None:
    """The step; null when it does not fit, cannot be done, or was not played."""
    step = layout.prediction
    return None if step is None else PricedStep(step, offer_for(step, price_book()), "none")


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


def told_layouts(target: str, found: Sequence[Layout]) -> list[TargetLayout]:
    """The layouts that JSON has: those that were played, and one for each other reason."""
    played = [layout for layout in found if layout.prediction is not None]
    others = {layout.reason: layout for layout in reversed(found) if layout.prediction is None}
    return [TargetLayout(target, layout) for layout in (*played, *reversed(others.values()))]


def lost_layouts(found: Sequence[Layout]) -> list[str]:
    """How many strategies cannot be used, and why."""
    lost = [layout for layout in found if layout.prediction is None]
    slower = sum(layout.least_s is not None for layout in lost)
    large = sum(not layout.fits for layout in lost)
    untried = not_tried(found)
    played = len(found) - len(lost)
    told = [
        f"{len(found)} strategies: {played} played, {large} do not fit, {slower} "
        "cannot be among the first by a lower bound, "
        f"{len(lost) - large - slower - untried} cannot be done"
    ]
    if untried:
        reason = next(layout.reason for layout in lost if not layout.is_tried)
        told.append(f"{untried} {reason}" + ("; shown is the best so far" if played else ""))
    reasons: dict[str, list[str]] = {}
    for layout in lost:
        if layout.fits and layout.least_s is None and layout.is_tried:
            reasons.setdefault(layout.reason, []).append(option_of(layout.strategy))
    for reason, names in list(reasons.items())[:_LOST_SHOWN]:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        told.append(f"{names[0]}{more}: {reason}")
    smallest = min((one for one in lost if not one.fits), key=_needed, default=None)
    if large == len(lost) == len(found) and smallest is not None:
        told.append(f"{option_of(smallest.strategy)}: {smallest.reason}")
    hosts = dict.fromkeys(layout.prediction.host.name for layout in found if layout.prediction)
    return [*told, *(f"host: {host}" for host in hosts)]


def not_tried(found: Sequence[Layout]) -> int:
    """How many strategies a search that was stopped did not come to."""
    return sum(not layout.is_tried for layout in found)


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
