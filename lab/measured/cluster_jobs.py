"""Jobs and measured speeds of published schedulers, as jobs with ways to run them."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator, Mapping, Sequence
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
        wanted = int(row["n_gpu"] or 0)
        if not row["duration_s"] or not 0 < wanted <= gpus:
            lost += 1
            continue
        seconds = max(1.0, float(row["duration_s"]))
        option = RunOption("gpu", wanted, exactly(seconds), seconds * wanted / HOUR_S)
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
