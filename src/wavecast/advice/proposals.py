"""Proposals: a step with changes beside the step as it is, and what that gains."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from wavecast.advice.catalogue import CHANGES, StepChange
from wavecast.errors import InvalidInput
from wavecast.hardware.devices import devices
from wavecast.parallel.strategy import Parallel
from wavecast.planning.candidates import is_verified
from wavecast.planning.prices import Price, PriceBook
from wavecast.results import Shown
from wavecast.steps.prediction import Prediction, comparable
from wavecast.steps.request import on_cluster, predict
from wavecast.traces.script import Loading

SHARED_ERROR = 0.8
"""The correlation of the errors of one step before and after a change on one GPU. The steps of
`lab.steps.advice`, measured on an H200, show how many ranges that are made with it hold
(`lab/score/advice.py`)."""
_MOST_SHARED = 0.97
"""The same for steps with the same ops, in which the host still issues and waits otherwise."""
_HELD_BACK = 0.05
"""By how much the gain of the GPU's time exceeds that of the step where the host is to blame."""
_WORTH_SAYING = 0.01
"""The least gain that counts."""


class Use(StrEnum):
    """What a change is good for."""

    FASTER = "faster"
    SMALLER = "smaller"
    """It saves memory, and costs time or gains none."""
    NO_USE = "no use here"
    IMPOSSIBLE = "not possible"


@dataclass(frozen=True)
class Proposal:
    """One or more changes, and the step before and after them."""

    changes: tuple[StepChange, ...]
    before: Prediction
    after: Prediction | None = None
    """None if the step cannot be changed so."""
    reason: str = ""
    """Why it cannot, or why it is of no use."""
    lines: tuple[str, ...] = ()
    """The lines of the user's code that are concerned, where they are known."""

    @property
    def title(self) -> str:
        """The changes in words."""
        return " + ".join(change.title for change in self.changes)

    @property
    def name(self) -> str:
        """The names of the changes."""
        return "+".join(change.name for change in self.changes)

    @property
    def code(self) -> str:
        """The lines of code that make the changes."""
        where = f"   ({', '.join(self.lines)})" if self.lines else ""
        return "; ".join(change.code for change in self.changes) + where

    @property
    def price(self) -> str:
        """What the changes cost: numerics, memory, effort."""
        prices = dict.fromkeys(change.price for change in self.changes if change.price)
        return "; ".join(prices) or "nothing"

    @property
    def time_ratio(self) -> float | None:
        """The time for a sample after, divided by that before; of a step if samples are unknown."""
        if self.after is None:
            return None
        return self.after.seconds / self.before.seconds / self._more_samples

    @property
    def gain(self) -> float | None:
        """The share of the time that is saved; negative if the step becomes slower."""
        return None if self.time_ratio is None else 1 - self.time_ratio

    @property
    def gpu_gain(self) -> float | None:
        """The share of the GPU's time that is saved, whatever the host needs."""
        if self.after is None or not self.before.gpu_s:
            return None
        return 1 - self.after.gpu_s / self.before.gpu_s / self._more_samples

    @property
    def is_held_back(self) -> bool:
        """Whether the host keeps the step from most of what the GPU saves."""
        if self.after is None or self.gain is None or self.gpu_gain is None:
            return False
        return self.after.bound_by != "gpu" and self.gpu_gain - self.gain > _HELD_BACK

    @property
    def gain_low(self) -> float | None:
        """The low end of the range of `gain`; None where the predictions have no range."""
        return self._end(1)

    @property
    def gain_high(self) -> float | None:
        """The high end of the range of `gain`."""
        return self._end(-1)

    @property
    def saved_bytes(self) -> int | None:
        """The memory that is saved at the peak; negative if more is needed. None when unknown.

        Of allocated memory: what the allocator reserves moves with the order of sizes, too.
        """
        if self.after is None or self.before.memory is None or self.after.memory is None:
            return None
        return self.before.memory.peak_bytes - self.after.memory.peak_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the changed step fits; None when unknown."""
        return None if self.after is None else self.after.fits

    @property
    def verdict(self) -> Use:
        """What the changes are good for."""
        if self.gain is None:
            return Use.IMPOSSIBLE
        if self.gain > _WORTH_SAYING and (self.fits is not False or self.before.fits is False):
            return Use.FASTER
        memory = self.before.memory
        if memory is not None and (self.saved_bytes or 0) > _WORTH_SAYING * memory.peak_bytes:
            return Use.SMALLER
        return Use.NO_USE

    @property
    def _more_samples(self) -> float:
        old, new = self.before.samples, None if self.after is None else self.after.samples
        return new / old if old and new else 1.0

    @property
    def _same_share(self) -> float:
        """The share of the GPU's time that the same ops take before and after."""
        if self.after is None:
            return 0.0
        old, new = (
            {share.name: share.gpu_s for share in step.by_op()}
            for step in (self.before, self.after)
        )
        longest = max(sum(old.values()), sum(new.values()))
        same = sum(min(seconds, new.get(name, 0.0)) for name, seconds in old.items())
        return same / longest if longest else 1.0

    def _end(self, sign: int) -> float | None:
        if self.after is None or self.time_ratio is None:
            return None
        worst, other = (self.after, self.before) if sign > 0 else (self.before, self.after)
        if not worst.high_s or not other.low_s:
            return None
        after = math.log(worst.high_s / worst.seconds)
        before = math.log(other.seconds / other.low_s)
        shared = min(SHARED_ERROR + (1 - SHARED_ERROR) * self._same_share, _MOST_SHARED)
        doubt = math.sqrt((1 - shared) * (after**2 + before**2))
        return 1 - self.time_ratio * math.exp(sign * doubt)


@dataclass(frozen=True)
class StepAdvice(Shown):
    """What would make a step faster or smaller; `wavecast.advise` makes it.

    ```python
    advice = wavecast.advise(make_step, "l4")
    advice.best.title, advice.best.gain, advice.faster[0].code
    ```
    """

    name: str
    """The step."""
    before: Prediction
    proposals: tuple[Proposal, ...]
    """All single changes."""
    together: Proposal | None = None
    """The changes that help together, traced and predicted as one. None if none helps."""
    offer: Price | None = None
    """The cheapest offer of the GPU. None when unknown."""
    elsewhere: tuple[OtherGpus, ...] = ()
    """The step on other GPUs and on several of the same, where that was asked for."""
    loader: LoaderAdvice | None = None
    """The data loader of a script beside the step. None if it has none."""

    @property
    def faster(self) -> tuple[Proposal, ...]:
        """The changes that make the step faster, the greatest gain first."""
        return self._of(Use.FASTER)

    @property
    def smaller(self) -> tuple[Proposal, ...]:
        """The changes that only save memory, the greatest saving first."""
        smaller = self._of(Use.SMALLER)
        return tuple(sorted(smaller, key=lambda proposal: -(proposal.saved_bytes or 0)))

    @property
    def useless(self) -> tuple[Proposal, ...]:
        """The changes that were tried or looked at, and are of no use here."""
        return self._of(Use.NO_USE)

    @property
    def impossible(self) -> tuple[Proposal, ...]:
        """The changes that could not be tried, with the reason."""
        return self._of(Use.IMPOSSIBLE)

    @property
    def best(self) -> Proposal | None:
        """What to do: the changes together, or the best single one."""
        return self.together or (self.faster[0] if self.faster else None)

    @property
    def usd_per_million(self) -> float | None:
        """What a million samples cost with the step as it is; None without samples or offer."""
        return self.usd_of(self.before)

    def usd_of(self, step: Prediction) -> float | None:
        """What a million samples cost with a step."""
        if self.offer is None or not step.samples:
            return None
        return step.seconds / step.samples * 1e6 * self.offer.usd_per_hour / 3600

    def _of(self, verdict: Use) -> tuple[Proposal, ...]:
        proposals = [proposal for proposal in self.proposals if proposal.verdict is verdict]
        return tuple(sorted(proposals, key=lambda proposal: -(proposal.gain or 0.0)))


def proposal(
    names: tuple[str, ...],
    before: Prediction,
    after: Prediction | None = None,
    reason: str = "",
    lines: tuple[str, ...] = (),
) -> Proposal:
    """The proposal of some changes by their names."""
    return Proposal(tuple(CHANGES[name] for name in names), before, after, reason, lines)


# The same step elsewhere: on another GPU, or on several of the same.


@dataclass(frozen=True)
class OtherGpus:
    """Other GPUs for a step, unchanged."""

    kind: str
    """Why it is named: "fastest", "cheapest" or "several"."""
    step: Prediction
    offer: Price | None = None
    """The cheapest offer. None when unknown."""

    @property
    def sample_s(self) -> float | None:
        """The time for a sample; None if the number of samples is not known."""
        return self.step.seconds / self.step.samples if self.step.samples else None

    @property
    def usd_per_million(self) -> float | None:
        """What a million samples cost; None without samples or an offer."""
        if self.offer is None or self.sample_s is None:
            return None
        gpus = self.step.gpus
        return self.sample_s * 1e6 * self.offer.usd_per_hour_of(gpus) / 3600


def other_gpus(before: Prediction, book: PriceBook, host: str | None = None) -> list[OtherGpus]:
    """The fastest and the cheapest GPU that is for rent, and a machine full of the present one.

    Those are left out that are no better than the present GPU, on which the step does not fit, or
    whose generation was never measured.
    """
    now = OtherGpus("", before, book.cheapest(before.device.id))
    matching = [
        OtherGpus("", step, book.cheapest(step.device.id))
        for step in _on_others(before, book, host)
    ]
    best = []
    faster = min(matching, key=lambda proposal: proposal.step.seconds, default=now)
    if faster.step.seconds < before.seconds:
        best.append(OtherGpus("fastest", faster.step, faster.offer))
    priced = [proposal for proposal in (now, *matching) if proposal.usd_per_million is not None]
    cheaper = min(priced, key=lambda proposal: proposal.usd_per_million or 0.0, default=now)
    if cheaper is not now:
        best.append(OtherGpus("cheapest", cheaper.step, cheaper.offer))
    return [*best, *_several(before, book, host)]


def _on_others(before: Prediction, book: PriceBook, host: str | None) -> Iterator[Prediction]:
    """The step on each GPU that has a price, where it fits."""
    offered = {offer.device_id for offer in book.seen()} - {before.device.id}
    for gpu in devices():
        if gpu.id not in offered or not is_verified(gpu):
            continue
        try:
            step = predict(before.trace, gpu, host=host)
        except InvalidInput:  # compiled for its own GPU
            continue
        if step.fits is not False and comparable(step):
            yield step


def _several(before: Prediction, book: PriceBook, host: str | None) -> Iterator[OtherGpus]:
    """The step on all GPUs of the usual machine, replicated, or sharded where it does not fit."""
    if before.trace.measurement is not None:
        return
    try:
        count = on_cluster(before.device, Parallel()).cluster.gpus_per_node
        for shard in (0, 3):
            strategy = Parallel(data=count, shard=shard)
            step = predict(before.trace, before.device, parallel=strategy, host=host)
            if step.fits is not False:
                offer = book.cheapest(before.device.id, count, together=count)
                yield OtherGpus("several", step, offer)
                return
    except InvalidInput:  # nothing is known of its machines, or the step cannot be spread
        return


# Whether a script's data loader keeps up with its step, and how many workers would.


@dataclass(frozen=True)
class LoaderAdvice(Shown):
    """The rate of a script's data loader beside the rate of its step."""

    step_s: float
    """The time of a step for which the data are ready."""
    data_s: float
    """The data of a step are ready as often as this."""
    iteration_s: float
    """The time from one step to the next, with the loading of its data."""
    cpu_s: float
    """The CPU time of the data of a step."""
    workers: int
    """The worker processes that the script asks for; 0 for the training process itself."""
    cores: int | None = None
    """The cores on which they run. None when unknown: each worker is then taken to have one."""

    @property
    def waits(self) -> float:
        """The share of the iteration in which the GPU waits for data."""
        return 1 - self.step_s / self.iteration_s

    @property
    def needed(self) -> int:
        """The workers that load the data of a step while the GPU computes another one."""
        return self.needed_for(self.step_s)

    def needed_for(self, step_s: float) -> int:
        """The workers that keep up with a step of so many seconds."""
        return max(1, math.ceil(self.cpu_s / step_s))

    def with_workers(self, workers: int) -> float:
        """How often the data of a step are ready with so many workers, on these cores."""
        return self.cpu_s / min(workers, self.cores or workers)


def loader_advice(
    loading: Loading | None, step: Prediction, cores: int | None = None
) -> LoaderAdvice | None:
    """The loader of a script beside its step; None if the script has none.

    Args:
        loading: what is known of the loader.
        cores: the cores of the machine with the GPU, if the loader was timed with its workers.
            None for those of this one.
    """
    if loading is None or not loading.batches:
        return None
    there = loading if cores is None else loading.on_cores(cores)
    timed = there.timed
    cpu_s = there.batches * (there.seconds if timed is None else timed.cpu_s)
    waits = bool(step.trace.arrays.syncs)
    iteration_s = there.iteration_s(step.seconds, step.host_s, waits=waits)
    on = None if timed is None else timed.cores
    return LoaderAdvice(step.seconds, there.step_s, iteration_s, cpu_s, there.workers, on)
