"""Predicted against measured replay times of CUDA graphs on our H200.

    python -m lab score graph_accuracy [--write]

measurements/h200/host/*.json has one file for each machine. The
command traces their steps on this machine and prints a table.
`--write` records the figures for docs/accuracy.md. The eager steps of these files are not scored,
because they were timed after a profiler had run (lab/notes). `lab.score.iterations` scores
steps that were timed before any profiler.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import wavecast
from lab.figures import figures
from lab.pages import heading
from lab.places import H200
from lab.scores import ScoreTable
from lab.steps.reality import STEPS
from wavecast import Prediction, suite

MEASURED = H200 / "host"
GPU = "h200-sxm"

Run = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class GraphRow:
    """A replayed step and its prediction."""

    name: str
    replayed: Mapping[str, Any]
    eager_s: float | None
    predicted: Prediction

    @property
    def error(self) -> float:
        """The relative error of the predicted replay: 0.1 is 10% too long."""
        return self.predicted.seconds / float(self.replayed["wall_s"]) - 1


def runs() -> dict[str, Run]:
    """The measurements of each machine, by the name of its file."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(MEASURED.glob("*.json"))}


def rows(run: Run) -> Iterator[GraphRow]:
    """Every step of a machine that was replayed as a graph, traced and predicted."""
    for name, replayed in run["graphed"].items():
        if "wall_s" in replayed:
            key = next(key for key in GRAPHED if named(key) == name)
            trace = wavecast.trace(partial(make_capturable, key))
            predicted = wavecast.predict(trace, GPU, host="reference", graphed=True)
            before = run["eager"].get(name)
            yield GraphRow(name, replayed, before["wall_s"] if before else None, predicted)


def lines(some: Iterable[GraphRow]) -> Iterator[str]:
    """A line for each replayed graph."""
    yield from heading("step | eager | graph | busy | kernels | gap | launch | predicted | error")
    for row in some:
        eager = "" if row.eager_s is None else f"{1e3 * row.eager_s:.1f} ms"
        replayed = row.replayed
        gap_s = (replayed["wall_s"] - replayed["gpu_s"]) / replayed["kernels"]
        yield (
            f"| {row.name} | {eager} | {1e3 * replayed['wall_s']:.2f} ms "
            f"| {1e3 * replayed['gpu_s']:.2f} ms | {replayed['kernels']} | {1e6 * gap_s:.2f} us "
            f"| {1e6 * replayed['issue_s']:.0f} us | {1e3 * row.predicted.seconds:.2f} ms "
            f"| {row.error:+.1%} |"
        )


def tables() -> Iterator[ScoreTable]:
    """The table of each machine, and the figures of all."""
    errors = []
    for name, run in runs().items():
        if "graphed" in run:
            replayed = list(rows(run))
            errors += [row.error for row in replayed]
            yield ScoreTable("\n".join(lines(replayed)), title=f"{name}:")
    yield ScoreTable("", figures={"h200 CUDA graphs": figures(errors)})


# Steps by model, batch and precision, and those that are captured as CUDA graphs.


GRAPHED = (
    ("dcgan", 64, "bf16"),
    ("resnet50", 2, "fp32"),
    ("bert-base", 16, "bf16"),
    ("mobilenet_v3", 32, "bf16"),
    ("vit", 2, "bf16"),
    ("suite/googlenet", 8, "bf16"),
    ("resnet50", 32, "bf16"),
)
Step = Callable[[], Any]
Key = tuple[str, int, str]


def make_step(key: Key) -> Step:
    """The step of a model, a batch and a precision."""
    name, batch, precision = key
    if name.startswith("suite/"):
        return suite.benchmark(name.removeprefix("suite/")).make_step(batch, precision)
    step: Step = STEPS[name][0](batch, precision)
    return step


def make_capturable(key: Key) -> Step:
    """The step with optimizers whose step counter is on the GPU, which a CUDA graph needs."""
    step = make_step(key)
    for candidate in gc.get_objects():
        # type() and not isinstance: reading __class__ of some objects warns.
        if issubclass(type(candidate), torch.optim.Optimizer) and not candidate.state:
            for group in candidate.param_groups:
                if "capturable" in group:
                    group["capturable"] = True
    return step


def named(key: Key) -> str:
    """The key of a step as one word."""
    return "-".join(map(str, key))
