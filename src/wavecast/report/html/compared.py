"""What is compared on a page: a step on one GPU, or spread over several of one model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from wavecast.footprint.memory import Memory
from wavecast.hardware.device import Device
from wavecast.planning.cost import Ranged, TrainingCost
from wavecast.planning.listing_order import comparable
from wavecast.planning.prices import Price, PriceBook
from wavecast.planning.selection import Candidate, tells_apart
from wavecast.report.priced_steps import offer_for
from wavecast.report.units import percent
from wavecast.steps.prediction import Prediction
from wavecast.steps.timetable import Timetable


@dataclass(frozen=True)
class ComparedStep:
    """One step on one or several GPUs, with what a page says about it."""

    name: str
    """The GPUs: "l4" or "8 x l4"."""
    device: Device
    seconds: float
    low_s: float | None
    high_s: float | None
    throughput: float | None
    """Samples (`unit`) per second of all GPUs together. None when unknown."""
    unit: str
    offer: Price | None
    """The cheapest known offer of the GPUs. None when unknown."""
    memory: Memory | None
    """The memory of the fullest GPU. None when unknown."""
    bound_by: str
    is_comparable: bool
    """Whether enough of the step was predicted to rank it."""
    timetables: Callable[[], Mapping[str, Timetable]]
    """A function that gives the timetable of each distinct rank, by what it is called."""
    gpus: int = 1
    remark: str = ""
    """What the verdict adds; empty to say what the step is bound by."""
    training: TrainingCost | None = None
    """What the whole training takes. None if it was not asked for, or cannot run."""

    @property
    def usd_per_hour(self) -> float | None:
        """The price of all GPUs; of one, its share of the machine. None when unknown."""
        if self.offer is None:
            return None
        return self.offer.usd_per_hour if self.gpus == 1 else self.offer.usd_per_hour_of(self.gpus)

    @property
    def rate(self) -> float | None:
        """The throughput; None where the step does not fit, or too little of it was predicted."""
        return self.throughput if self.is_comparable and self.fits is not False else None

    @property
    def fits(self) -> bool | None:
        """Whether the step fits in memory. None when unknown."""
        return None if self.memory is None else self.memory.fits

    @property
    def per_usd(self) -> float | None:
        """Samples per dollar. None when the price or the throughput is unknown."""
        if self.usd_per_hour is None or self.rate is None:
            return None
        return self.rate * 3600 / self.usd_per_hour


def of_prediction(
    step: Prediction, book: PriceBook, training: TrainingCost | None = None
) -> ComparedStep:
    """A step, with the cheapest offer of a table of prices, and what a whole training takes."""
    speed = f"each GPU has {percent(step.efficiency)} of the speed of one alone"
    return ComparedStep(
        name=step.name,
        device=step.device,
        seconds=step.seconds,
        low_s=step.low_s,
        high_s=step.high_s,
        throughput=step.throughput,
        unit=step.trace.unit,
        offer=offer_for(step, book),
        memory=step.memory,
        bound_by=step.bound_by,
        is_comparable=comparable(step),
        timetables=lambda: step.timetables,
        gpus=step.gpus,
        remark="" if step.parallel is None else speed,
        training=training,
    )


def ranked(steps: Sequence[ComparedStep]) -> list[ComparedStep]:
    """Those that can be chosen, fastest first: they may fit, and enough of them was predicted."""
    usable = (one for one in steps if one.is_comparable and one.fits is not False)
    return sorted(usable, key=lambda one: -(one.throughput or 1 / one.seconds))


def best_value(steps: Sequence[ComparedStep]) -> ComparedStep | None:
    """The one that does most work for a dollar; None without prices."""
    priced = [one for one in ranked(steps) if one.per_usd is not None]
    return max(priced, key=lambda one: one.per_usd or 0.0, default=None)


def most_wanted(steps: Sequence[ComparedStep]) -> list[ComparedStep]:
    """The fastest first, then the one that gives most for the money, then the others."""
    value = best_value(steps)
    order = ranked(steps)
    first = [*order[:1], *([] if value is None or value in order[:1] else [value])]
    chosen = {id(one) for one in first}
    return [*first, *(one for one in steps if id(one) not in chosen)]


def cannot_be_told_apart(steps: Sequence[ComparedStep]) -> list[ComparedStep]:
    """Those that may be as fast as the fastest (`planning.selection` has the rule)."""
    order = ranked(steps)
    if not order or order[0].low_s is None:
        return []
    first, *others = order
    return [one for one in others if one.low_s is not None and not _is_slower(first, one)]


def _is_slower(first: ComparedStep, other: ComparedStep) -> bool:
    pairs = [(Candidate(one.device, one.gpus, None), _per_sample(one)) for one in (first, other)]
    (fast, less), (slow, more) = pairs
    return tells_apart(fast, slow, less, more)


def _per_sample(one: ComparedStep) -> Ranged:
    """The time for a sample, or for a step where samples are not counted."""
    samples = one.throughput * one.seconds if one.throughput else 1.0
    return Ranged(one.seconds, one.low_s, one.high_s).times(1 / samples)
