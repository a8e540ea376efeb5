"""Proposals: a step with changes beside the step as it is, and what that gains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from wavecast.advice.catalogue import CHANGES, StepChange
from wavecast.advice.data_loading import LoaderAdvice
from wavecast.advice.other_gpus import OtherGpus
from wavecast.planning.prices import Price
from wavecast.showing import Shown
from wavecast.steps.prediction import Prediction

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
        found = self._of(Use.SMALLER)
        return tuple(sorted(found, key=lambda one: -(one.saved_bytes or 0)))

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
        found = [one for one in self.proposals if one.verdict is verdict]
        return tuple(sorted(found, key=lambda one: -(one.gain or 0.0)))


def proposal(
    names: tuple[str, ...],
    before: Prediction,
    after: Prediction | None = None,
    reason: str = "",
    lines: tuple[str, ...] = (),
) -> Proposal:
    """The proposal of some changes by their names."""
    return Proposal(tuple(CHANGES[name] for name in names), before, after, reason, lines)
