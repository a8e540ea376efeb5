"""Iterations timed on machines with an H200, before any profiler had run in the process.

After a profiler has run, launches take longer for the rest of the process (lab/notes), and
users train without one. measurements/h200/iterations has one file for each machine. Some files hold
the GPU time of each step instead (`gpu_s`); these were measured with a profiler and are used for
nothing else. The files under iterations/unseen were measured after the fits. Predictions are scored
on them, and nothing is fitted on them.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import wavecast
from lab.measured import campaigns
from lab.places import H200
from wavecast import Trace, suite
from wavecast.hardware.hosts import COSTS, demands

FOLDER = H200 / "iterations"
BLIND = H200 / "blind"
"""The measured steps of the blind test, one file for each machine. Their traces are a campaign."""

UNSEEN = FOLDER / "unseen"

ORDER = (
    *("first", "second", "third", "fourth", "fifth", "sixth"),
    *("seventh", "eighth", "ninth", "tenth", "eleventh"),
)
"""The order in which the files were measured."""

Times = Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Timed:
    """A step on one machine."""

    name: str
    seconds: float
    gpu_s: float
    """Seconds in which the GPU is busy, as measured on another machine."""
    search: bool
    """Whether cuDNN searched for its algorithms, because an earlier step had switched that on."""
    asked: Mapping[str, float]
    """How often the step needs each of the host's costs, by its trace."""
    apart: float | None
    """The mean relative difference between consecutive timings. None if there is only one."""


@dataclass(frozen=True, eq=False)
class Machine:
    """A machine, its host and its steps."""

    name: str
    software: str
    start: Mapping[str, Times]
    """The host benchmark's times on "cpu" and "cuda" before all steps."""
    beside: Sequence[Times]
    """The host benchmark's times on "cuda" between steps."""
    direct: Times
    """Costs of the host that can be measured directly on a GPU."""
    steps: Sequence[Timed]
    profiled: bool = False
    """Whether a profiler had run before, by mistake. No predictions are scored on such machines."""

    @property
    def throughout(self) -> dict[str, float]:
        """The median time of each benchmark pattern on "cuda", at the start and between steps."""
        every = (self.start["cuda"], *self.beside)
        return {name: statistics.median(times[name] for times in every) for name in every[0]}


def machines() -> list[Machine]:
    """The machines on which no profiler had run, in the order of measurement."""
    return [machine for machine in all_machines() if not machine.profiled]


def all_machines() -> list[Machine]:
    """All machines. Those where a profiler had run show the ratios of costs, but not the speed."""
    return _machines(FOLDER)


def unseen_machines() -> list[Machine]:
    """The machines that no fit has seen."""
    return _machines(UNSEEN)


def _machines(folder: Path) -> list[Machine]:
    gpu_times_s = busy_s()
    machines = []
    for name, document in documents(folder).items():
        if any("timings_s" in step for step in document["steps"].values()):
            machines.append(_machine(name, document, gpu_times_s))
    return machines


def _machine(name: str, document: Mapping[str, Any], gpu_times_s: Times) -> Machine:
    steps = [
        Timed(
            step_name,
            statistics.median(step["timings_s"]),
            gpu_times_s[step_name],
            bool(step.get("search")),
            step["asked"],
            _apart(step["timings_s"]),
        )
        for step_name, step in document["steps"].items()
    ]
    beside = [times for step in document["steps"].values() for times in step["hosts"]]
    software = str(document["about"]["software"])
    profiled = bool(document.get("profiled"))
    return Machine(name, software, document["host"], beside, document["gpu"], steps, profiled)


def _apart(timings_s: Sequence[float]) -> float | None:
    apart = [abs(after / before - 1) for before, after in pairwise(timings_s)]
    return statistics.mean(apart) if apart else None


def busy_s() -> dict[str, float]:
    """The measured GPU time of the steps of the suite and of the blind test, by name."""
    gpu_times_s: dict[str, float] = {}
    for folder in (FOLDER, BLIND):
        for document in documents(folder).values():
            steps = document["steps"].items()
            gpu_times_s |= {name: step["gpu_s"] for name, step in steps if "gpu_s" in step}
    return gpu_times_s


def documents(folder: Path) -> dict[str, dict[str, Any]]:
    """The files of a folder by name, one for each machine, in the order of measurement."""
    paths = sorted(folder.glob("*.json"), key=lambda path: ORDER.index(path.stem))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


# Traces of the steps that were timed on our H200 machines, and how often they need host costs.


GPU = "h200-sxm"


def file_name(title: str) -> str:
    """The name of a step in file names."""
    return title.replace(" ", "-")


def blind_trace(title: str) -> Trace | None:
    """The trace of a step of the blind test, made before the measurement. None for other steps."""
    return campaigns.traces("blind").get(file_name(title))


def asked_of(trace: Trace) -> dict[str, int]:
    """How often a step needs each of the host's costs."""
    counts = demands(trace.calls).sum(axis=0).tolist()
    return {name: int(count) for name, count in zip(COSTS, counts, strict=True) if count}


def traced(cache: Path, title: str, *, search: bool) -> Trace:
    """The trace of a step of the blind test or of the suite.

    Args:
        cache: a folder that keeps traces; missing ones are made. Traces of the blind test are in
            its campaign.
        title: the name of the step.
        search: whether cuDNN searched for its algorithms.
    """
    kept = blind_trace(title)
    if kept is not None and not search:
        return kept
    name = f"{'search' if search else 'suite'}-{file_name(title)}.json.gz"
    path = cache / "iterations" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        make = dict((*suite_steps(), *blind_steps()))[title]
        wavecast.trace(partial(_searching, make) if search else make, gpu=GPU).save(path)
    return wavecast.load_trace(path)


def _searching(make: MakeStep) -> Step:
    import torch

    step = make()

    def run() -> None:
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True
        step()
        torch.backends.cudnn.benchmark = before

    return run


# Steps by name: those of the suite, to compare machines, and those of the blind test.


SEED = 5
BLIND_PREFIXES = ("torchvision", "transformers", "perceptron", "lstm language", "blocks")
"""The prefixes of the steps of `lab.steps.memory` whose models are not in the suite."""

Step = Callable[[], Any]
MakeStep = Callable[[], Step]


def suite_steps() -> Iterator[tuple[str, MakeStep]]:
    """Every benchmark of the suite in every precision, at its default batch and a quarter of it.

    The order is random, with a fixed seed.
    """
    steps = []
    for benchmark in suite.benchmarks():
        quarter = max(benchmark.default_batch // 4, benchmark.smallest_batch)
        for batch in sorted({quarter, benchmark.default_batch}):
            for precision in suite.PRECISIONS:
                make = partial(benchmark.make_step, batch, precision)
                steps.append((f"{benchmark.name} b{batch} {precision}", make))
    random.Random(SEED).shuffle(steps)
    yield from steps


def blind_steps() -> Iterator[tuple[str, MakeStep]]:
    """The steps of the blind test that were also timed while cuDNN searched for algorithms."""
    from lab.steps.memory import STEPS

    for name, step in STEPS.items():
        if name.startswith(BLIND_PREFIXES):
            yield name, step.make
