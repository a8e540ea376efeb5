"""How many GPUs to have: the cheapest mix with which jobs meet their deadlines, by simulation.

A forecast is simulated several times: arrivals are drawn (a Poisson process for jobs with a rate,
days in a drawn order for a trace), and times are drawn from their ranges. A mix keeps its promise
if in nine of ten drawings the share of jobs that end in time is at least the promised one. Jobs
that are due first come first, each on the cheapest free GPUs on which it ends in time.

The days of a trace are few, and other days will come. So a drawing does not draw from the days
themselves, but from days that were drawn from them: its shares differ as much as those of days that
were not seen do from those that were (a bootstrap of both, Efron and Tibshirani 1993, chapter 8).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from wavecast.planning.cost import Purchase
from wavecast.planning.schedule.jobs import Fleet, Job, Pool
from wavecast.planning.schedule.planned import DrawnErrors
from wavecast.planning.schedule.simulator import QUEUES, Simulation, TooManyLate, simulate
from wavecast.results import Shown

WEEK_S = 7 * 86400.0
DAY_S = 86400.0
SURE = 0.9
"""The share of drawings in which a promise is to be kept."""
Counts = tuple[int, ...]
"""The GPUs of each pool of a fleet, in its order."""


@dataclass(frozen=True)
class Forecast:
    """Jobs that are expected, each drawing with its arrivals."""

    draw: Callable[[int], Sequence[Job]]
    """The jobs of a drawing, by its number."""
    draws: int


def weekly(jobs: Sequence[Job], rates: Sequence[float], weeks: int, draws: int) -> Forecast:
    """Jobs that arrive at random, each kind so many times a week on average.

    The deadline of a job counts from its arrival.
    """

    def drawn(number: int) -> list[Job]:
        chance = random.Random(number)
        arrivals = []
        for job, rate in zip(jobs, rates, strict=True):
            now, index = chance.expovariate(rate / WEEK_S), 0
            while now < weeks * WEEK_S:
                due = None if job.deadline_s is None else now + job.deadline_s - job.submit_s
                name = f"{job.name}-{index}"
                arrivals.append(replace(job, name=name, submit_s=now, deadline_s=due))
                now, index = now + chance.expovariate(rate / WEEK_S), index + 1
        return arrivals

    return Forecast(drawn, draws)


def from_trace(jobs: Sequence[Job], draws: int) -> Forecast:
    """Jobs as they came; in all drawings but the first, days are drawn, twice over."""
    days: dict[int, list[Job]] = {}
    for job in jobs:
        days.setdefault(int(job.submit_s // DAY_S), []).append(job)

    def drawn(number: int) -> Sequence[Job]:
        if number == 0:
            return jobs
        chance = random.Random(number)
        seen = chance.choices(list(days), k=len(days))
        arrivals = []
        for place in range(len(days)):
            day = chance.choice(seen)
            shift = (place - day) * DAY_S
            for job in days[day]:
                due = None if job.deadline_s is None else job.deadline_s + shift
                name = f"{place}-{job.name}"
                arrivals.append(
                    replace(job, name=name, submit_s=job.submit_s + shift, deadline_s=due)
                )
        return arrivals

    return Forecast(drawn, draws)


@dataclass(frozen=True)
class Mix:
    """Numbers of GPUs of each pool, and what they are worth."""

    counts: Mapping[str, int]
    """The GPUs by pool; those that are not needed are left out."""
    usd_per_week: float
    """What renting them all the time costs."""
    in_time: float
    """The share of simulated jobs that met their deadlines."""
    in_time_low: float
    """The share that met them in nine of ten drawings, at least."""
    utilisation: float
    """The share of the GPU time that jobs used."""

    @property
    def name(self) -> str:
        """The mix in a few words: `8 x l4 + 4 x h100`."""
        return " + ".join(f"{count} x {pool}" for pool, count in self.counts.items()) or "nothing"


@dataclass(frozen=True)
class BuyOrRent:
    """What buying the GPUs of a pool is worth against renting them."""

    pool: str
    """The name of the pool."""
    gpus: int
    rent_usd_per_week: float
    """What renting all of them costs, all the time."""
    buy_usd_per_week: float
    """What buying them costs: their price over the years of use, and power."""
    even_weeks: float | None
    """After how many weeks buying is cheaper than renting all the time. None for never."""
    even_utilisation: float | None
    """The share of time in use above which buying is cheaper than renting by the hour. None if
    buying is never cheaper."""


@dataclass(frozen=True)
class CapacityPlan(Shown):
    """The cheapest mix that keeps a promise, and the alternatives."""

    promise: float
    """The share of jobs that are to end in time, in nine of ten drawings."""
    best: Mix | None
    """None if no mix within the limits of the cluster keeps the promise."""
    without: Mapping[str, Mix | None]
    """The cheapest mix if the GPUs of a pool are not to be had."""
    curve: tuple[Mix, ...]
    """Smaller and larger versions of the best mix: what less money would promise."""
    purchases: tuple[BuyOrRent, ...] = ()


class CapacitySearch:
    """Searches the cheapest mix.

    Args:
        fleet: the pools; their numbers of GPUs are the most that can be had.
        promise: the share of jobs that are to end in time.
        steps: by how many GPUs each pool grows: a machine, or one GPU.
    """

    def __init__(
        self, fleet: Fleet, forecast: Forecast, promise: float, steps: Sequence[int]
    ) -> None:
        self._fleet, self._promise, self._steps = fleet, promise, steps
        self._draws = [(n, forecast.draw(n)) for n in range(forecast.draws)]
        self._may_fail = int((1 - SURE) * forecast.draws + 1e-9)
        self._known: dict[Counts, Mix] = {}
        self._kept: dict[Counts, bool] = {}

    @cached_property
    def _most(self) -> Counts:
        return tuple(pool.gpus for pool in self._fleet.pools)

    def judged(self, counts: Counts) -> Mix:
        """A mix with its cost and the shares of jobs in time."""
        if counts not in self._known:
            self._known[counts] = self._judged(counts)
        return self._known[counts]

    def _judged(self, counts: Counts) -> Mix:
        pools = [(pool, n) for pool, n in zip(self._fleet.pools, counts, strict=True) if n]
        usd = sum((pool.usd_per_hour or 0.0) * n for pool, n in pools) * 168
        met: list[tuple[int, int]] = []
        used = whole = 0.0
        for number, jobs in self._draws:
            done = self._simulated(counts, number, jobs)
            met.append((sum(outcome.in_time is not False for outcome in done.outcomes), len(jobs)))
            used += sum(outcome.gpu_s for outcome in done.outcomes)
            whole += done.makespan_s * done.fleet.gpus
        shares = sorted(count / max(1, jobs) for count, jobs in met)
        return Mix(
            counts={pool.name: n for pool, n in pools},
            usd_per_week=usd,
            in_time=sum(count for count, _ in met) / max(1, sum(jobs for _, jobs in met)),
            in_time_low=shares[self._may_fail],
            utilisation=used / whole if whole else 0.0,
        )

    def keeps(self, counts: Counts) -> bool:
        """Whether a mix keeps the promise; what cannot is not simulated to its end."""
        if counts not in self._kept:
            failed = (not self._keeps(counts, number, jobs) for number, jobs in self._draws)
            self._kept[counts] = sum(islice(filter(None, failed), self._may_fail + 1)) <= (
                self._may_fail
            )
        return self._kept[counts]

    def _keeps(self, counts: Counts, number: int, jobs: Sequence[Job]) -> bool:
        may_be_late = int((1 - self._promise) * len(jobs) + 1e-9)
        try:
            done = self._simulated(counts, number, jobs, may_be_late)
        except TooManyLate:
            return False
        met = sum(outcome.in_time is not False for outcome in done.outcomes)
        return met >= len(jobs) - may_be_late

    def _simulated(
        self, counts: Counts, number: int, jobs: Sequence[Job], most_late: int | None = None
    ) -> Simulation:
        """A drawing, with those of its jobs that have room on a mix."""
        pools = tuple(
            replace(pool, gpus=n) for pool, n in zip(self._fleet.pools, counts, strict=True) if n
        )
        fleet = replace(self._fleet, pools=pools)
        errors = DrawnErrors(number)
        return simulate(
            fleet,
            [job for job in (_limited(job, fleet) for job in jobs) if job.options],
            QUEUES["in-time"](),
            seconds=lambda job, option: errors.seconds(job.kind, option),
            most_late=most_late,
        )

    def best(self, without: str | None = None) -> Mix | None:
        """The cheapest mix that keeps the promise. None if there is none within the limits."""
        pools = [i for i, p in enumerate(self._fleet.pools) if p.name != without]
        mixes = [mix for index in pools if (mix := self._grown((0,) * len(self._most), index))]
        for base in sorted(mixes, key=self._usd)[:2]:
            mixes += self._mixed(base, pools)
        return self.judged(min(mixes, key=self._usd)) if mixes else None

    def _usd(self, counts: Counts) -> float:
        prices = [pool.usd_per_hour or 0.0 for pool in self._fleet.pools]
        return sum(price * n for price, n in zip(prices, counts, strict=True))

    def _mixed(self, base: Counts, pools: Sequence[int]) -> Iterator[Counts]:
        """Mixes in which other GPUs take the place of a part of one kind."""
        main = max(range(len(base)), key=lambda index: base[index])
        for other in pools:
            if other == main:
                continue
            for share in (0.75, 0.5, 0.25):
                step = self._steps[main]
                fewer = int(base[main] * share / step) * step
                start = tuple(fewer if i == main else n for i, n in enumerate(base))
                grown = self._grown(start, other, self._usd(base))
                if grown is not None:
                    yield grown

    def _grown(self, start: Counts, index: int, most_usd: float = math.inf) -> Counts | None:
        """The mix with the fewest GPUs of one pool added that keeps the promise."""
        step = self._steps[index]

        def at(steps: int) -> Counts:
            return tuple(n + steps * step if i == index else n for i, n in enumerate(start))

        def keeps(steps: int) -> bool:
            return self.keeps(at(steps))

        limit = (self._most[index] - start[index]) // step
        low, high = 0, 1
        while high < limit and self._usd(at(high)) < most_usd and not keeps(high):
            low, high = high, high * 2
        high = min(high, limit)
        if high < 1 or self._usd(at(low)) >= most_usd or not keeps(high):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if keeps(middle) else (middle, high)
        return at(high)

    def plan(self, purchases: Mapping[str, Purchase] | None = None) -> CapacityPlan:
        """The best mix, the alternatives, and what less or more would promise."""
        best = self.best()
        if best is None:
            return CapacityPlan(self._promise, None, {}, ())
        without = {
            name: self.best(without=name) for name in best.counts if len(self._fleet.pools) > 1
        }
        counts = tuple(best.counts.get(pool.name, 0) for pool in self._fleet.pools)
        curve = {self._scaled(counts, factor) for factor in (0.5, 0.7, 0.85, 1.0, 1.2, 1.5)}
        mixes = sorted(
            (self.judged(counts) for counts in curve),
            key=lambda mix: mix.usd_per_week,
        )
        bought = tuple(
            buy_or_rent(pool, best.counts[pool.name], (purchases or {})[pool.gpu])
            for pool in self._fleet.pools
            if pool.name in best.counts and pool.gpu in (purchases or {})
        )
        return CapacityPlan(self._promise, best, without, tuple(mixes), bought)

    def _scaled(self, counts: Counts, factor: float) -> Counts:
        return tuple(
            0 if not n else min(most, max(step, round(n * factor / step) * step))
            for n, step, most in zip(counts, self._steps, self._most, strict=True)
        )


def _limited(job: Job, fleet: Fleet) -> Job:
    """The job with the options that a fleet has room for."""
    pools = fleet.by_name
    kept = tuple(o for o in job.options if o.pool in pools and pools[o.pool].holds(o.gpus))
    return job if kept == job.options else replace(job, options=kept)


def buy_or_rent(pool: Pool, gpus: int, purchase: Purchase) -> BuyOrRent:
    """Buying the GPUs of a pool against renting them, with the break-even.

    Args:
        pool: the pool, with its price of an hour.
        gpus: how many are needed.
        purchase: what one costs to buy.
    """
    rent = pool.usd_per_hour or 0.0
    power = (pool.power_w or 0.0) / 1000 * purchase.usd_per_kwh
    own = replace(purchase, utilisation=1.0).usd_per_used_hour(pool.power_w or 0.0)
    saved = rent - power
    even_weeks = purchase.usd / (saved * 168) if saved > 0 else None
    even = (own - power) / saved if saved > 0 else None
    return BuyOrRent(
        pool=pool.name,
        gpus=gpus,
        rent_usd_per_week=rent * gpus * 168,
        buy_usd_per_week=own * gpus * 168,
        even_weeks=even_weeks,
        even_utilisation=even if even is not None and even <= 1 else None,
    )
