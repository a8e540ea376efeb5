"""Gavel's policies: shares of time on each GPU type by a linear program, kept in rounds.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads",
OSDI 2020. `x[j, o]` is the share of time that job j runs on option o. Max-min fairness maximises
the least normalised throughput; makespan minimises the largest of what is left of a job, divided by
its throughput. In a round, jobs with the largest x over the rounds that they received come first.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from wavecast.planning.schedule.jobs import Fleet, RunOption
from wavecast.planning.simulation.queues import ROUND_S
from wavecast.planning.simulation.state import Active, Free, Starts
from wavecast.regression.least_squares import needing_scipy


class AllocationPolicy:
    """Runs jobs in rounds by shares of time from a linear program.

    Args:
        fleet: the GPUs.
        for_makespan: whether the makespan is minimised. Otherwise the least normalised throughput
            is maximised.
        round_s: the time between rounds.
        every: the program is solved again after so many rounds, and when jobs come or go.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        for_makespan: bool,
        round_s: float = ROUND_S,
        every: int = 20,
    ) -> None:
        kind = "makespan" if for_makespan else "max-min fairness"
        self.name = f"Gavel's {kind}"
        self.round_s: float | None = round_s
        self._fleet, self._for_makespan, self._every = fleet, for_makespan, every
        self._jobs: dict[int, Active] = {}
        self._shares: dict[int, np.ndarray] = {}
        self._served: dict[int, np.ndarray] = {}
        self._changed, self._rounds = True, 0
        self.solve_s: list[float] = []

    def added(self, active: Active, now_s: float) -> bool:
        """Take note of a job."""
        self._jobs[active.order] = active
        self._served[active.order] = np.zeros(len(active.job.options))
        self._changed = True
        return True

    def ended(self, active: Active) -> None:
        """Forget a job."""
        for table in (self._jobs, self._served, self._shares):
            table.pop(active.order, None)
        self._changed = True

    def decide(self, now_s: float, free: Free) -> Starts:
        """The jobs that run in a round."""
        if not self._jobs:
            return []
        self._rounds += 1
        missing = any(order not in self._shares for order in self._jobs)
        if self._shares == {} or missing or (self._changed and self._rounds >= self._every):
            self._solve()
        running = [one.option for one in self._jobs.values() if one.option is not None]
        for option in running:
            free.take(option, -1)
        chosen = self._chosen(free)
        for _, option in chosen:
            free.take(option, -1)
        for option in running:
            free.take(option)
        return chosen

    def _chosen(self, free: Free) -> list[tuple[Active, RunOption]]:
        ranked: list[tuple[float, int, int]] = []
        for order, active in self._jobs.items():
            shares, served = self._shares[order], self._served[order]
            for index in range(len(active.job.options)):
                if shares[index] > 1e-4:
                    ranked.append((-shares[index] / (served[index] + 1e-3), order, index))
        ranked.sort()
        chosen: list[tuple[Active, RunOption]] = []
        seen: set[int] = set()
        for _, order, index in ranked:
            if free.total <= 0:
                break
            self._try(order, index, free, chosen, seen)
        # GPUs that the shares leave idle go to waiting jobs, as in Gavel's work conservation.
        for order, active in self._jobs.items():
            if free.total <= 0:
                break
            best = np.argsort([one.seconds.value for one in active.job.options])
            for index in best:
                self._try(order, int(index), free, chosen, seen)
        return chosen

    def _try(
        self,
        order: int,
        index: int,
        free: Free,
        chosen: list[tuple[Active, RunOption]],
        seen: set[int],
    ) -> None:
        active = self._jobs[order]
        option = active.job.options[index]
        if order not in seen and free.has(option):
            seen.add(order)
            free.take(option)
            chosen.append((active, option))
            self._served[order][index] += 1

    def _solve(self) -> None:
        began = time.perf_counter()
        actives = list(self._jobs.values())
        solution = shares_of(self._fleet, actives, self._for_makespan)
        self._shares = {one.order: x for one, x in zip(actives, solution, strict=True)}
        self._served = {one.order: np.zeros(len(one.job.options)) for one in actives}
        self._changed, self._rounds = False, 0
        self.solve_s.append(time.perf_counter() - began)


def shares_of(fleet: Fleet, actives: Sequence[Active], for_makespan: bool) -> list[np.ndarray]:
    """The share of time of each job on each of its options."""
    sparse = needing_scipy("simulating", "scipy.sparse")
    optimize = needing_scipy("simulating", "scipy.optimize")
    pools = {pool.name: row for row, pool in enumerate(fleet.pools)}
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    width = sum(len(one.job.options) for one in actives)
    first, ends = len(fleet.pools), []
    column = 0
    for index, active in enumerate(actives):
        fastest = active.job.fastest.seconds.value
        for option in active.job.options:
            # Throughput in jobs a second, relative to what is left, or to the fastest option.
            speed = fastest / option.seconds.value
            if for_makespan:
                speed = 1e5 / (max(active.left, 1e-6) * option.seconds.value)
            for row, value in (
                (pools[option.pool], float(option.gpus)),
                (first + index, 1.0),
                (first + len(actives) + index, -speed),
            ):
                rows.append(row)
                columns.append(column)
                values.append(value)
            column += 1
        rows.append(first + len(actives) + index)
        columns.append(width)
        values.append(1.0)
        ends.append(column)
    limits = [float(pool.usable) for pool in fleet.pools]
    limits += [1.0] * len(actives) + [0.0] * len(actives)
    costs = np.zeros(width + 1)
    costs[width] = -1.0
    solved = optimize.linprog(
        costs,
        A_ub=sparse.csr_matrix((values, (rows, columns)), (len(limits), width + 1)),
        b_ub=limits,
        bounds=(0, None),
        method="highs",
    )
    return list(np.split(solved.x[:width], ends[:-1]))
