"""How well is the scaling of data parallel training predicted on Lambda's machines?

    python -m lab score scaling --data FOLDER [--cache FOLDER]

Needs the public table lambda (docs/sources.md), and transformers; takes six minutes, or three with
the traces of an earlier run in `--cache`. Writes the tables of docs/parallel.md. Efficiency is the
speed of n GPUs, divided by n times that of one. The GPU of a row is left out of the fit of overlap
(lab.fit.overlap).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median

from lab.fit.overlap import ScaledStep, mean_error, steps_of, without
from lab.measured.scaled_rows import lambda_rows
from lab.pages import heading
from lab.places import DOCS
from lab.score.lambda_runs import more_gpus
from lab.scores import ScoreTable
from wavecast.steps.op_times import OverlapConstants, shipped_overlap

PAGE = DOCS / "parallel.md"
MARK = "begin: python -m lab score scaling"
NAMES = {
    "bert_base_squad": "BERT",
    "bert_large_squad": "BERT",
    "gnmt": "GNMT",
    "resnet50": "ResNet-50",
    "ssd": "SSD",
}
TARGETS = {"BERT": 5, "GNMT": 5, "ResNet-50": 3, "SSD": 3}
LINKS = {
    "nvlink_sxm": "NVLink (boards)",
    "nvlink_bridge_pairs": "NVLink bridges",
    "pcie": "PCIe",
}
UNSTATED = "not stated"
ALL = "**all**"
TRIED = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)


def gpu_of(step: ScaledStep) -> str:
    """The GPU of a row."""
    return step.row.case.gpu


def errors_without_gpu(steps: Sequence[ScaledStep]) -> list[tuple[ScaledStep, float]]:
    """Each row with its predicted efficiency, the GPU of the row left out of the fit."""
    fitted = without(steps, gpu_of)
    return [(step, step.efficiency(fitted[gpu_of(step)])) for step in steps]


def table(steps: Sequence[ScaledStep]) -> str:
    """Errors by model and link."""
    groups: dict[tuple[str, str], list[tuple[ScaledStep, float]]] = defaultdict(list)
    for step, predicted in errors_without_gpu(steps):
        name = NAMES[step.row.task]
        groups[name, LINKS.get(step.row.link, UNSTATED)].append((step, predicted))
        groups[name, ALL].append((step, predicted))
    names = "model | link | rows | measured | predicted | mean error, points"
    lines = [*heading(f"{names} | equal rows differ by | target", "ll")]
    for (model, link), pairs in sorted(groups.items()):
        errors = [abs(predicted - step.row.efficiency) for step, predicted in pairs]
        lines.append(
            f"| {model} | {link} | {len(pairs)} | {fmean(s.row.efficiency for s, _ in pairs):.2f} "
            f"| {fmean(p for _, p in pairs):.2f} | {100 * fmean(errors):.1f} "
            f"| {100 * fmean(differences([s for s, _ in pairs])):.1f} | {TARGETS[model]} |"
        )
    return "\n".join(lines)


def differences(steps: Sequence[ScaledStep]) -> Iterator[float]:
    """How far each row is from the median of the rows that are alike in all that is stated."""
    alike: dict[object, list[float]] = defaultdict(list)
    for step in steps:
        row = step.row
        key = (row.case.gpu, row.link, row.case.name, row.strategy.gpus)
        alike[key].append(row.efficiency)
    for values in alike.values():
        yield from (abs(value - median(values)) for value in values)


def slowdowns(steps: Sequence[ScaledStep]) -> str:
    """The mean errors of the stated rows with other slowdowns, ranks spread as shipped."""
    spread = shipped_overlap().rank_spread
    stated = [step for step in steps if step.row.is_stated]
    kinds = {
        "boards with NVLink": [step for step in stated if not step.is_on_cards],
        "cards": [step for step in stated if step.is_on_cards],
    }
    lines = [*heading(f"kernels take longer by | {' | '.join(f'{s:.0%}' for s in TRIED)}")]
    for name, some in kinds.items():
        errors = [
            100 * mean_error(some, OverlapConstants({"nvlink": s, "pcie": s}, spread))
            for s in TRIED
        ]
        lines.append(f"| {name} | {' | '.join(f'{error:.1f}' for error in errors)} |")
    return "\n".join(lines)


def bridges(steps: Sequence[ScaledStep]) -> str:
    """BERT-large in float32 on RTX 2080 Ti, with and without bridges, machine by machine."""
    lines = [*heading("GPUs | bridges | measured, by machine | predicted", "rl")]
    rows: dict[tuple[int, str], list[tuple[ScaledStep, float]]] = defaultdict(list)
    for step, predicted in errors_without_gpu(steps):
        row = step.row
        if (row.task, row.case.gpu) == ("bert_large_squad", "rtx-2080-ti"):
            answer = "no" if row.link == "pcie" else "yes"
            rows[row.strategy.gpus, answer].append((step, predicted))
    for (gpus, answer), pairs in sorted(rows.items()):
        measured = ", ".join(f"{step.row.efficiency:.2f}" for step, _ in pairs)
        lines.append(f"| {gpus} | {answer} | {measured} | {pairs[0][1]:.2f} |")
    return "\n".join(lines)


def beside_the_regression(steps: Sequence[ScaledStep], data: Path) -> str:
    """The errors of time on 4 GPUs: from runs on 1 and 2 GPUs, and from the model.

    The model is given the measured time on one GPU, or nothing. Both predict the same runs.
    """
    constants, fitted = shipped_overlap(), without(steps, gpu_of)
    counts: dict[object, set[int]] = defaultdict(set)
    for step in steps:
        counts[_runs_alike(step)].add(step.row.strategy.gpus)
    errors: dict[str, list[list[float]]] = defaultdict(lambda: [[], []])
    for step in steps:
        if step.row.strategy.gpus == 4 and counts[_runs_alike(step)] == {2, 4}:
            scaled = step.row.efficiency / step.efficiency(fitted[gpu_of(step)])
            errors[NAMES[step.row.task]][0].append(abs(scaled - 1))
            blind = step.seconds(constants) / step.row.seconds
            errors[NAMES[step.row.task]][1].append(abs(blind - 1))
    regressed: dict[str, list[float]] = defaultdict(list)
    for task, error in more_gpus(data):
        regressed[NAMES[task]].append(abs(error))
    names = (
        "model | runs on 4 GPUs | regression, from 1 and 2 GPUs | model, from 1 GPU | model alone"
    )
    lines = [*heading(names)]
    for name in (*sorted(regressed), ALL):
        some = [name] if name != ALL else sorted(regressed)
        past = [e for network in some for e in regressed[network]]
        from_one, from_none = (
            [e for network in some for e in errors[network][kind]] for kind in (0, 1)
        )
        assert len(past) == len(from_one)
        lines.append(
            f"| {name} | {len(past)} | {fmean(past):.1%} | {fmean(from_one):.1%} "
            f"| {fmean(from_none):.1%} |"
        )
    return "\n".join(lines)


def _runs_alike(step: ScaledStep) -> tuple[object, ...]:
    row = step.row
    return (row.case.gpu, row.link, row.task, row.precision, row.case.batch)


TABLES = {"scaling": table, "bridges": bridges, "slowdown": slowdowns}
ON_THE_PAGE = ("scaling", "more GPUs")
"""The tables that the page has; the others are printed only."""


def tables(data: Path, cache: Path | None) -> Iterator[ScoreTable]:
    """All tables, and the pages of some."""
    steps = steps_of(lambda_rows(data), cache)
    texts = {name: make(steps) for name, make in TABLES.items()}
    texts["more GPUs"] = beside_the_regression(steps, data)
    for name, text in texts.items():
        page = PAGE if name in ON_THE_PAGE else None
        yield ScoreTable(text, page, f"{MARK} '{name}'", title=name)
