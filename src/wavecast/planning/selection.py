"""Which GPUs to choose for a training: what is fastest, what is cheapest, and what is as good.

How two choices are told apart: both come from the same trace, so part of their errors
is the same and cancels when they are compared. For times a < b, the distance of their logarithms
must exceed sqrt(u^2 + d^2 - 2 r u d), where u is the distance from a to its high end, d that from b
to its low end, and r the correlation of the errors of one step on two GPUs. Below that, the order
may be the other way round, and the choices count as equal. Two offers of the same GPUs have the
same error, so only their prices count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from wavecast.footprint.memory import Memory
from wavecast.hardware.devices import Device
from wavecast.parallel.strategy import Parallel
from wavecast.planning.cost import Ranged, TrainingCost
from wavecast.planning.prices import Price
from wavecast.results import Shown

SHARED_ERROR = 0.5
"""The correlation of the errors (logarithms) of one step on two GPUs, each left out of the fit. On
Lambda's steps it is 0.47 (lab/score/choices.py)."""


FAR_APART = 2.0
"""Choices of which one takes this many times the time or money are not called equal: a range that
wide says how little is known, not that they are alike."""


class Aim(StrEnum):
    """What a choice is made by."""

    MONEY = "money"
    TIME = "time"
    BOTH = "both"


class Limit(StrEnum):
    """How a choice keeps a budget or a deadline."""

    KEPT = "kept"
    """The whole range does, or there is no limit."""
    UNSURE = "unsure"
    """The prediction does, and part of its range does not."""
    MISSED = "missed"
    UNKNOWN = "unknown"
    """There is a limit, but no price to compare with it."""


@dataclass(frozen=True)
class Candidate:
    """GPUs that a training may run on, and what it takes there."""

    device: Device
    gpus: int
    batch: int | None
    """Samples of a micro-batch on one GPU. None when unknown."""
    strategy: Parallel | None = None
    """How the step is spread. None on one GPU."""
    largest_batch: int | None = None
    """The largest batch on one GPU that was found to fit; None if it was not looked for."""
    memory: Memory | None = None
    """The memory of the fullest GPU. None when unknown."""
    cost: TrainingCost | None = None
    """None if the training cannot run there."""
    reason: str = ""
    """Why the training cannot run there."""
    on_front: bool = False
    """Whether no other choice is both faster and cheaper (the Pareto front)."""
    next_offer: Price | None = None
    """The cheapest offer of another provider. None if there is none."""
    is_verified: bool = True
    """Whether steps were measured on GPUs of its vendor and generation."""
    settings: str = ""
    """What was changed in the step, in words: "bf16 autocast"; empty for nothing."""
    changes: tuple[str, ...] = ()
    """The names of these changes, as `wavecast advise` has them: "bf16"."""
    budget: Limit = Limit.KEPT
    deadline: Limit = Limit.KEPT

    @property
    def seconds(self) -> Ranged:
        """The time of the training; infinite if it cannot run there."""
        return Ranged(math.inf) if self.cost is None else self.cost.seconds

    @property
    def usd(self) -> Ranged:
        """The money for the training; infinite if it is not known."""
        known = None if self.cost is None else self.cost.usd
        return Ranged(math.inf) if known is None else known

    @property
    def usd_elsewhere(self) -> Ranged | None:
        """The money for the training at the next provider's price; None if it is not known."""
        offer = None if self.cost is None else self.cost.offer
        if offer is None or self.next_offer is None:
            return None
        there, here = (
            candidate.usd_per_hour_of(self.gpus) for candidate in (self.next_offer, offer)
        )
        return self.usd.times(there / here)

    @property
    def keeps_limits(self) -> bool:
        """Whether neither the budget nor the deadline is missed, as far as predicted."""
        return not {self.budget, self.deadline} & {Limit.MISSED, Limit.UNKNOWN}

    @property
    def name(self) -> str:
        """The GPUs in a few words: `8 x h100-sxm-80gb`."""
        return self.device.id if self.gpus == 1 else f"{self.gpus} x {self.device.id}"


@dataclass(frozen=True)
class Selection(Shown):
    """The choices in order, best first."""

    aim: Aim
    ranked: tuple[Candidate, ...]
    """Those that keep the limits, best first."""
    beyond: tuple[Candidate, ...]
    """Those that miss the budget or the deadline, in the same order."""
    impossible: tuple[Candidate, ...]
    """Those on which the training cannot run, with the reason."""
    as_good: tuple[Candidate, ...]
    """Those after the first that cannot be told apart from it. Empty if it has no range."""
    unverified: tuple[Candidate, ...] = ()
    """Those of vendors and generations on which no step was measured; they do not take part."""
    as_given: Candidate | None = None
    """The best with the step as it is, if the first choice changes it. None if it does not."""

    @property
    def best(self) -> Candidate | None:
        """The first choice; None if nothing keeps the limits."""
        return self.ranked[0] if self.ranked else None


def select(
    candidates: Iterable[Candidate],
    aim: Aim = Aim.MONEY,
    budget_usd: float | None = None,
    deadline_s: float | None = None,
    *,
    with_unverified: bool = False,
) -> Selection:
    """The candidates in order: by time, by money, or by both.

    By both means that candidates on the Pareto front come first, those with the smallest product of
    time and money before others. A budget or deadline is kept if the prediction keeps it; whether
    the whole range does is noted. GPUs on whose generation nothing was measured are listed apart,
    unless they are asked for.
    """
    limited = [_limited(candidate, budget_usd, deadline_s) for candidate in candidates]
    looked_at = _best_settings(limited, aim)
    every = [candidate for candidate in looked_at if candidate.is_verified or with_unverified]
    apart = [
        candidate
        for candidate in looked_at
        if candidate not in every and candidate.cost is not None
    ]
    feasible = _with_front([candidate for candidate in every if candidate.cost is not None])
    ordered = sorted(feasible, key=lambda candidate: _order(candidate, aim))
    ranked = [candidate for candidate in ordered if candidate.keeps_limits]
    return Selection(
        aim=aim,
        ranked=tuple(ranked),
        beyond=tuple(candidate for candidate in ordered if not candidate.keeps_limits),
        impossible=tuple(candidate for candidate in every if candidate.cost is None),
        as_good=tuple(
            candidate for candidate in ranked[1:] if _is_as_good(ranked[0], candidate, aim)
        ),
        unverified=tuple(sorted(apart, key=lambda candidate: _order(candidate, aim))),
        as_given=_as_given(limited, ranked[:1], aim, with_unverified),
    )


def _best_settings(candidates: Sequence[Candidate], aim: Aim) -> list[Candidate]:
    """Each number of each GPU once, with the settings that suit the limits and the aim best."""
    best: dict[tuple[str, int], Candidate] = {}
    for candidate in candidates:
        key = candidate.device.id, candidate.gpus
        if key not in best or _preference(candidate, aim) < _preference(best[key], aim):
            best[key] = candidate
    return list(best.values())


def _preference(candidate: Candidate, aim: Aim) -> tuple[float, ...]:
    usd, seconds = candidate.usd.value, candidate.seconds.value
    by_both = (0.0, usd * seconds)
    return (not candidate.keeps_limits, *(by_both if aim is Aim.BOTH else _order(candidate, aim)))


def _as_given(
    candidates: Sequence[Candidate], first: Sequence[Candidate], aim: Aim, unverified: bool
) -> Candidate | None:
    if not first or not first[0].settings:
        return None
    plain = [
        candidate
        for candidate in candidates
        if not candidate.settings
        and candidate.cost is not None
        and (candidate.is_verified or unverified)
    ]
    return min(plain, key=lambda candidate: _preference(candidate, aim), default=None)


def _is_as_good(best: Candidate, other: Candidate, aim: Aim) -> bool:
    if best.seconds.high is None or is_better(best, other, aim):
        return False
    far = {
        Aim.TIME: other.seconds.value / best.seconds.value,
        Aim.MONEY: other.usd.value / best.usd.value,
    }
    return all(far[each] <= FAR_APART for each in (far if aim is Aim.BOTH else (aim,)))


def _order(candidate: Candidate, aim: Aim) -> tuple[float, ...]:
    seconds, usd = candidate.seconds.value, candidate.usd.value
    match aim:
        case Aim.TIME:
            return seconds, usd
        case Aim.MONEY:
            return usd, seconds
    return float(not candidate.on_front), usd * seconds


def _limited(candidate: Candidate, budget_usd: float | None, deadline_s: float | None) -> Candidate:
    return replace(
        candidate,
        budget=_kept(candidate.usd, budget_usd),
        deadline=_kept(candidate.seconds, deadline_s),
    )


def _kept(value: Ranged, limit: float | None) -> Limit:
    if limit is None:
        return Limit.KEPT
    if math.isinf(value.value):
        return Limit.UNKNOWN
    if value.value > limit:
        return Limit.MISSED
    return Limit.KEPT if value.high is not None and value.high <= limit else Limit.UNSURE


def _with_front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates, with those marked that no other beats in both time and money."""
    marked = []
    for candidate in candidates:
        beaten = any(
            other.seconds.value <= candidate.seconds.value
            and other.usd.value <= candidate.usd.value
            and (other.seconds.value, other.usd.value)
            != (candidate.seconds.value, candidate.usd.value)
            for other in candidates
        )
        marked.append(replace(candidate, on_front=not beaten))
    return marked


def is_better(first: Candidate, other: Candidate, aim: Aim) -> bool:
    """Whether the first is better than the other beyond the error of the predictions.

    By both means that it is better in one, and not known to be worse in the other.
    """
    if aim is Aim.TIME:
        return tells_apart(first, other, first.seconds, other.seconds)
    if aim is Aim.MONEY:
        return tells_apart(first, other, first.usd, other.usd)
    better = [is_better(first, other, each) for each in (Aim.TIME, Aim.MONEY)]
    worse = [is_better(other, first, each) for each in (Aim.TIME, Aim.MONEY)]
    return any(better) and not any(worse)


def tells_apart(first: Candidate, other: Candidate, less: Ranged, more: Ranged) -> bool:
    """Whether one value is less than another beyond doubt, as the head of this module says."""
    if not less.value < more.value:
        return False
    if math.isinf(more.value) or _same_step(first, other):
        return True
    if less.high is None or more.low is None or not more.low > 0 or not less.value > 0:
        return False
    up, down = math.log(less.high / less.value), math.log(more.value / more.low)
    doubt = math.sqrt(max(up**2 + down**2 - 2 * SHARED_ERROR * up * down, 0.0))
    return math.log(more.value / less.value) > doubt


def _same_step(first: Candidate, other: Candidate) -> bool:
    """Whether two candidates run the very same step, so that only their prices differ."""
    ran = ((c.device.id, c.gpus, c.batch, c.strategy, c.settings) for c in (first, other))
    return next(ran) == next(ran)
