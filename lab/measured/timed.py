"""Iterations that were timed on machines of our H200 before any profiler had run in the process.

Once one has, launches take longer ever after (docs/adr/0018), and users train without. The files
under measurements/h200/iterations are one a machine (`lab.collect.iterations`); those that have the
GPU's time of each step instead (`gpu_s`) were measured with a profiler, and tell only that. Those
under iterations/unseen were measured after the fits: by them predictions are judged, and nothing
is fitted on them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from lab.places import H200

FOLDER = H200 / "iterations"
BLIND = H200 / "blind"
"""The blind steps as measured, one file for each machine; their traces are a campaign."""

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
    """Seconds in which the GPU was busy, measured on another machine."""
    search: bool
    """Whether cuDNN searched for its algorithms, as a step before had asked for."""
    asked: Mapping[str, float]
    """How often its trace asks for each of the host's costs."""
    apart: float | None
    """The mean relative difference between a timing and the next; None if there is one only."""


@dataclass(frozen=True, eq=False)
class Machine:
    """A machine, its host and its steps."""

    name: str
    software: str
    start: Mapping[str, Times]
    """The host benchmark's times on "cpu" and "cuda", before all steps."""
    beside: Sequence[Times]
    """The benchmark's times on "cuda", between steps."""
    direct: Times
    """Costs of the host that a GPU shows directly."""
    steps: Sequence[Timed]
    profiled: bool = False
    """Whether a profiler had run before, by mistake; such a machine judges nothing."""

    @property
    def throughout(self) -> dict[str, float]:
        """The median of all times of each pattern on "cuda"."""
        every = (self.start["cuda"], *self.beside)
        return {name: statistics.median(each[name] for each in every) for name in every[0]}


def machines() -> list[Machine]:
    """The machines on which no profiler had run, in the order of measuring."""
    return [machine for machine in all_machines() if not machine.profiled]


def all_machines() -> list[Machine]:
    """All machines. Those after a profiler show the costs of a host, but not its speed."""
    return _machines(FOLDER)


def unseen_machines() -> list[Machine]:
    """Machines that are in no fit."""
    return _machines(UNSEEN)


def _machines(folder: Path) -> list[Machine]:
    known = busy_s()
    found = []
    for name, document in documents(folder).items():
        if any("timings_s" in step for step in document["steps"].values()):
            found.append(_machine(name, document, known))
    return found


def _machine(name: str, document: Mapping[str, Any], known: Times) -> Machine:
    steps = [
        Timed(
            each,
            statistics.median(step["timings_s"]),
            known[each],
            bool(step.get("search")),
            step["asked"],
            _apart(step["timings_s"]),
        )
        for each, step in document["steps"].items()
    ]
    beside = [times for step in document["steps"].values() for times in step["hosts"]]
    software = str(document["about"]["software"])
    profiled = bool(document.get("profiled"))
    return Machine(name, software, document["host"], beside, document["gpu"], steps, profiled)


def _apart(timings_s: Sequence[float]) -> float | None:
    apart = [abs(after / before - 1) for before, after in pairwise(timings_s)]
    return statistics.mean(apart) if apart else None


def busy_s() -> dict[str, float]:
    """The GPU's time of each step of the suite and of the blind test, where it was measured."""
    found: dict[str, float] = {}
    for folder in (FOLDER, BLIND):
        for document in documents(folder).values():
            steps = document["steps"].items()
            found |= {name: step["gpu_s"] for name, step in steps if "gpu_s" in step}
    return found


def documents(folder: Path) -> dict[str, dict[str, Any]]:
    """A folder's files by name, one a machine, in the order of measuring."""
    paths = sorted(folder.glob("*.json"), key=lambda path: ORDER.index(path.stem))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}
