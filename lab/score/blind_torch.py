"""How well were steps of torch that nothing had seen predicted before they ran on our H200?

    python -m lab score blind_torch [TEST ...] [--write]     each test, for the appendix
    python -m lab score revisited [--write]                  steps that were badly predicted, today
    python -m lab score blind_tests [--write]                a line for each, for the first page

Each folder in measurements/h200 has `predictions.json`, committed before anything was measured, and
what `lab collect step_times SET OUT` measured. `traced.tar` has the traces that were predicted, so
that later models can be compared on them. How fast the host of a lease is cannot be known before,
so each step was predicted with the reference host and with faster and slower ones. The host
benchmark that ran between the measured steps then says which of these predictions stands for a
calibrated host. `--write` puts the means into docs/appendix/accuracy-blind.md, and
the table of all tests into docs/index.md.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from lab import pages
from lab.collect.step_times import prediction_of
from lab.measured import jax_steps
from lab.measured.campaigns import read_traces
from lab.pages import heading
from lab.places import DOCS, H200
from lab.score import jax
from lab.scores import ScoreTable
from lab.steps.timed_sets import steps_of
from wavecast.hardware.kept_hosts import factor_of, reference_times

TRACED = "traced.tar"

OFF = 0.1
"""Steps with a larger error in GPU time are named."""
FAR_OFF = 0.5
"""Without steps of a larger error in GPU time the means are given as well."""


@dataclass(frozen=True)
class TorchTest:
    """A blind test of steps of torch."""

    name: str
    title: str
    """Its line in the table of all blind tests."""
    sets: tuple[str, ...]
    """The names of its folders, and of its sets (`lab.steps.timed_sets`) until it was measured."""

    @property
    def mark(self) -> str:
        """The mark of its tables in the page."""
        return f"{self.name} test"

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of its sets that were measured."""
        every = (H200 / name for name in self.sets)
        return tuple(folder for folder in every if (folder / "rows.jsonl.gz").exists())


TESTS = (
    TorchTest("third", "torch, eager and compiled, models of 2025 and 2026", ("blind_3",)),
    TorchTest("fourth", "torch, other families", ("blind_4",)),
    TorchTest("fifth", "torch, again others", ("blind_5", "blind_6")),
    TorchTest("sixth", "torch, others once more", ("blind_7",)),
    TorchTest("seventh", "torch, families that nobody had run", ("blind_8",)),
    TorchTest("eighth", "torch, usual models of these years", ("blind_9",)),
    TorchTest("repaired", "torch, code that version 0.2 got wrong", ("repaired",)),
)
"""The blind tests of torch that have a page in common, as they were made."""
NAMES = tuple(test.name for test in TESTS)
PAGE = pages.APPENDIX / "accuracy-blind.md"


@dataclass(frozen=True)
class BlindStep:
    """A step, predicted and then measured."""

    name: str
    mode: str
    gpu_error: float
    error: float
    """That of the iteration."""
    memory_error: float | None
    within: bool
    """Whether the iteration lies in its range."""

    @classmethod
    def of(cls, name: str, prediction: Mapping[str, Any], row: Mapping[str, Any]) -> BlindStep:
        """A step from what was predicted and what was measured (`row`)."""
        peak_bytes = row.get("peak_bytes")
        return cls(
            name=name.partition("-")[2],
            mode="compiled" if prediction["mode"] == "default" else prediction["mode"],
            # A profiler may slow kernels down that wait for others: no GPU is busy for longer.
            gpu_error=prediction["gpu_s"] / min(row["busy_s"], row["wall_s"]) - 1,
            error=prediction["seconds"] / row["wall_s"] - 1,
            memory_error=prediction["peak_bytes"] / peak_bytes - 1 if peak_bytes else None,
            within=prediction["low_s"] <= row["wall_s"] <= prediction["high_s"],
        )


def all_predictions(modes: Mapping[str, str], archive: Path) -> dict[str, Any]:
    """What is predicted of each of these steps whose trace is in the archive, by name."""
    traces = read_traces(archive)
    return {
        name: prediction_of(traces[name], mode) for name, mode in modes.items() if name in traces
    }


def predicted(folder: Path) -> dict[str, Any]:
    """The predictions of a set by the name of the step."""
    document = json.loads((folder / "predictions.json").read_text(encoding="utf-8"))
    predictions: dict[str, Any] = document["predictions"]
    return predictions


def rows(folder: Path) -> list[dict[str, Any]]:
    """All that `lab collect step_times` wrote: steps and rounds of the host benchmark."""
    with gzip.open(folder / "rows.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def measured(folder: Path) -> dict[str, Any]:
    """What was measured of each step, by its name."""
    runs = folder / "measured.json"
    if not runs.exists():
        return {row["step"]: row for row in rows(folder) if "step" in row}
    # The third test had two runs: times are from the first, memory is from the second.
    document = json.loads(runs.read_text(encoding="utf-8"))
    again = document["again"]
    return {
        name: row | {"peak_bytes": again.get(name, {}).get("peak_bytes")}
        for name, row in document["first"].items()
    }


def compared(folder: Path, said: Mapping[str, Any]) -> list[BlindStep]:
    """The steps of a set that were measured, beside what was said of them."""
    by_name = measured(folder)
    return [BlindStep.of(name, said[name], by_name[name]) for name in said if name in by_name]


def steps(test: TorchTest) -> list[BlindStep]:
    """The steps of a test that were measured, beside what was committed before."""
    return [step for folder in test.folders for step in compared(folder, predicted(folder))]


def step_table(every: Sequence[BlindStep]) -> Iterator[str]:
    """The errors of each step."""
    yield from heading("step | how | GPU time | iteration | memory | in range", "ll")
    for step in every:
        memory = "" if step.memory_error is None else f"{step.memory_error:+.1%}"
        errors = f"{step.gpu_error:+.0%} | {step.error:+.0%} | {memory}"
        yield f"| {step.name} | {step.mode} | {errors} | {'yes' if step.within else 'no'} |"
    yield ""


def in_words(every: Sequence[BlindStep]) -> Iterator[str]:
    """The means of the errors, and the steps that are far off."""
    gpu, whole = ([abs(getattr(step, name)) for step in every] for name in ("gpu_error", "error"))
    apart = []
    for mode in ("eager", "compiled"):
        sizes = [abs(step.gpu_error) for step in every if step.mode == mode]
        apart.append(f"{len(sizes)} {mode} {mean(sizes):.1%}")
    memory = mean(abs(step.memory_error) for step in every if step.memory_error is not None)
    yield (
        f"GPU time of {len(every)} steps is {mean(gpu):.1%} off (median {median(gpu):.1%}; "
        f"{', '.join(apart)}), the iteration {mean(whole):.1%} (median {median(whole):.1%}), "
        f"memory {memory:.1%}. {sum(step.within for step in every)} iterations are in their range."
    )
    off = [f"{step.name} {step.gpu_error:+.0%}" for step in every if abs(step.gpu_error) > OFF]
    if off:
        yield f"Steps whose GPU time is more than {OFF:.0%} off: {', '.join(off)}."


def without_worst(every: Sequence[BlindStep]) -> Iterator[str]:
    """A line with the errors of the other steps, if some are far off in GPU time."""
    rest = [step for step in every if abs(step.gpu_error) <= FAR_OFF]
    if len(rest) < len(every):
        gpu, whole = (mean(abs(getattr(o, f)) for o in rest) for f in ("gpu_error", "error"))
        memory = mean(abs(step.memory_error) for step in rest if step.memory_error is not None)
        yield (
            f"Without steps whose GPU time is more than {FAR_OFF:.0%} off, {len(rest)} remain: "
            f"{gpu:.1%} off in GPU time, {whole:.1%} in iterations and {memory:.1%} in memory."
        )


def host_factor(folder: Path) -> float:
    """How long the host of the lease took, in multiples of the reference host."""
    return median(
        factor_of(row["host"]["cuda"], reference_times()["cuda"])
        for row in rows(folder)
        if "host" in row
    )


def calibrated(prediction: Mapping[str, Any], factor: float) -> tuple[float, float, float]:
    """The iteration that was predicted for a host of this speed, and its range."""
    speeds = [float(key) for key in prediction["hosts"]]
    values = np.array(list(prediction["hosts"].values()))
    seconds, low_s, high_s = (float(np.interp(factor, speeds, values[:, n])) for n in range(3))
    return seconds, low_s, high_s


def with_its_host(folder: Path, said: Mapping[str, Any]) -> str:
    """A line that says how far off iterations are with the calibrated host of the lease."""
    factor, by_name = host_factor(folder), measured(folder)
    errors, held = [], 0
    for name in said.keys() & by_name.keys():
        seconds, low_s, high_s = calibrated(said[name], factor)
        wall_s = by_name[name]["wall_s"]
        errors.append(abs(seconds / wall_s - 1))
        held += low_s <= wall_s <= high_s
    return (
        f"The host of this lease took {factor:.2f} times as long as the reference host. With the "
        f"predictions for such a host, iterations are {mean(errors):.1%} off (median "
        f"{median(errors):.1%}), and {held} of {len(errors)} are in range."
    )


def _today(folder: Path) -> str:
    """A line that says how far off today's models are on the traces that were kept."""
    modes = {name: step["mode"] for name, step in predicted(folder).items()}
    today = compared(folder, all_predictions(modes, folder / TRACED))
    gpu = [abs(step.gpu_error) for step in today]
    return f"Today's models are {mean(gpu):.1%} off in GPU time (median {median(gpu):.1%})."


def text_of(test: TorchTest) -> str:
    """The errors as predicted before; where traces were kept, what else they tell."""
    every = steps(test)
    lines = [*in_words(every), *without_worst(every)]
    for folder in test.folders:
        if (folder / TRACED).exists():
            lines += [with_its_host(folder, predicted(folder)), _today(folder)]
    return _list(lines)


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def tables(names: Sequence[str]) -> Iterator[ScoreTable]:
    """A line for each step of each test, and what the page says of them."""
    for test in TESTS:
        if test.name in names:
            yield ScoreTable("\n".join(step_table(steps(test))), title=f"The {test.mark}")
            yield ScoreTable(text_of(test), PAGE, test.mark)


REVISITED = H200 / "revisited"


def of_revisited() -> Iterator[ScoreTable]:
    """How well are steps predicted now that stand for models known to be badly predicted?

    No fit reads them, but they were looked at to find what was wrong.
    """
    modes = {step.name: step.mode for step in steps_of("revisited")}
    said = all_predictions(modes, REVISITED / TRACED)
    every = compared(REVISITED, said)
    yield ScoreTable("\n".join(step_table(every)))
    yield ScoreTable(_list([*in_words(every), with_its_host(REVISITED, said)]), PAGE, "revisited")


JAX = {
    "blind": "JAX, 20 steps of many kinds",
    "second": "JAX, half of them of kinds that no fit has seen",
    "odd": "JAX, odd kinds: sparse matrices, sorting, derivatives of derivatives",
}
"""The title of each blind test of JAX by its group of steps."""


@dataclass(frozen=True)
class BlindTest:
    """The errors of one test: a number for each step that was measured."""

    title: str
    gpu: tuple[float, ...]
    iteration: tuple[float, ...]
    memory: tuple[float, ...]
    held: int
    """How many iterations were within their range."""

    @property
    def line(self) -> str:
        """Its line of the table: mean errors, and medians in parentheses."""
        cells = [_cell(errors) for errors in (self.gpu, self.iteration, self.memory)]
        return f"| {self.title} | {' | '.join(cells)} | {self.held} of {len(self.iteration)} |"


def _cell(errors: Sequence[float]) -> str:
    sizes = [abs(error) for error in errors]
    return f"{mean(sizes):.1%} ({median(sizes):.1%})"


def _of_torch(test: TorchTest) -> BlindTest:
    every = steps(test)
    return BlindTest(
        title=test.title,
        gpu=tuple(step.gpu_error for step in every),
        iteration=tuple(step.error for step in every),
        memory=tuple(step.memory_error for step in every if step.memory_error is not None),
        held=sum(step.within for step in every),
    )


def _of_jax(group: str) -> BlindTest:
    measured_steps = jax_steps.steps(group)
    path = H200 / "jax" / f"{group}-predictions.json"
    predictions = [
        row for row in json.loads(path.read_text(encoding="utf-8")) if row["name"] in measured_steps
    ]
    true = [jax.measured(measured_steps[row["name"]]) for row in predictions]

    def off(name: str) -> tuple[float, ...]:
        return tuple(
            row[name] / known[name] - 1 for row, known in zip(predictions, true, strict=True)
        )

    pairs = zip(predictions, true, strict=True)
    return BlindTest(
        title=JAX[group],
        gpu=off("gpu_s"),
        iteration=off("seconds"),
        memory=off("memory_bytes"),
        held=sum(row["low_s"] <= known["seconds"] <= row["high_s"] for row, known in pairs),
    )


def _tests() -> Iterator[BlindTest]:
    """The blind tests that were measured, as they were made, those of torch first."""
    yield from (_of_torch(test) for test in TESTS)
    yield from map(_of_jax, JAX)


def of_all_tests() -> Iterator[ScoreTable]:
    """The table of the first page: a line for each blind test, with the models of its day."""
    top = "steps that nobody had run | GPU time | iteration | memory | in range"
    lines = [*heading(top), *(test.line for test in _tests())]
    yield ScoreTable("\n".join(lines), DOCS / "index.md", "blind tests")
