"""Whole trainings: hours, money and energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType

from wavecast.planning.cost import Ranged, TrainingCost, TrainingPlan
from wavecast.report.fields import Field, columns, describe
from wavecast.report.prices import seen, seller
from wavecast.report.tables import fitting, left_out, remarks, table, titled
from wavecast.report.units import UNKNOWN, count, energy, long_duration, money, quantity, span

ENERGY_LINE = (
    "energy: at most, with the GPUs at their board's power limit all the time; the machine around "
    "them is not counted"
)


@dataclass(frozen=True)
class WholeTraining:
    """A training of some length on each of several GPUs, for a report."""

    plan: TrainingPlan
    costs: Sequence[TrainingCost | None]
    """What it takes on each, in the order of the steps; None where it cannot run."""
    remarks: Sequence[str] = ()
    """What the time has of steps that differ, or has not."""


def plan_text(plan: TrainingPlan, unit: str) -> str:
    """The length of a training in words: `90 epochs of 1,281,167 samples`."""
    if plan.epochs is not None:
        epochs = "epoch" if plan.epochs == 1 else "epochs"
        return f"{count(plan.epochs)} {epochs} of {count(plan.dataset_samples or 0)} {unit}"
    if plan.iterations is not None:
        return f"{count(plan.iterations)} optimizer steps"
    if plan.tokens is not None:
        return f"{quantity(plan.tokens)} tokens"
    return f"{quantity(plan.samples or 0)} {unit}"


def gpus_text(cost: TrainingCost) -> str:
    """The GPUs of a training: `8 x l4`."""
    return cost.device_id if cost.gpus == 1 else f"{cost.gpus} x {cost.device_id}"


def long_range(value: Ranged) -> str:
    """A range of long times: `1.2 h - 2.5 h`, or `?`."""
    return span(value.low, value.high, long_duration)


def money_range(value: Ranged | None) -> str:
    """A range of money: `$12.30 - $20.10`, or `?`."""
    return UNKNOWN if value is None else span(value.low, value.high, money)


describe(
    TrainingCost,
    Field("", gpus_text, title="GPUs"),
    *map(Field, ("device_id", "gpus")),
    Field("steps", title="steps", rank=3),
    Field("", "seconds.value", title="time", text=long_duration, drawn=True),
    Field("", "seconds", title="range", rank=2, text=long_range),
    Field("", "usd.value", title="cost", text=money),
    Field("", "usd", title="range of cost", rank=2, text=money_range),
    Field("", "energy_kwh.value", title="energy", rank=4, text=energy),
    Field("", "offer", title="offer", rank=5, text=seller, left=True),
    Field("", "offer", title="price of", rank=6, text=seen),
    *map(Field, ("accumulated", "step_samples", "step", "seconds", "training_s", "validation_s")),
    *map(Field, ("checkpoint_s", "startup_s", "uneven_s", "energy_kwh", "offer", "machines")),
    *map(Field, ("usd", "hours")),
)


def trainings(
    plan: TrainingPlan,
    unit: str,
    costs: Sequence[TrainingCost | None],
    width: int,
    remarks_first: Sequence[str] = (),
) -> RenderableType:
    """One row for each prediction; None where the step does not fit."""
    known = [cost for cost in costs if cost is not None]
    if not known:
        return Group("", "the training fits on none of the GPUs")
    every = columns(known)
    kept = fitting(every, width)
    title = f"a whole training: {plan_text(plan, unit)}"
    lines = [ENERGY_LINE] if "energy" in {column.name for column in kept} else []
    lines = [*remarks_first, *left_out(every, kept), *_parts(known[0]), *lines]
    return Group("", titled(title, table(kept), "", *remarks(lines)))


def _parts(cost: TrainingCost) -> list[str]:
    """What the time has beside the steps, and how an optimizer step is made."""
    lines = []
    if cost.accumulated > 1:
        lines.append(f"each optimizer step accumulates {cost.accumulated} micro-batches on a GPU")
    named = {
        "validation": cost.validation_s.value,
        "checkpoints": cost.checkpoint_s.value,
        "start": cost.startup_s,
        "what only some steps do": max(cost.uneven_s.value, 0.0),
    }
    times = [f"{name} {long_duration(seconds)}" for name, seconds in named.items() if seconds]
    return [*lines, f"of that on {cost.device_id}: {', '.join(times)}"] if times else lines
