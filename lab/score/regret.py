"""What does it cost to choose the GPU type by predicted speed? Jobs of Gavel and Sia, rebuilt.

    python -m lab score regret --data FOLDER [--write]

Needs torch and the public set cluster (docs/sources.md). Prints the times of each step, and writes
a table of docs/appendix/schedules.md. The regret of a choice is how much more a job costs on the
chosen GPU than on the one with the least measured cost, both at measured speeds. A GPU is chosen by
the least predicted cost in three ways: of all GPUs; as `wavecast choose` does, which takes no GPU
of a generation on which nothing was measured; and with a factor for each machine, the median of
measured to predicted times of the other job types there.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path

import wavecast
from lab import pages
from lab.measured.cluster_jobs import GAVEL_USD, JobType, Seconds, job_types
from lab.pages import heading
from lab.scores import ScoreTable
from lab.steps.cluster_jobs import JOBS
from wavecast.hardware.hosts import processors, reference_processor
from wavecast.planning.candidates import is_verified
from wavecast.planning.cost import Ranged
from wavecast.planning.selection import Candidate, tells_apart

PAGE = pages.APPENDIX / "schedules.md"
GPUS = {
    **{"K80": "k80", "P100": "p100-pcie-16gb", "V100": "v100-sxm-16gb"},
    **{"T4": "t4", "V100-32GB": "v100-sxm-32gb", "A100-40GB": "a100-sxm-40gb"},
}
"""The GPUs of the set by our names. Gavel does not say which V100 and P100 it had."""
SIA_USD = {"T4": 0.35, "V100-32GB": 2.48, "A100-40GB": 3.67}
"""USD per hour: Google's list prices. No cloud lists an RTX 2080 Ti, so it is left out."""
PROCESSORS = {
    **dict.fromkeys(("K80", "P100", "V100"), "Intel Xeon E5-2698 v4"),
    **{"T4": "Intel Xeon Platinum 8259CL", "V100-32GB": "Intel Xeon Platinum 8168"},
    "A100-40GB": "AMD EPYC 7742",
}
"""The processor of the machines: Azure's ND40rs_v2, AWS' g4dn and a DGX A100 had these; clouds of
2019 had a Broadwell beside K80, P100 and V100, for which this one stands."""
PRECISIONS = {"gavel": "fp32", "sia": "tf32"}
"""PyTorch of 2021 used TF32 on an A100 by default; older GPUs have none."""
MIXED = (("sia", "imagenet"),)
"""Job types in mixed precision: 668 images a second on a V100 are above its peak in float32."""
_CLEARLY = 1.2
"""By so much a data sheet must be better for a slower time to be odd."""
_APART = 1.5
"""Two measurements of the same step on the same GPU that differ so much settle nothing."""

Predicted = Mapping[str, Ranged]
"""The predicted seconds of a step on each GPU."""
Predictions = Sequence[tuple[JobType, Predicted]]


@dataclass(frozen=True)
class Regret:
    """What the choices of a job type cost more than the best GPU."""

    job: JobType
    predicted: Predicted
    chosen: str
    best: str
    plain: float
    """The regret if all GPUs take part."""
    verified: float
    """The regret as `wavecast choose` chooses."""
    known: float
    """The regret if only GPUs of generations on which ops were measured are to be had."""
    factored: float
    """The regret with a factor for each machine."""
    is_sure: bool
    """Whether the ranges tell the choice apart from every other."""
    holds_best: bool
    """Whether the best is the choice, or among those that cannot be told apart from it."""
    is_settled: bool
    """Whether measurements say how fast the GPUs are: they repeat, and none is odd."""


def prices(job: JobType) -> Mapping[str, float]:
    """USD per hour of each GPU."""
    return GAVEL_USD if job.system == "gavel" else SIA_USD


def predict(job: JobType, gpus: Sequence[str]) -> Predicted:
    """The step of a job type on GPUs, each in its machine."""
    mixed = (job.system, job.name) in MIXED
    precision = "fp16" if mixed else PRECISIONS[job.system]
    make = partial(JOBS[job.system, job.name], job.batch, precision)
    devices = [wavecast.device(GPUS[gpu]) for gpu in gpus]
    traces = wavecast.trace(make, gpus=devices)
    steps = [
        wavecast.predict(traces, device, host="reference", host_factor=_host_factor(gpu))
        for gpu, device in zip(gpus, devices, strict=True)
    ]
    return {
        gpu: Ranged(step.seconds, step.low_s, step.high_s)
        for gpu, step in zip(gpus, steps, strict=True)
    }


def _host_factor(gpu: str) -> float:
    return reference_processor().speed / processors()[PROCESSORS[gpu]].speed


def judge(predictions: Predictions) -> list[Regret]:
    """The regret of each job type."""
    return [_judged(job, own, _factors(job, predictions)) for job, own in predictions]


def _factors(job: JobType, predictions: Predictions) -> Mapping[str, float]:
    """Measured to predicted time on each machine, the median of the other job types there."""
    by_gpu: dict[str, list[float]] = {}
    for other, own in predictions:
        if other.source == job.source and other.name != job.name:
            for gpu, seconds in other.measured_s.items():
                by_gpu.setdefault(gpu, []).append(seconds / own[gpu].value)
    return {gpu: statistics.median(values) for gpu, values in by_gpu.items()}


def _judged(job: JobType, own: Predicted, factors: Mapping[str, float]) -> Regret:
    usd = prices(job)
    real = {gpu: usd[gpu] * seconds for gpu, seconds in job.measured_s.items()}
    costs = {gpu: _times(own[gpu], usd[gpu]) for gpu in real}
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
        own,
        chosen,
        best,
        plain=real[plain] / real[best] - 1,
        verified=real[chosen] / real[best] - 1,
        known=real[chosen] / min(real[gpu] for gpu in seen) - 1,
        factored=real[factored] / real[best] - 1,
        is_sure=alike == [plain],
        holds_best=best in alike,
        is_settled=job.spread < _APART and not _is_odd(job.measured_s),
    )


def _times(seconds: Ranged, factor: float) -> Ranged:
    low, high = seconds.low or seconds.value, seconds.high or seconds.value
    return Ranged(seconds.value * factor, low * factor, high * factor)


def _is_odd(times: Seconds) -> bool:
    """Whether a GPU was measured to be slower than one that is worse on both data sheets."""

    def betters(gpu: str, other: str) -> bool:
        first, second = wavecast.device(GPUS[gpu]), wavecast.device(GPUS[other])
        return (
            first.memory_bytes_per_s > _CLEARLY * second.memory_bytes_per_s
            and first.fp32_flops > _CLEARLY * second.fp32_flops
        )

    return any(betters(a, b) and times[a] > times[b] for a, b in permutations(times, 2))


def table(regrets: Sequence[Regret]) -> Iterator[str]:
    """A row for each table of speeds and job type, and the means."""
    yield from heading(
        "job type | steps | settled | best chosen | mean regret, all GPUs | as choose "
        "| known GPUs | with factors | sure | best among alike"
    )
    groups: dict[str, list[Regret]] = {}
    for regret in regrets:
        groups.setdefault(f"{regret.job.source} {regret.job.name}", []).append(regret)
    groups["all"] = [*regrets]
    groups["all that are settled"] = settled = [regret for regret in regrets if regret.is_settled]
    for name, own in groups.items():
        if own:
            yield f"| {name} | {len(own)} | {_figures(own)} |"
    yield ""
    for word, sure in {"sure": True, "not sure": False}.items():
        left = [regret.plain for regret in settled if regret.is_sure is sure]
        yield f"- Settled, and the ranges are {word}: {len(left)}, mean regret {_mean(left)}."
    others = list(_by_other_tables([regret.job for regret in regrets]))
    yield (
        f"- Choosing by the speeds of one of Gavel's tables, and paying by another: {len(others)}, "
        f"mean regret {_mean(others)}."
    )


def _by_other_tables(jobs: Sequence[JobType]) -> Iterator[float]:
    """The regret of choosing by another measurement of the same step."""
    for job, other in permutations(jobs, 2):
        if (job.system, job.name, job.batch) != (other.system, other.name, other.batch):
            continue
        shared = job.measured_s.keys() & other.measured_s.keys()
        usd = prices(job)
        real = {gpu: usd[gpu] * job.measured_s[gpu] for gpu in shared}
        chosen = min(sorted(shared), key=lambda gpu: usd[gpu] * other.measured_s[gpu])
        yield real[chosen] / min(real.values()) - 1


def ratios(regrets: Sequence[Regret]) -> Iterator[str]:
    """Predicted and measured times of each job type on each GPU."""
    yield from heading(
        "measured | job type | batch | best | chosen | predicted / measured ms | ratio | repeats",
        "lllll",
    )
    for regret in regrets:
        times = regret.job.measured_s
        both = ", ".join(
            f"{gpu} {_ms(regret.predicted[gpu].value)} / {_ms(times[gpu])}" for gpu in times
        )
        off = ", ".join(f"{regret.predicted[gpu].value / times[gpu]:.2f}" for gpu in times)
        yield (
            f"| {regret.job.source} | {regret.job.name} | {regret.job.batch} | {regret.best} "
            f"| {regret.chosen} | {both} | {off} | {regret.job.spread:.1f}x |"
        )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"


def _mean(values: Iterable[float]) -> str:
    numbers = list(values)
    return f"{statistics.mean(numbers):.1%}" if numbers else "none"


def _figures(own: Sequence[Regret]) -> str:
    means = (
        _mean(getattr(regret, name) for regret in own)
        for name in ("plain", "verified", "known", "factored")
    )
    return " | ".join(
        (
            str(sum(regret.is_settled for regret in own)),
            f"{sum(regret.plain == 0 for regret in own)} of {len(own)}",
            *means,
            str(sum(regret.is_sure for regret in own)),
            str(sum(regret.holds_best for regret in own)),
        )
    )


def tables(data: Path) -> Iterator[ScoreTable]:
    """The speed lost by choosing with predictions, and how far ratios of GPUs are off."""
    jobs = job_types(data / "cluster", JOBS, GPUS)
    known: dict[tuple[str, str, int], Predicted] = {}
    for job in jobs:
        step = job.system, job.name, job.batch
        if step not in known:
            own = [other for other in jobs if (other.system, other.name, other.batch) == step]
            known[step] = predict(job, sorted({gpu for other in own for gpu in other.measured_s}))
            print(*step, flush=True)
    regrets = judge([(job, known[job.system, job.name, job.batch]) for job in jobs])
    yield ScoreTable("\n".join(ratios(regrets)))
    yield ScoreTable("\n".join(table(regrets)), PAGE, "begin: python -m lab score regret")
