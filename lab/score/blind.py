"""How well is the GPU time predicted for models that no fit has seen?

    python -m lab score blind [--write]

Reads measurements/h200/blind (one file for each machine) and the campaign `blind`, and prints
predicted against measured GPU times. `--write` puts the tables into
docs/appendix/accuracy-blind.md. Each step of these files was first traced without using the GPU,
then measured on it. These steps are in no fit of ops and must stay out of
all fits. Their iterations were timed again without a profiler, for `lab.score.iterations`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import wavecast
from lab import pages
from lab.figures import Figures, figures, percent
from lab.measured.comparison import gpu_range_s
from lab.measured.timed import BLIND, GPU, blind_trace, documents
from lab.pages import heading
from lab.scores import ScoreTable
from wavecast import Prediction

MARK = "begin: python -m lab score blind"


@dataclass(frozen=True)
class BlindRow:
    """The predicted and the measured GPU time of one step."""

    name: str
    prediction: Prediction
    gpu_s: float
    machine: str
    """The name of the machine's file."""

    @property
    def gpu_error(self) -> float:
        """The relative error of the GPU-busy time: 0.1 is 10% too long."""
        return self.prediction.gpu_s / self.gpu_s - 1

    @property
    def gpu_within(self) -> bool | None:
        """Whether the measured GPU time lies in its predicted range. None if it has none."""
        ends_s = gpu_range_s(self.prediction)
        return None if ends_s is None else ends_s[0] <= self.gpu_s <= ends_s[1]


@cache
def rows() -> tuple[BlindRow, ...]:
    """Every measured step with its prediction."""
    blind_rows = []
    for machine, document in documents(BLIND).items():
        for name, step in document["steps"].items():
            trace = blind_trace(name)
            assert trace is not None
            prediction = wavecast.predict(trace, GPU, host="reference")
            blind_rows.append(BlindRow(name, prediction, step["gpu_s"], machine))
    return tuple(blind_rows)


def step_table() -> Iterator[str]:
    """A line for each step."""
    yield from heading("step | GPU busy | predicted | error")
    for row in rows():
        yield (
            f"| {row.name} | {row.gpu_s * 1e3:.1f} ms | {row.prediction.gpu_s * 1e3:.1f} ms "
            f"| {row.gpu_error:+.0%} |"
        )


def table() -> Iterator[str]:
    """The figures of each machine."""
    every = rows()
    yield from heading("machine | steps | mean error | median | bias | worst | in range")
    machines = dict.fromkeys(row.machine for row in every)
    groups = {"all machines": set(machines), **{f"{name} machine": {name} for name in machines}}
    for title, names in groups.items():
        scores = figures_of([row for row in every if row.machine in names])
        cells = " | ".join(scores.cells(1))
        yield f"| {title} | {scores.count} | {cells} | {percent(scores.in_range)} |"


def figures_of(some: Iterable[BlindRow]) -> Figures:
    """The five figures of the GPU time of these steps."""
    chosen = list(some)
    return figures((row.gpu_error for row in chosen), (row.gpu_within for row in chosen))


def tables() -> Iterator[ScoreTable]:
    """A line for each step, and the table of the page."""
    yield ScoreTable("\n".join(step_table()))
    scores = {"h200 GPU time, blind models": figures_of(rows())}
    yield ScoreTable("\n".join(table()), pages.APPENDIX / "accuracy-blind.md", MARK, scores)
