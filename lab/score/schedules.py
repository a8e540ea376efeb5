"""How good are plans and policies? Measured speeds and job traces of published schedulers.

    python -m lab score schedules --data FOLDER [NAME ...] [--write]

Needs ortools, scipy and the public set cluster (docs/sources.md). Writes the tables of
docs/appendix/schedules.md. Jobs of types whose speeds are not in the set are left out, and counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from lab import pages
from lab.measured.cluster_jobs import (
    ClusterSpeeds,
    drawn_instance,
    elastic_jobs,
    gavel_fleet,
    gavel_jobs,
    recorded,
    rows_of,
    trace_jobs,
)
from lab.pages import heading
from lab.scores import ScoreTable
from wavecast.planning.capacity import DAY_S, CapacitySearch, from_trace
from wavecast.planning.schedule.jobs import HOUR_S, Aims, Job
from wavecast.planning.schedule.planner import Effort, make_schedule
from wavecast.planning.schedule.policies import policy_of, shares_of
from wavecast.planning.schedule.simulator import Active, Simulation, simulate
from wavecast.planning.schedule.validation import faults

PAGE = pages.APPENDIX / "schedules.md"
FOUR = ((16, 0.5, 1.0), (16, 1.0, 2.0), (16, 2.0, 4.5), (16, 3.0, 8.0))


def exact(_: Path) -> Iterator[str]:
    """Plans of generated jobs: how far from the best they may be."""
    yield from heading("jobs | GPUs | of a job | aim | found by | gap | seconds | faults", "rrlll")
    aims = {"cost": Aims(cost=1), "makespan": Aims(makespan=1), "completion": Aims(completion=1)}
    for count, factor, sizes, limit in (
        (50, 1, (1, 2, 4, 8), 60.0),
        (1000, 64, (1, 2, 4, 8), 240.0),
        (1000, 64, (8, 16, 32, 64), 240.0),
    ):
        pools = [(n * factor, usd, speed) for n, usd, speed in FOUR]
        fleet, jobs = drawn_instance(count, pools, sizes=sizes)
        for name, aim in aims.items():
            schedule = make_schedule(fleet, jobs, aim, effort=Effort(limit, 2))
            wrong = len(faults(fleet, jobs, schedule.runs))
            yield (
                f"| {count} | {fleet.gpus} | {min(sizes)} to {max(sizes)} | {name} "
                f"| {schedule.method} | {schedule.gap:.1%} | {schedule.solve_s:.1f} | {wrong} |"
            )


def gavel(data: Path) -> Iterator[str]:
    """Makespan of jobs that are all there at the start, on 36 GPUs of each of three types."""
    speeds, fleet = ClusterSpeeds(data, "gavel_sim"), gavel_fleet()
    yield from heading(
        "jobs | FIFO, jobs stay | fastest free, jobs stay | Gavel's FIFO | Gavel's makespan | ours "
        "| bound | Gavel's FIFO / ours | published: FIFO | published: Gavel | published: ratio"
    )
    for count in (100, 300, 500, 700):
        jobs = gavel_jobs(speeds, count)
        names = "fifo", "fifo-fastest", "gavel-fifo", "makespan"
        runs = [
            simulate(fleet, jobs, policy_of(name, fleet, Aims(makespan=1))).makespan_s / HOUR_S
            for name in names
        ]
        schedule = make_schedule(fleet, jobs, Aims(makespan=1), effort=Effort(60.0, 2))
        assert not faults(fleet, jobs, schedule.runs)
        known = _published(data, count)
        cells = " | ".join(f"{value:.0f} h" for value in (*runs, schedule.value, schedule.bound))
        yield (
            f"| {count} | {cells} | {runs[2] / schedule.value:.2f} | {known[0]:.0f} h "
            f"| {known[1]:.0f} h | {known[0] / known[1]:.2f} |"
        )


def _published(data: Path, count: int) -> tuple[float, float]:
    hours = {
        row["policy"]: float(row["value"])
        for row in rows_of(data / "anchors.csv")
        if row["trace"] == "static-multiple" and row["n_jobs"] == str(count)
    }
    return hours["FIFO"], hours["Gavel"]


def solving(data: Path) -> Iterator[str]:
    """The time of one decision: the linear programs of Gavel's policies and of ours."""
    speeds, fleet = ClusterSpeeds(data, "gavel_sim"), gavel_fleet()
    yield "CPU seconds of max-min fairness, makespan, and our bound with a plan by rules:\n"
    for count in (256, 1024):
        jobs = gavel_jobs(speeds, count)
        actives = [Active(job, index) for index, job in enumerate(jobs)]
        times = []
        for for_makespan in (False, True):
            began = time.process_time()
            shares_of(fleet, actives, for_makespan)
            times.append(time.process_time() - began)
        began = time.process_time()
        make_schedule(fleet, jobs, Aims(makespan=1), effort=Effort(0.0))
        times.append(time.process_time() - began)
        yield f"- {count} jobs: {', '.join(f'{seconds:.2f}' for seconds in times)}"


_ROW = "policy | mean completion | p99 | makespan | in use"


def _row(simulation: Simulation, name: str) -> str:
    return (
        f"| {name} | {simulation.mean_completion_s / HOUR_S:.2f} h "
        f"| {simulation.p99_completion_s / HOUR_S:.1f} h | {simulation.makespan_s / HOUR_S:.2f} h "
        f"| {simulation.utilisation:.0%} |"
    )


def _traced(
    data: Path, table: str, gpus: int, trace: str, published: Sequence[str], longest_stops: bool
) -> Iterator[str]:
    fleet, jobs, lost = trace_jobs(data / table, gpus)
    yield f"{len(jobs)} jobs; {lost} have no known duration and are left out.\n"
    yield from heading(_ROW)
    for name, aims, stops in (
        ("fifo", Aims(completion=1), False),
        ("shortest", Aims(completion=1), False),
        ("smallest", Aims(completion=1), True),
        ("max-min", Aims(completion=1), True),
        ("ours", Aims(completion=1), False),
        ("ours", Aims(completion=1), True),
        ("ours", Aims(makespan=1), False),
        *((("ours", Aims(makespan=1), True),) if longest_stops else ()),
    ):
        policy = policy_of(name, fleet, aims, stops=stops, round_s=120.0)
        simulation = simulate(fleet, jobs, policy, restart_s=10.0)
        title = simulation.policy
        if name == "ours":
            title = f"ours, by {'makespan' if aims.makespan else 'completion'}"
        yield _row(simulation, f"{title}, stops" if stops else title)
    mean, last = recorded(data, trace, "average JCT"), recorded(data, trace, "makespan")
    for name in published:
        yield (
            f"| published: {name} | {mean[name] / HOUR_S:.2f} h | | {last[name] / HOUR_S:.2f} h | |"
        )


def shockwave(data: Path) -> Iterator[str]:
    """Shockwave's 120 jobs on 32 V100."""
    names = ("shockwave", "max_min_fairness", "min_total_duration")
    return _traced(data, "jobs_shockwave_120.csv", 32, "shockwave_120", names, True)


def muri(data: Path) -> Iterator[str]:
    """Muri's 400 jobs on 64 V100."""
    names = ("SRTF", "SRSF", "Muri-S", "Muri-L")
    return _traced(data, "jobs_muri_cluster.csv", 64, "muri_cluster", names, False)


def elasticflow(data: Path) -> Iterator[str]:
    """ElasticFlow's deadlines on A100s, with any number of GPUs whose speed was measured."""
    speeds = ClusterSpeeds(data, "elasticflow")
    policies = {"earliest deadline first": ("deadline", False), "in time": ("in-time", False)}
    policies["in time, stops"] = ("in-time", True)
    counts = []
    yield from heading(f"GPUs | {' | '.join(policies)}", "r")
    for gpus in (16, 24, 32, 64, 128):
        fleet, jobs, lost = elastic_jobs(data / "jobs_elasticflow_deadline_first.csv", speeds, gpus)
        hopeless = sum(
            job.submit_s + job.fastest.seconds.value > (job.deadline_s or 0) for job in jobs
        )
        counts.append(f"{hopeless} with {gpus} GPUs")
        runs = [
            simulate(fleet, jobs, policy_of(name, fleet, Aims(cost=1), stops=stops))
            for name, stops in policies.values()
        ]
        yield f"| {gpus} | {' | '.join(f'{run.deadlines_met or 0:.1%}' for run in runs)} |"
    yield (
        f"\n{lost} jobs of types without speeds are left out. Of the others, "
        f"{', '.join(counts)} cannot meet their deadlines even alone."
    )


def philly(data: Path) -> Iterator[str]:
    """20,000 jobs of Philly on 400 GPUs: the time of the simulation."""
    fleet, jobs, _ = trace_jobs(data / "jobs_philly_2017-10.csv", 400)
    yield from heading("policy | jobs | mean completion | makespan | processor time")
    for name in ("fifo", "shortest", "ours"):
        simulation = simulate(fleet, jobs, policy_of(name, fleet, Aims(completion=1)))
        yield (
            f"| {simulation.policy} | {len(simulation.outcomes)} "
            f"| {simulation.mean_completion_s / HOUR_S:.2f} h "
            f"| {simulation.makespan_s / HOUR_S:.0f} h | {simulation.cpu_s:.1f} s |"
        )


def capacity(data: Path) -> Iterator[str]:
    """Philly's October: GPUs chosen on the first days, judged on the days after."""
    fleet, jobs, _ = trace_jobs(data / "jobs_philly_2017-10.csv", 4000)
    due = [
        replace(job, deadline_s=job.submit_s + HOUR_S + job.fastest.seconds.value) for job in jobs
    ]
    yield from heading(
        "promise | days chosen on | GPUs | in time there, drawn | in 9 of 10 draws | later days "
        "| in time there"
    )
    for promise, days in ((0.9, 6), (0.95, 6), (0.99, 6), (0.95, 4), (0.95, 8)):
        early = [job for job in due if job.submit_s < days * DAY_S]
        late = [_moved(job, days * DAY_S) for job in due if job.submit_s >= days * DAY_S]
        best = CapacitySearch(fleet, from_trace(early, 20), promise, (8,)).best()
        assert best is not None
        count = best.counts["gpu"]
        later = CapacitySearch(fleet, from_trace(late, 1), promise, (8,)).judged((count,))
        yield (
            f"| {promise:.0%} | {days} | {count} | {best.in_time:.1%} | {best.in_time_low:.1%} "
            f"| {12 - days} | {later.in_time:.1%} |"
        )


def _moved(job: Job, by_s: float) -> Job:
    return replace(job, submit_s=job.submit_s - by_s, deadline_s=(job.deadline_s or 0) - by_s)


TABLES: dict[str, Callable[[Path], Iterator[str]]] = {
    "exact": exact,
    "gavel": gavel,
    "solving": solving,
    "shockwave": shockwave,
    "muri": muri,
    "elasticflow": elasticflow,
    "philly": philly,
    "capacity": capacity,
}


def tables(data: Path, names: Sequence[str]) -> Iterator[ScoreTable]:
    """The tables of the page that were asked for."""
    for name in names:
        text = "\n".join(TABLES[name](data / "cluster"))
        yield ScoreTable(text, PAGE, f"begin: python -m lab score schedules {name!r}", title=name)
