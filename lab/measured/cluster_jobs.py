"""Jobs and measured speeds of published schedulers, as jobs with ways to run them."""

from __future__ import annotations

import csv
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wavecast.planning.cost import Ranged, exactly
from wavecast.planning.schedule.jobs import HOUR_S, Fleet, Job, Pool, RunOption

GAVEL_USD = {"V100": 2.48, "P100": 1.46, "K80": 0.45}
"""USD per hour, as in Gavel's own table of prices (on demand)."""
_COUNTS = ((1, 0.7), (2, 0.1), (4, 0.15), (8, 0.05))
"""How many GPUs Gavel's generated jobs ask for, with their shares."""


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a table."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


class ClusterSpeeds:
    """Measured speeds: iterations a second by job type, batch, GPU and count."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.speeds: dict[tuple[str, int], dict[tuple[str, int], float]] = {}
        for row in rows_of(folder / "throughputs.csv"):
            if row["set"] == kind and row["placement"] != "unconsolidated" and row["batch"]:
                key = row["job_type"], int(float(row["batch"]))
                speed = float(row["iterations_per_s"] or 0)
                if speed > 0:
                    self.speeds.setdefault(key, {})[row["gpu"], int(row["n_gpu"])] = speed


def gavel_fleet(each: int = 36) -> Fleet:
    """So many GPUs of each of Gavel's three types."""
    return Fleet(tuple(Pool(gpu, gpu, each, 4, usd) for gpu, usd in GAVEL_USD.items()))


def gavel_jobs(speeds: ClusterSpeeds, count: int, seed: int = 0) -> list[Job]:
    """Jobs as Gavel's generator draws them: types alike, durations on a V100 over three decades.

    The duration is 10 to the power of x minutes, x uniform in 1.5 to 3 for 80%, in 3 to 4 for 20%.
    """
    chance = random.Random(seed)
    kinds = sorted(speeds.speeds)
    jobs: list[Job] = []
    while len(jobs) < count:
        kind = chance.choice(kinds)
        [gpus] = chance.choices([n for n, _ in _COUNTS], [share for _, share in _COUNTS])
        power = chance.uniform(1.5, 3) if chance.random() < 0.8 else chance.uniform(3, 4)
        table = speeds.speeds[kind]
        reference = table.get(("V100", gpus))
        if reference is None:
            continue
        work = reference * 60 * 10**power
        options = tuple(
            RunOption(gpu, gpus, exactly(work / speed), work / speed * gpus * usd / HOUR_S)
            for gpu, usd in GAVEL_USD.items()
            if (speed := table.get((gpu, gpus)))
        )
        jobs.append(Job(f"{kind[0]}-{len(jobs)}", options, kind[0]))
    return jobs


def trace_jobs(path: Path, gpus: int) -> tuple[Fleet, list[Job], int]:
    """The jobs of a trace on GPUs of one type, and how many have no known duration."""
    fleet = Fleet((Pool("gpu", "gpu", gpus, usd_per_hour=1.0),))
    jobs, lost = [], 0
    for row in rows_of(path):
        gpu_count = int(row["n_gpu"] or 0)
        if not row["duration_s"] or not 0 < gpu_count <= gpus:
            lost += 1
            continue
        seconds = max(1.0, float(row["duration_s"]))
        option = RunOption("gpu", gpu_count, exactly(seconds), seconds * gpu_count / HOUR_S)
        due = float(row["deadline_s"]) if row["deadline_s"] else None
        jobs.append(Job(row["job_id"], (option,), "", float(row["submit_s"]), due))
    return fleet, jobs, lost


def elastic_jobs(path: Path, speeds: ClusterSpeeds, gpus: int) -> tuple[Fleet, list[Job], int]:
    """The jobs of ElasticFlow's trace, each on any number of A100s whose speed was measured."""
    fleet = Fleet((Pool("A100", "A100", gpus, usd_per_hour=1.0),))
    jobs, lost = [], 0
    for row in rows_of(path):
        table = speeds.speeds.get((row["job_type"], int(float(row["batch"]))))
        if table is None or not row["steps"]:
            lost += 1
            continue
        steps = float(row["steps"])
        options = tuple(
            RunOption("A100", n, exactly(steps / speed), steps / speed * n / HOUR_S)
            for (_, n), speed in sorted(table.items())
            if n <= gpus
        )
        due = float(row["deadline_s"])
        jobs.append(Job(row["job_id"], options, "", float(row["submit_s"]), due))
    return fleet, jobs, lost


def drawn_instance(
    count: int,
    pools: Sequence[tuple[int, float, float]],
    seed: int = 0,
    sizes: Sequence[int] = (1, 2, 4, 8),
) -> tuple[Fleet, list[Job]]:
    """Jobs with 16 ways to run each, on pools of so many GPUs, prices and relative speeds."""
    chance = random.Random(seed)
    fleet = Fleet(tuple(Pool(f"g{i}", f"g{i}", n, 8, usd) for i, (n, usd, _) in enumerate(pools)))
    jobs = []
    for number in range(count):
        base = 10 ** chance.uniform(3.5, 5.2)
        options = tuple(_drawn_options(chance, base, pools, sizes))
        jobs.append(Job(f"j{number}", options, "", chance.uniform(0, 4) * HOUR_S))
    return fleet, jobs


def _drawn_options(
    chance: random.Random,
    base_s: float,
    pools: Sequence[tuple[int, float, float]],
    sizes: Sequence[int],
) -> Iterator[RunOption]:
    for index, (_, usd, speed) in enumerate(pools):
        own = speed * chance.uniform(0.7, 1.3)
        for gpus in sizes:
            seconds = base_s / own / gpus**0.9
            ranged = Ranged(seconds, 0.85 * seconds, 1.2 * seconds)
            yield RunOption(f"g{index}", gpus, ranged, seconds / HOUR_S * gpus * usd)


def recorded(folder: Path, trace: str, metric: str) -> Mapping[str, float]:
    """Published results of a trace, by policy; the last of several."""
    return {
        row["policy"]: float(row["value"])
        for row in rows_of(folder / "anchors.csv")
        if row["trace"] == trace and row["metric"] == metric
    }


# Measured steps of the job types of Gavel and Sia: how long, on which GPU, and how repeatably.


SOURCES = {
    **dict.fromkeys(("gavel_sim", "gavel_phys", "gavel_motivation"), "gavel"),
    "sia": "sia",
}
"""The system of each table of measured speeds. Gavel's three are of the same steps."""
_OTHER_UNIT = ("gavel_motivation", "Recommendation")
"""Rows in another unit, as the notes of the set say."""
_MOST_BATCHES = 6

Seconds = Mapping[str, float]
"""The seconds of a step on each GPU."""


@dataclass(frozen=True)
class JobType:
    """A job type at a batch: the measured seconds of a step on each GPU."""

    source: str
    """The table."""
    name: str
    batch: int
    measured_s: Seconds
    spread: float = 1.0
    """The longest over the shortest measurement of the step on one GPU, the worst of its GPUs:
    over the placements of Sia, and over the tables of Gavel."""

    @property
    def system(self) -> str:
        """Gavel or Sia."""
        return SOURCES[self.source]


@dataclass(frozen=True)
class _MeasuredStep:
    source: str
    step: tuple[str, str, int]
    gpu: str
    gpus: int
    seconds: float


def job_types(
    data: Path, kinds: Collection[tuple[str, str]], gpus: Collection[str]
) -> list[JobType]:
    """Job types of some kinds, at batches measured on two GPUs or more.

    Args:
        data: the folder of the set.
        kinds: systems and names of job types.
        gpus: the GPUs that take part.
    """
    rows = [row for row in _rows(data, gpus) if row.step[:2] in kinds]
    spreads = _spreads(rows)
    types = []
    for source in SOURCES:
        own = [row for row in rows if row.source == source]
        for kind in kinds:
            steps = sorted({row.step for row in own if row.step[:2] == kind})
            for step in steps:
                times = _times([row for row in own if row.step == step])
                if len(times) > 1:
                    spread = max(spreads[step, gpu] for gpu in times)
                    types.append(JobType(source, step[1], step[2], times, spread))
    return [job for source in SOURCES for kind in kinds for job in _some(types, source, kind[1])]


def _rows(data: Path, gpus: Collection[str]) -> list[_MeasuredStep]:
    measured = []
    for row in rows_of(data / "throughputs.csv"):
        source, speed = row["set"], float(row["iterations_per_s"] or 0)
        if source not in SOURCES or not speed or row["gpu"] not in gpus:
            continue
        if row["placement"] == "unconsolidated" or (source, row["job_type"]) == _OTHER_UNIT:
            continue
        if source != "sia" and row["n_gpu"] != "1":
            continue
        # Without the gradients' way: Sia measured most GPUs only in groups.
        seconds = 1 / speed - float(row["sync_s"] or 0)
        step = SOURCES[source], row["job_type"], int(float(row["batch"] or 1))
        if seconds > 0:
            measured.append(_MeasuredStep(source, step, row["gpu"], int(row["n_gpu"]), seconds))
    return measured


def _times(rows: Sequence[_MeasuredStep]) -> Seconds:
    """The time on each GPU, with as few of them as were measured."""
    fewest = {row.gpu: row for row in sorted(rows, key=lambda row: (row.gpu, -row.gpus))}
    return {gpu: row.seconds for gpu, row in fewest.items()}


def _spreads(rows: Sequence[_MeasuredStep]) -> Mapping[tuple[tuple[str, str, int], str], float]:
    times: dict[tuple[tuple[str, str, int], str], list[float]] = {}
    for row in rows:
        times.setdefault((row.step, row.gpu), []).append(row.seconds)
    return {key: max(own) / min(own) for key, own in times.items()}


def _some(types: Sequence[JobType], source: str, name: str) -> Sequence[JobType]:
    """A few batches of a job type, from the smallest to the largest."""
    own = [job for job in types if (job.source, job.name) == (source, name)]
    if len(own) <= _MOST_BATCHES:
        return own
    return [own[round(at * (len(own) - 1) / (_MOST_BATCHES - 1))] for at in range(_MOST_BATCHES)]
