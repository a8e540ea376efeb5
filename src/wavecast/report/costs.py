"""Whole trainings as tables and as data for JSON: hours, money and energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType

from wavecast.planning.cost import Ranged, TrainingCost, TrainingPlan
from wavecast.planning.prices import Price
from wavecast.report.prices import seen
from wavecast.report.tables import Column, fitting, remarks, table, titled
from wavecast.report.units import UNKNOWN, count, long_duration, or_unknown, quantity, three_digits

ENERGY_LINE = (
    "energy: at most, with the GPUs at their board's power limit all the time; the machine around "
    "them is not counted"
)


def plan_text(plan: TrainingPlan, unit: str) -> str:
    """The length of a training in words: `90 epochs of 1,281,167 samples`."""
    if plan.epochs is not None:
        return f"{count(plan.epochs)} epochs of {count(plan.dataset_samples or 0)} {unit}"
    if plan.iterations is not None:
        return f"{count(plan.iterations)} optimizer steps"
    if plan.tokens is not None:
        return f"{quantity(plan.tokens)} tokens"
    return f"{quantity(plan.samples or 0)} {unit}"


def trainings(
    plan: TrainingPlan, unit: str, costs: Sequence[TrainingCost | None], width: int
) -> RenderableType:
    """One row for each prediction; None where the step does not fit."""
    known = [cost for cost in costs if cost is not None]
    if not known:
        return Group("", "the training fits on none of the GPUs")
    columns = [
        Column("GPUs", [gpus_text(cost) for cost in known], left=True),
        Column("steps", [count(cost.steps) for cost in known], 3),
        Column("time", [long_duration(cost.seconds.value) for cost in known]),
        Column("range", [long_range(cost.seconds) for cost in known], 2),
        Column("cost", [money_or_unknown(cost.usd) for cost in known]),
        Column("range of cost", [money_range(cost.usd) for cost in known], 2),
        Column("energy", [or_unknown(_kwh(cost), kwh) for cost in known], 4),
        Column("offer", [offer_name(cost.offer) for cost in known], 5, left=True),
        Column("price of", [seen(cost.offer) for cost in known], 6),
    ]
    kept = fitting(columns, width)
    shown = {column.name for column in kept}
    title = f"a whole training: {plan_text(plan, unit)}"
    lines = [ENERGY_LINE] if "energy" in shown else []
    return Group("", titled(title, table(kept), "", *remarks([*_parts(known[0]), *lines])))


def _parts(cost: TrainingCost) -> list[str]:
    """What the time has beside the steps, and how an optimizer step is made."""
    lines = []
    if cost.accumulated > 1:
        lines.append(f"each optimizer step accumulates {cost.accumulated} micro-batches on a GPU")
    named = {
        "validation": cost.validation_s.value,
        "checkpoints": cost.checkpoint_s.value,
        "start": cost.startup_s,
    }
    times = [f"{name} {long_duration(seconds)}" for name, seconds in named.items() if seconds]
    return [*lines, f"of that on {cost.device_id}: {', '.join(times)}"] if times else lines


def gpus_text(cost: TrainingCost) -> str:
    """The GPUs of a training: `8 x l4`."""
    return cost.device_id if cost.gpus == 1 else f"{cost.gpus} x {cost.device_id}"


def long_range(value: Ranged) -> str:
    """A range of long times: `1.2 h - 2.5 h`, or `?`."""
    if value.low is None or value.high is None:
        return UNKNOWN
    return f"{long_duration(value.low)} - {long_duration(value.high)}"


def money(usd: float) -> str:
    """An amount in USD: `$0.0123`, `$12.30`, `$1,230`."""
    if usd >= 1000:
        return f"${usd:,.0f}"
    return f"${usd:.2f}" if usd >= 0.1 else f"${usd:.3g}"


def money_or_unknown(value: Ranged | None) -> str:
    """An amount, or `?`."""
    return UNKNOWN if value is None else money(value.value)


def money_range(value: Ranged | None) -> str:
    """A range of money: `$12.30 - $20.10`, or `?`."""
    if value is None or value.low is None or value.high is None:
        return UNKNOWN
    return f"{money(value.low)} - {money(value.high)}"


def kwh(value: float) -> str:
    """An amount of energy: `12.3 kWh`."""
    return f"{count(value) if value >= 1000 else three_digits(value)} kWh"


def _kwh(cost: TrainingCost) -> float | None:
    return None if cost.energy_kwh is None else cost.energy_kwh.value


def offer_name(offer: Price | None) -> str:
    """Who sells what: `lambda gpu_1x_a10, europe-central-1`; `spot` where it is so."""
    if offer is None:
        return UNKNOWN
    seller = " ".join(filter(None, (offer.provider, offer.instance)))
    return ", ".join(filter(None, (seller, offer.region, "spot" if offer.is_spot else "")))


def cost_record(cost: TrainingCost) -> dict[str, Any]:
    """A whole training as plain data."""
    return asdict(cost) | {
        "hours": asdict(cost.hours),
        "offer": None if cost.offer is None else price_record(cost.offer),
    }


def price_record(offer: Price) -> dict[str, Any]:
    """An offer as plain data."""
    return asdict(offer) | {"date": offer.date.isoformat()}
