"""How well are the steps of the suite predicted? Compared with our measurements on an H200.

    python -m lab score suite_accuracy

Predicts every row of measurements/h200/suite.csv without a GPU, which takes minutes, and writes the
tables of docs/suite.md and docs/appendix/suite-steps.md.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from lab import pages
from lab.measured import campaigns
from lab.pages import heading
from lab.places import DOCS, H200
from lab.scores import ScoreTable
from wavecast import device
from wavecast.campaigns.suite_runs import predict_there
from wavecast.footprint.memory import TBD_KINDS
from wavecast.report.units import memory
from wavecast.runs.suite_results import (
    Observation,
    SuiteResult,
    observe,
    observe_kernels,
    read_results,
)

MEASURED = H200 / "suite.csv"
PAGE = DOCS / "suite.md"
STEPS = pages.APPENDIX / "suite-steps.md"
MARK = "begin: python -m lab score suite_accuracy"

Pair = tuple[SuiteResult, SuiteResult]
"""The measured and the predicted result of one step."""


def pairs() -> list[Pair]:
    """Every measured row that ran, with its prediction."""
    rows = [row for row in read_results(MEASURED) if row.status == "ok"]
    gpu = device(rows[0].gpu)
    return [(row, predict_there(row.configuration, gpu)) for row in rows]


def largest(steps: Sequence[Pair]) -> list[Pair]:
    """The largest batch of each model and precision."""
    last = {(row.model, row.precision): (row, other) for row, other in steps}
    return list(last.values())


def per_model(steps: Iterable[Pair]) -> str:
    """A line for each step: time, throughput and utilisation."""
    lines = [
        *heading(
            "step | time | throughput | error | "
            "GPU: measured, predicted | cores: measured, predicted"
        ),
    ]
    for row, other in steps:
        lines.append(
            f"| {_title(row)} | {1e3 * (row.seconds or 0):.1f} ms "
            f"| {row.throughput_per_s:,.0f} {row.unit}/s | {_relative(row, other):+.0%} "
            f"| {row.gpu_utilisation:.0%}, {other.gpu_utilisation:.0%} "
            f"| {cores(row):.1%}, {cores(other):.1%} |"
        )
    return "\n".join(lines)


def by_model(steps: Iterable[Pair]) -> str:
    """A line for each model: time, error of the throughput and GPU utilisation by precision."""
    precisions = ("fp32", "bf16")
    columns = " | ".join(f"{precision} | error | GPU" for precision in precisions)
    lines = [*heading(f"model, batch | {columns}")]
    models: dict[str, dict[str, Pair]] = {}
    for row, other in steps:
        models.setdefault(f"{row.model} b{row.batch}", {})[row.precision] = (row, other)
    for name, own in models.items():
        cells = [
            f"{1e3 * (row.seconds or 0):.1f} ms | {_relative(row, other):+.0%} "
            f"| {row.gpu_utilisation:.0%}, {other.gpu_utilisation:.0%}"
            for row, other in (own[precision] for precision in precisions)
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _title(row: SuiteResult) -> str:
    return f"{row.model} b{row.batch} {row.precision}"


def memory_by_kind(steps: Iterable[Pair]) -> str:
    """A line for each step: measured memory by kind, and the error of the prediction."""
    names = " | ".join(TBD_KINDS)
    lines = [*heading(f"step | {names} | sum of maxima | peak")]
    for row, other in steps:
        cells = (_bytes(kind, row, other) for kind in TBD_KINDS)
        held = sum(_held(kind, row) or 0 for kind in TBD_KINDS)
        lines.append(
            f"| {_title(row)} | {' | '.join(cells)} "
            f"| {memory(held)} | {_bytes('peak', row, other)} |"
        )
    return "\n".join(lines)


def cores(row: SuiteResult) -> float:
    """Utilisation of the unit that this precision uses: FP32 cores in fp32, else tensor cores."""
    share = row.fp32_utilisation if row.precision == "fp32" else row.tensor_utilisation
    return share or 0.0


def _held(kind: str, row: SuiteResult) -> int | None:
    nbytes: int | None = getattr(row, f"{kind.replace(' ', '_')}_bytes")
    return nbytes


def _bytes(kind: str, row: SuiteResult, other: SuiteResult) -> str:
    measured, predicted = _held(kind, row), _held(kind, other)
    if measured is None or predicted is None:
        return "?" if measured is None else memory(measured)
    error = f" ({predicted / measured - 1:+.0%})" if measured else ""
    return memory(measured) + error


def _relative(row: SuiteResult, other: SuiteResult) -> float:
    return (other.throughput_per_s or 0.0) / (row.throughput_per_s or 1.0) - 1


def summary(steps: Sequence[Pair]) -> str:
    """The mean, median and worst error of each predicted quantity, over all steps."""

    def points(share: Callable[[SuiteResult], float | None]) -> list[float]:
        return [100 * abs((share(o) or 0.0) - (share(r) or 0.0)) for r, o in steps]

    lines = [*heading("quantity | mean error | median | worst")]
    in_percent = {"throughput": [100 * abs(_relative(r, o)) for r, o in steps]}
    for kind in (*TBD_KINDS, "peak"):
        errors = [
            100 * abs(predicted / measured - 1)
            for r, o in steps
            if (measured := _held(kind, r)) and (predicted := _held(kind, o)) is not None
        ]
        if errors:
            in_percent[kind] = errors
    in_points = {
        "GPU utilisation": points(lambda row: row.gpu_utilisation),
        "FP32 utilisation (fp32), tensor utilisation (bf16)": points(cores),
    }
    for unit, group in (("%", in_percent), (" points", in_points)):
        for name, errors in group.items():
            cells = (statistics.mean(errors), statistics.median(errors), max(errors))
            lines.append(f"| {name} | {' | '.join(f'{cell:.1f}{unit}' for cell in cells)} |")
    return "\n".join(lines)


def observations(seen: Iterable[Observation]) -> str:
    """How many models show each of TBD's observations."""
    lines = [*heading("no. | observation of 2018 | models that show it here", "rll")]
    for observation in seen:
        agreeing = len(observation.agreeing)
        total = agreeing + len(observation.others)
        lines.append(f"| {observation.number} | {observation.claim} | {agreeing} of {total} |")
    return "\n".join(lines)


def utilisation(path: Path) -> str:
    """GPU utilisation of 13 steps, as three tools report it."""
    lines = [*heading("step | wavecast | nvidia-smi | torch.profiler")]
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            shares = (f"{float(row[n]):.1%}" for n in ("wavecast", "nvidia_smi", "profiler"))
            step = f"{row['model']} b{row['batch']} {row['precision']}"
            lines.append(f"| {step} | {' | '.join(shares)} |")
    return "\n".join(lines)


def tables() -> Iterator[ScoreTable]:
    """The tables of single steps, and those of the pages."""
    steps = pairs()
    rows = [row for row, _ in steps]
    seen = (*observe(rows), observe_kernels(campaigns.traces("suite"), device(rows[0].gpu)))
    ordered = sorted(seen, key=lambda observation: observation.number)
    yield ScoreTable(per_model(largest(steps)))
    yield ScoreTable(memory_by_kind(largest(steps)))
    yield ScoreTable(utilisation(H200 / "utilisation.csv"))
    yield ScoreTable(observations(ordered), PAGE, f"{MARK}, observations")
    yield ScoreTable(summary(steps), PAGE, f"{MARK}, summary")
    yield ScoreTable(by_model(largest(steps)), STEPS, f"{MARK}, by model")
