"""What is compared on a page: a step on one GPU, or spread over several of one model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from wavecast.footprint.memory import Memory
from wavecast.hardware.device import Device
from wavecast.planning.choice import comparable
from wavecast.planning.prices import price
from wavecast.steps.parallel_prediction import ParallelPrediction
from wavecast.steps.prediction import Prediction
from wavecast.steps.rank_timetables import rank_timetables
from wavecast.steps.timetable import Timetable


@dataclass(frozen=True)
class Candidate:
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
    usd_per_hour: float | None
    """The price of all GPUs. None when unknown."""
    memory: Memory | None
    """The memory of the fullest GPU. None when unknown."""
    bound_by: str
    is_comparable: bool
    """Whether enough of the step was predicted to rank it."""
    timetables: Callable[[], Mapping[str, Timetable]]
    """A function that gives the timetable of each distinct rank, by what it is called."""

    @property
    def fits(self) -> bool | None:
        """Whether the step fits in memory. None when unknown."""
        return None if self.memory is None else self.memory.fits

    @property
    def per_usd(self) -> float | None:
        """Samples per dollar. None when the price or the throughput is unknown."""
        if self.usd_per_hour is None or self.throughput is None or not self.is_comparable:
            return None
        return self.throughput * 3600 / self.usd_per_hour


def of_prediction(step: Prediction, setup: str | None = None) -> Candidate:
    """A step on one GPU. With a setup, the price is that of its paper."""
    offer = price(step.device, setup)
    return Candidate(
        name=step.device.id,
        device=step.device,
        seconds=step.seconds,
        low_s=step.low_s,
        high_s=step.high_s,
        throughput=step.throughput,
        unit=step.trace.unit,
        usd_per_hour=None if offer is None else offer.usd_per_hour,
        memory=step.memory,
        bound_by=step.bound_by,
        is_comparable=comparable(step),
        timetables=lambda: {"": step.timetable},
    )


def of_parallel(step: ParallelPrediction, memory: Memory | None) -> Candidate:
    """A step on several GPUs, with the memory of its fullest rank."""
    offer = price(step.device)
    exposed = step.exposed_s + step.idle_s
    return Candidate(
        name=f"{step.gpus} x {step.device.id}",
        device=step.device,
        seconds=step.seconds,
        low_s=step.low_s,
        high_s=step.high_s,
        throughput=step.throughput,
        unit=step.trace.unit,
        usd_per_hour=None if offer is None else offer.usd_per_hour * step.gpus,
        memory=memory,
        bound_by="communication" if exposed > 0.5 * step.seconds else "gpu",
        is_comparable=True,
        timetables=lambda: rank_timetables(step),
    )


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that can be chosen, fastest first: they may fit, and enough of them was predicted."""
    usable = (one for one in candidates if one.is_comparable and one.fits is not False)
    return sorted(usable, key=lambda one: -(one.throughput or 1 / one.seconds))


def best_value(candidates: Sequence[Candidate]) -> Candidate | None:
    """The one that does most work for a dollar; None without prices."""
    priced = [one for one in ranked(candidates) if one.per_usd is not None]
    return max(priced, key=lambda one: one.per_usd or 0.0, default=None)


def cannot_be_told_apart(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those whose predicted time lies in the range of the fastest, whose time lies in theirs."""
    order = ranked(candidates)
    if not order:
        return []
    fastest, *others = order
    return [one for one in others if _holds(one, fastest) and _holds(fastest, one)]


def _holds(one: Candidate, other: Candidate) -> bool:
    """Whether the range of one holds the predicted time of another, for the same work."""
    if one.low_s is None or one.high_s is None:
        return False
    seconds = other.seconds
    if one.throughput and other.throughput:
        seconds *= one.throughput * one.seconds / (other.throughput * other.seconds)
    return one.low_s <= seconds <= one.high_s
