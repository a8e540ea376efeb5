"""Whole trainings: hours, money and energy."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Group, RenderableType

from wavecast.planning.cost import Ranged, TrainingCost, TrainingPlan
from wavecast.planning.prices import STALE_DAYS, Price, PriceBook, today
from wavecast.report.fields import Field, columns, describe, output
from wavecast.report.tables import fitting, left_out, remarks, shown, table, titled
from wavecast.report.units import UNKNOWN, count, energy, long_duration, money, quantity, span

# Prices in tables and in words: what an hour costs, who sells it, and how old the price is.


def hourly(offer: Price | None) -> str:
    """The price of a GPU in USD per hour, or `?`; `0.79 (of 8)` if others come with it."""
    if offer is None:
        return UNKNOWN
    alone = "" if offer.gpus == 1 else f" (of {offer.gpus})"
    return f"{offer.usd_per_hour:.2f}{alone}"


def seen(offer: Price | None, on: datetime.date | None = None) -> str:
    """The date of a price, or `?`; an old one is marked."""
    if offer is None:
        return UNKNOWN
    return f"{offer.date}{' (old)' if offer.is_stale(on or today()) else ''}"


def seller(offer: Price) -> str:
    """Who sells what: `lambda gpu_1x_a10, europe-central-1`; `spot` where it is so."""
    who = " ".join(filter(None, (offer.provider, offer.instance)))
    return ", ".join(filter(None, (who, offer.region, "spot" if offer.is_spot else "")))


def machine(offer: Price) -> str:
    """What is rented, without the seller: `gpu_1x_a10, europe-central-1`."""
    return seller(replace(offer, provider=""))


def offer_text(offer: Price) -> str:
    """An offer in one line: `1.29 $/h (lambda gpu_1x_a10, europe-central-1, 2026-07-23)`."""
    where = f"{seller(offer).removesuffix(', spot')}, {seen(offer)}"
    host = "" if offer.includes_host else ", the machine around it not included"
    spot = " spot" if offer.is_spot else ""
    return f"{hourly(offer)} $/h{spot}{host} ({where})"


def price_lines(offers: Sequence[Price | None], setup: str | None = None) -> list[str]:
    """The lines under a table about the prices in it."""
    known = [offer for offer in offers if offer is not None]
    if not known:
        return []
    if setup is not None:
        return [f"$/h: USD per GPU ({known[0].provider})"]
    first, last = min(o.date for o in known), max(o.date for o in known)
    dates = f"of {first}" if first == last else f"of {first} to {last}"
    lines = [f"$/h: cheapest offer on demand of one GPU in USD, prices {dates} (wavecast prices)"]
    if any(offer.gpus > 1 for offer in known):
        lines.append("(of 8): rented only in machines of so many GPUs; the price is that of one")
    if any(not offer.includes_host for offer in known):
        bare = [offer.device_id for offer in known if not offer.includes_host]
        lines.append(f"the machine around it costs extra: {', '.join(dict.fromkeys(bare))}")
    return [*lines, *_old(known)]


def _old(offers: Sequence[Price]) -> list[str]:
    is_old = any(offer.is_stale(today()) for offer in offers)
    return [f"(old): the price is older than {STALE_DAYS} days"] if is_old else []


ORDERS: dict[str, Callable[[Price], tuple[Any, ...]]] = {
    "price": lambda offer: (offer.usd_per_hour, offer.device_id, offer.gpus),
    "gpu": lambda offer: (offer.device_id, offer.usd_per_hour, offer.gpus),
    "provider": lambda offer: (offer.provider, offer.device_id, offer.gpus),
    "date": lambda offer: (-offer.date.toordinal(), offer.usd_per_hour),
}
"""What offers are sorted by, by the name of the order."""


def cheapest_of_each(given: Sequence[Price]) -> list[Price]:
    """Of each GPU the cheapest offer: of one GPU with its machine, where there is such an offer."""
    best: dict[str, Price] = {}
    for offer in sorted(given, key=lambda o: (not o.includes_host, o.usd_per_hour_of(1), o.gpus)):
        best.setdefault(offer.device_id, offer)
    return list(best.values())


describe(
    Price,
    Field("device_id", title="GPU"),
    Field("gpus", title="GPUs", text=str),
    Field("usd_per_hour", title="$/h per GPU", text="{:.3f}".format),
    Field("", "machine_usd_per_hour", title="$/h", rank=2, text="{:.2f}".format),
    Field("", lambda offer: "spot" if offer.is_spot else "on demand", title="", rank=3),
    Field("provider", title="provider"),
    Field("", lambda o: o.instance if o.includes_host else "costs extra", title="machine", rank=5),
    Field("region", title="region", rank=6),
    Field("", seen, title="price of", rank=1, left=False),
    *map(Field, ("instance", "date", "includes_host", "is_spot")),
)


OFFERS = output(
    "The offers of a table of prices.",
    Field("date", kind=datetime.date, meaning="The date of the newest price."),
    Field("source", kind=str, meaning="Where the prices are from."),
    Field("offers", kind=Sequence[Price], meaning="The offers, in USD for an hour of one GPU."),
)


def offers(
    given: Sequence[Price], book: PriceBook, width: int, *, is_summary: bool
) -> RenderableType:
    """One row for each offer."""
    lines = [f"prices of {book.date} or older, from {book.source or 'your table'}"]
    if is_summary:
        lines.append('all offers of a GPU: "wavecast prices --gpu NAME"')
    return Group(*shown(columns(given), width, [*lines, *_old(given)]))


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
