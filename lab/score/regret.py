"""What does it cost to choose the GPU type by predicted speed? Jobs of Gavel and Sia, rebuilt.

    python -m lab score regret --data FOLDER [--write]

Needs torch and the public set cluster (docs/sources.md). Writes a table of
docs/appendix/schedules.md. The regret of a choice is how much more a job costs on the chosen GPU
than on the one with the least measured cost, both at measured speeds. A GPU is chosen by the least
predicted cost in three ways: of all GPUs; as `wavecast choose` does, which takes no GPU of a
generation on which nothing was measured; and with a factor for each machine, the median of measured
to predicted times of the other job types there.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import wavecast
from lab import needs
from lab.markdown import heading
from lab.measured.cluster_jobs import GAVEL_USD, rows_of
from lab.score import pages
from lab.steps.cluster_jobs import JOBS
from wavecast.planning.cost import Ranged
from wavecast.planning.selection import Candidate, tells_apart
from wavecast.planning.verification import is_verified

PAGE = pages.APPENDIX / "schedules.md"
GPUS = {
    **{"K80": "k80", "P100": "p100-pcie-16gb", "V100": "v100-sxm-16gb"},
    **{"T4": "t4", "V100-32GB": "v100-sxm-32gb", "A100-40GB": "a100-sxm-40gb"},
}
"""The GPUs of the set by our names. Gavel does not say which V100 and P100 it had."""
SIA_USD = {"T4": 0.35, "V100-32GB": 2.48, "A100-40GB": 3.67}
"""USD per hour: Google's list prices. No cloud lists an RTX 2080 Ti, so it is left out."""
PRECISIONS = {"gavel_sim": "fp32", "sia": "tf32"}
"""PyTorch of 2021 used TF32 on an A100 by default; older GPUs have none."""
_MOST_BATCHES = 6
_CLEARLY = 1.2
"""By so much a data sheet must be better for a slower time to be odd."""


@dataclass(frozen=True)
class JobType:
    """A job type at a batch: the measured seconds of a step on each GPU."""

    source: str
    name: str
    batch: int
    measured_s: Mapping[str, float]

    @property
    def usd(self) -> Mapping[str, float]:
        return GAVEL_USD if self.source == "gavel_sim" else SIA_USD


Predicted = Mapping[str, Ranged]
"""The predicted seconds of a step on each GPU."""


@dataclass(frozen=True)
class Regret:
    """What the choices of a job type cost more than the best GPU."""

    job: JobType
    chosen: str
    best: str
    verified: float
    """The regret as `wavecast choose` chooses."""
    plain: float
    """The regret if all GPUs take part."""
    factored: float
    """The regret with a factor for each machine."""
    is_sure: bool
    """Whether the ranges tell the choice apart from every other."""
    holds_best: bool
    """Whether the best is the choice, or among those that cannot be told apart from it."""
    is_odd: bool
    """Whether a GPU was measured to be slower than one that is worse on both data sheets."""


def job_types(data: Path) -> list[JobType]:
    """The job types that can be rebuilt, at batches measured on two GPUs or more."""
    steps: dict[tuple[str, str, int], dict[str, tuple[int, float]]] = {}
    for row in rows_of(data / "throughputs.csv"):
        speed, kind = float(row["iterations_per_s"] or 0), (row["set"], row["job_type"])
        if kind not in JOBS or not speed or row["placement"] == "unconsolidated":
            continue
        if row["gpu"] not in GPUS:
            continue
        gpus = int(row["n_gpu"])
        if row["set"] == "gavel_sim" and gpus > 1:
            continue
        # Without the gradients' way: Sia measured most GPUs only in groups.
        seconds = 1 / speed - float(row["sync_s"] or 0)
        key = (*kind, int(float(row["batch"] or 1)))
        known = steps.setdefault(key, {})
        if seconds > 0 and gpus < known.get(row["gpu"], (1 << 30, 0.0))[0]:
            known[row["gpu"]] = gpus, seconds
    found = [
        JobType(*key, {gpu: seconds for gpu, (_, seconds) in own.items()})
        for key, own in sorted(steps.items())
        if len(own) > 1
    ]
    return [one for kind in JOBS for one in _some(found, kind)]


def _some(found: Sequence[JobType], kind: tuple[str, str]) -> Sequence[JobType]:
    """A few batches of a job type, from the smallest to the largest."""
    own = [one for one in found if (one.source, one.name) == kind]
    if len(own) <= _MOST_BATCHES:
        return own
    return [own[round(at * (len(own) - 1) / (_MOST_BATCHES - 1))] for at in range(_MOST_BATCHES)]


def predict(job: JobType) -> Predicted:
    """The step of a job type on its GPUs."""
    make = partial(JOBS[job.source, job.name], job.batch, PRECISIONS[job.source])
    devices = [wavecast.device(GPUS[gpu]) for gpu in job.measured_s]
    traces = wavecast.trace(make, gpus=devices)
    steps = [wavecast.predict(traces, device) for device in devices]
    return {
        gpu: Ranged(step.seconds, step.low_s, step.high_s)
        for gpu, step in zip(job.measured_s, steps, strict=True)
    }


def judge(predictions: Sequence[tuple[JobType, Predicted]]) -> list[Regret]:
    """The regret of each job type."""
    return [_judged(job, own, _factors(job, predictions)) for job, own in predictions]


def _factors(job: JobType, predictions: Sequence[tuple[JobType, Predicted]]) -> Mapping[str, float]:
    """Measured to predicted time on each machine, the median of the other job types there."""
    found: dict[str, list[float]] = {}
    for other, own in predictions:
        if other.source == job.source and other.name != job.name:
            for gpu, seconds in own.items():
                found.setdefault(gpu, []).append(other.measured_s[gpu] / seconds.value)
    return {gpu: statistics.median(values) for gpu, values in found.items()}


def _judged(job: JobType, own: Predicted, factors: Mapping[str, float]) -> Regret:
    real = {gpu: job.usd[gpu] * seconds for gpu, seconds in job.measured_s.items()}
    costs = {gpu: _times(seconds, job.usd[gpu]) for gpu, seconds in own.items()}
    best = min(real, key=real.__getitem__)
    seen = [gpu for gpu in costs if is_verified(wavecast.device(GPUS[gpu]))]
    chosen = min(seen, key=lambda gpu: costs[gpu].value)
    plain = min(costs, key=lambda gpu: costs[gpu].value)
    factored = min(costs, key=lambda gpu: costs[gpu].value * factors.get(gpu, 1.0))
    named = {gpu: Candidate(wavecast.device(GPUS[gpu]), 1, job.batch) for gpu in costs}
    alike = [
        gpu
        for gpu in costs
        if gpu == plain or not tells_apart(named[plain], named[gpu], costs[plain], costs[gpu])
    ]
    return Regret(
        job,
        chosen,
        best,
        verified=real[chosen] / real[best] - 1,
        plain=real[plain] / real[best] - 1,
        factored=real[factored] / real[best] - 1,
        is_sure=alike == [plain],
        holds_best=best in alike,
        is_odd=_is_odd(job),
    )


def _times(seconds: Ranged, factor: float) -> Ranged:
    low, high = seconds.low or seconds.value, seconds.high or seconds.value
    return Ranged(seconds.value * factor, low * factor, high * factor)


def _is_odd(job: JobType) -> bool:
    def betters(gpu: str, other: str) -> bool:
        one, two = wavecast.device(GPUS[gpu]), wavecast.device(GPUS[other])
        return (
            one.memory_bytes_per_s > _CLEARLY * two.memory_bytes_per_s
            and one.fp32_flops > _CLEARLY * two.fp32_flops
        )

    times = job.measured_s
    return any(
        betters(gpu, other) and times[gpu] > times[other] for gpu in times for other in times
    )


def table(regrets: Sequence[Regret]) -> Iterator[str]:
    """A row for each job type, and the means."""
    yield from heading(
        "job type | batches | odd | best of all GPUs chosen | mean regret, all GPUs | as choose | "
        "with factors | sure | best among alike",
        "ll",
    )
    for source, name in JOBS:
        own = [one for one in regrets if (one.job.source, one.job.name) == (source, name)]
        if own:
            batches = ", ".join(str(one.job.batch) for one in own)
            yield f"| {source.partition('_')[0]}: {name} | {batches} | {_figures(own)} |"
    yield f"| all | | {_figures(regrets)} |"
    agreeing = [one for one in regrets if not one.is_odd]
    yield f"| all that are not odd | | {_figures(agreeing)} |"
    yield ""
    for word, sure in {"sure": True, "not sure": False}.items():
        left = [one.plain for one in agreeing if one.is_sure is sure]
        mean = f"{statistics.mean(left):.1%}" if left else "none"
        yield f"- Not odd, and the ranges are {word}: {len(left)}, mean regret {mean}."


def _figures(own: Sequence[Regret]) -> str:
    means = (
        statistics.mean(getattr(one, name) for one in own)
        for name in ("plain", "verified", "factored")
    )
    right = sum(one.plain == 0 for one in own)
    return " | ".join(
        (
            str(sum(one.is_odd for one in own)),
            f"{right} of {len(own)}",
            *(f"{mean:.1%}" for mean in means),
            str(sum(one.is_sure for one in own)),
            str(sum(one.holds_best for one in own)),
        )
    )


def main(given: Sequence[str] = ()) -> None:
    """Print the table, and write it into the page."""
    parser = needs.parser(__doc__)
    needs.add_data(parser, "cluster")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(given)
    predictions = []
    for job in job_types(options.data / "cluster"):
        predictions.append((job, predict(job)))
        print(job.name, job.batch, flush=True)
    text = "\n".join(table(judge(predictions)))
    print(text)
    if options.write:
        pages.write(PAGE, "begin: python -m lab score regret", text)
