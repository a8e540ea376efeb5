"""Measured steps of the job types of Gavel and Sia: how long, on which GPU, and how repeatably."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.measured.cluster_jobs import rows_of

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
    rows = [one for one in _rows(data, gpus) if one.step[:2] in kinds]
    spreads = _spreads(rows)
    found = []
    for source in SOURCES:
        own = [one for one in rows if one.source == source]
        for kind in kinds:
            steps = sorted({one.step for one in own if one.step[:2] == kind})
            for step in steps:
                times = _times([one for one in own if one.step == step])
                if len(times) > 1:
                    spread = max(spreads[step, gpu] for gpu in times)
                    found.append(JobType(source, step[1], step[2], times, spread))
    return [one for source in SOURCES for kind in kinds for one in _some(found, source, kind[1])]


def _rows(data: Path, gpus: Collection[str]) -> list[_MeasuredStep]:
    found = []
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
            found.append(_MeasuredStep(source, step, row["gpu"], int(row["n_gpu"]), seconds))
    return found


def _times(rows: Sequence[_MeasuredStep]) -> Seconds:
    """The time on each GPU, with as few of them as were measured."""
    fewest = {one.gpu: one for one in sorted(rows, key=lambda one: (one.gpu, -one.gpus))}
    return {gpu: one.seconds for gpu, one in fewest.items()}


def _spreads(rows: Sequence[_MeasuredStep]) -> Mapping[tuple[tuple[str, str, int], str], float]:
    times: dict[tuple[tuple[str, str, int], str], list[float]] = {}
    for one in rows:
        times.setdefault((one.step, one.gpu), []).append(one.seconds)
    return {key: max(own) / min(own) for key, own in times.items()}


def _some(found: Sequence[JobType], source: str, name: str) -> Sequence[JobType]:
    """A few batches of a job type, from the smallest to the largest."""
    own = [one for one in found if (one.source, one.name) == (source, name)]
    if len(own) <= _MOST_BATCHES:
        return own
    return [own[round(at * (len(own) - 1) / (_MOST_BATCHES - 1))] for at in range(_MOST_BATCHES)]
