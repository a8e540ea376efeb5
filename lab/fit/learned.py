"""Fit the learned op models, and score them on GPUs left out of the fit.

    python -m lab.fit.learned --data FOLDER            fit, and write the model and its card
    python -m lab.fit.learned --data FOLDER --score    print the table, write nothing
    python -m lab.fit.learned --data FOLDER --quick    fit only, and keep the old ranges

Needs pandas, the public tables neusight, kernels and deepbench (docs/sources.md), and our own
measurements. Writes src/wavecast/data/models/learned.npz and learned.toml.

Every GPU is predicted by models that never saw it. A kind of op that was measured on one GPU only
is then unknown to the models: the table says so, and the card has the errors of the fit instead,
with a wider range.
"""

from __future__ import annotations

import argparse
import functools
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from lab import needs
from lab.fit.op_fit import fit
from lab.fit.op_table import OpTable, tables
from lab.measured.op_data import all_rows
from lab.measured.op_row import OpRow, digest
from lab.places import MODELS
from wavecast.hardware.devices import device
from wavecast.predictors.attainable import Attainable
from wavecast.predictors.learned.batch import batch_of, group_of
from wavecast.predictors.learned.file import restored, stored
from wavecast.predictors.learned.gpus import Floats, chip_name, gpu_of
from wavecast.predictors.learned.model import PHYSICS, OpModel
from wavecast.predictors.learned.predictor import Learned
from wavecast.predictors.roofline import Roofline
from wavecast.steps.ranges import VENDOR

FITTED = ("stream", "product", "convolution", "depthwise", "attention", "recurrent")
"""Models fitted here, those first whose parts others have; grouped products have their own fit."""
LEAST_ROWS = 20
"""GPUs with fewer rows of a model are not left out by themselves."""
RANGE = (0.05, 0.95)
WIDEST = (0.2, 5.0)
"""The widest range. A few ops of microseconds are off by more, but no step depends on them."""
ONE_GPU_SPREAD = 1.35
"""The factor by which a range grows if all measurements are of one GPU: the spread between the
eight GPUs that have elementwise ops."""


@dataclass(frozen=True, eq=False)
class ScoredOps:
    """Rows, and their predictions by models that never saw their GPU."""

    rows: Sequence[OpRow]
    said_s: Floats
    fitted_s: Floats
    """Predictions by the models that have seen all GPUs."""


@functools.lru_cache(maxsize=1)
def rows_of(data: Path) -> Sequence[OpRow]:
    """All ops that are fitted. AMD's are left out: they are few, and its libraries differ."""
    return [row for row in all_rows(data) if device(row.gpu).vendor == VENDOR]


def fit_all(found: Mapping[str, OpTable], *, chips: bool = True) -> dict[str, OpModel]:
    """A model for each kind of part. A kind without measurements keeps its physical guesses."""
    models: dict[str, OpModel] = {}
    for name in FITTED:
        if name in found:
            models[name] = fit(name, found[name], models, chips=chips)
        else:
            models[name] = OpModel(
                name, {each: start for each, (start, *_) in PHYSICS[name][1].items()}
            )
    return models


def left_out(found: Mapping[str, OpTable], full: Mapping[str, OpModel]) -> dict[str, ScoredOps]:
    """Predictions for each GPU by models that never saw its chip."""
    scores = {}
    for name in FITTED:
        table = found[name]
        said = np.full(len(table), np.nan)
        gpus, counts = np.unique(table.gpu, return_counts=True)
        for gpu, count in zip(gpus, counts, strict=True):
            out = table.gpu == gpu
            same = np.isin(table.gpu, [each for each in gpus if chip_of(each) == chip_of(gpu)])
            if count < LEAST_ROWS:
                continue
            if same.all():
                said[out] = table.where(out).predicted(full)
                continue
            others = {key: full[key] for key in full if key != name}
            model = fit(name, table.where(~same), others, chips=False)
            said[out] = table.where(out).predicted(others | {name: model})
        known = ~np.isnan(said)
        rows = [row for row, is_known in zip(table.rows, known, strict=True) if is_known]
        scores[name] = ScoredOps(rows, said[known], table.predicted(full)[known])
        print(f"{name}: {len(gpus)} GPUs, {len(rows)} rows", flush=True)
    return scores


def chip_of(gpu: str) -> tuple[str, int | None]:
    """The chip of a GPU: the same for GPUs that differ in memory or cooling only."""
    found = device(gpu)
    return found.architecture, found.sm_count


def fitted_without(gpu: str, data: Path, cache: Path) -> Learned:
    """The models fitted on the ops of all GPUs but those of this one's chip; kept in a folder.

    Neither chips have trees of their own in it, nor generations what whole steps say of them.
    """
    chip = chip_of(gpu) if gpu else None
    return _fitted_without(chip if chip in _chips(data) else None, data, cache)


@functools.cache
def _chips(data: Path) -> set[tuple[str, int | None]]:
    return {chip_of(gpu) for gpu in {row.gpu for row in rows_of(data)}}


@functools.cache
def _fitted_without(chip: tuple[str, int | None] | None, data: Path, cache: Path) -> Learned:
    rows = rows_of(data)
    others = [row for row in rows if chip_of(row.gpu) != chip]
    name = f"learned-without-{'-'.join(map(str, chip or ['none']))}-{digest(rows)[:12]}.npz"
    return kept_fit(cache / name, others, chips=False)


def kept_fit(path: Path, rows: Sequence[OpRow], *, chips: bool = True) -> Learned:
    """The models fitted on these rows: read from the file, which is made when missing."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = stored(fit_all(tables(rows), chips=chips))
        np.savez_compressed(path, **arrays)
    with np.load(path) as kept:
        models = restored(dict(kept), FITTED)
    return replace(Learned.shipped(), models=models, _batches={}, _gpus={})


# What it comes to.


@dataclass(frozen=True)
class Errors:
    """The errors of a group of rows, every GPU counting the same."""

    rows: int
    gpus: int
    mean: float
    median: float
    of_time: float
    """The sum of all errors over the sum of all times."""


def errors(said: Floats, seconds: Floats, gpu: np.ndarray) -> Errors:
    """The errors of one predictor."""
    off = np.abs(said / seconds - 1)
    of_gpus = [gpu == each for each in np.unique(gpu)]
    return Errors(
        len(said),
        len(of_gpus),
        float(np.mean([off[here].mean() for here in of_gpus])),
        float(np.mean([np.median(off[here]) for here in of_gpus])),
        float(
            np.mean([np.abs(said - seconds)[here].sum() / seconds[here].sum() for here in of_gpus])
        ),
    )


def grouped(scores: Mapping[str, ScoredOps]) -> dict[str, ScoredOps]:
    """All rows by the group whose errors count together."""
    found: dict[str, tuple[list[OpRow], list[float], list[float]]] = {}
    for scored in scores.values():
        batch = batch_of([row.ops[0] for row in scored.rows], {})
        for position, row in enumerate(scored.rows):
            gpu = gpu_of(device(row.gpu))
            assert gpu is not None
            name = group_of(batch.main[position], int(batch.unit[position]), gpu)
            rows, said, fitted = found.setdefault(name, ([], [], []))
            rows.append(row)
            said.append(float(scored.said_s[position]))
            fitted.append(float(scored.fitted_s[position]))
    return {
        name: ScoredOps(rows, np.array(said), np.array(fitted))
        for name, (rows, said, fitted) in sorted(found.items())
    }


def spread(rows: Sequence[OpRow], said: Floats) -> tuple[float, float]:
    """The range of measured over predicted, every GPU counting the same."""
    ratio = np.array([row.seconds for row in rows]) / said
    gpu = np.array([row.gpu for row in rows])
    weight = np.zeros(len(rows))
    for each in np.unique(gpu):
        weight[gpu == each] = 1.0 / (gpu == each).sum()
    order = np.argsort(ratio)
    below = np.cumsum(weight[order]) / weight.sum()
    low, high = (float(ratio[order][np.searchsorted(below, share)]) for share in RANGE)
    return min(low, 1.0), max(high, 1.0)


def covered(rows: Sequence[OpRow], said: Floats) -> float:
    """The share of a GPU's ops in the range that the other GPUs' ops make, on average."""
    gpu = np.array([row.gpu for row in rows])
    ratio = np.array([row.seconds for row in rows]) / said
    shares = []
    for each in np.unique(gpu):
        others = gpu != each
        low, high = spread([row for row in rows if row.gpu != each], said[others])
        shares.append(np.mean((low <= ratio[~others]) & (ratio[~others] <= high)))
    return float(np.mean(shares))


def said_by(predictor: Roofline | Attainable, rows: Sequence[OpRow]) -> Floats:
    """The seconds that another predictor gives for each row, summed over its ops."""
    return np.array(
        [
            sum(
                answer.seconds
                for answer in (predictor.predict(op, device(row.gpu)) for op in row.ops)
                if answer
            )
            for row in rows
        ]
    )


def table_of(scores: Mapping[str, ScoredOps]) -> str:
    """Errors of the roofline, of attainable shares and of the learned models, by group."""
    lines = [
        f"{'group':20} {'rows':>6} {'GPUs':>4}   roofline mean med. time   "
        "attainable mean med. time   learned mean med. time (left out), in the other GPUs' range, "
        "per GPU mean"
    ]
    for name, scored in grouped(scores).items():
        rows, said = scored.rows, scored.said_s
        seconds = np.array([row.seconds for row in rows])
        gpu = np.array([row.gpu for row in rows])
        text = f"{name:20} {len(rows):6d} {len(np.unique(gpu)):4d}"
        for of_one in (said_by(Roofline(), rows), said_by(Attainable.shipped(), rows), said):
            found = errors(of_one, seconds, gpu)
            text += f"   {found.mean:7.1%} {found.median:6.1%} {found.of_time:6.1%}"
        per_gpu = ", ".join(
            f"{each} {np.abs(said / seconds - 1)[gpu == each].mean():.0%}"
            for each in np.unique(gpu)
        )
        if len(np.unique(gpu)) == 1:
            lines.append(f"{text}   kind unseen")
        else:
            lines.append(f"{text}   {covered(rows, said):.0%}   {per_gpu}")
    return "\n".join(lines)


def card(rows: Sequence[OpRow], models: Mapping[str, OpModel], groups: Sequence[str]) -> str:
    """The card of a fit."""
    gpus = sorted({row.gpu for row in rows})
    return "\n".join(
        [
            "# The op models: physics and learned efficiencies. Written by lab/fit/learned.py.",
            f'fitted = "{datetime.now(UTC).date()}"',
            'data = "single ops by NeuSight, aiconfigurator, vidur and DeepBench; steps and layers '
            'measured on our H200 (lab/measured/op_data.py says what is left out)"',
            f"rows = {len(rows)}",
            f'rows_sha256 = "{digest(rows)}"',
            f"gpus = {json.dumps(gpus)}",
            f"models = {json.dumps(list(models))}",
            "# low, high: the range of nine in ten ratios of measured to predicted time, on GPUs",
            "# left out of the fit. mean, median: relative errors there, each GPU counting once.",
            "# Where left_out is false, only one GPU was measured: the errors are those of the",
            "# fit, and the range is widened.",
            "",
            "[groups]",
            *groups,
            "",
            "# Rates in FLOP/s that `wavecast calibrate` measured on GPUs of this fit, by chip.",
            *_references(gpus),
            "",
        ]
    )


def _references(gpus: Sequence[str]) -> Iterator[str]:
    """Rates in the files of devices whose ops we measured ourselves."""
    for found in (device(gpu) for gpu in gpus):
        rates = {name: f.value for name, f in found.measured.items() if name.endswith("_flops")}
        if rates:
            yield f'[references."{chip_name(found)}"]'
            yield from (f"{name} = {value:.5g}" for name, value in rates.items())


def group_lines(scores: Mapping[str, ScoredOps]) -> list[str]:
    """A line of the card for each group."""
    lines = []
    for name, scored in grouped(scores).items():
        rows = scored.rows
        alone = len({row.gpu for row in rows}) == 1
        said = scored.fitted_s if alone else scored.said_s
        low, high = spread(rows, said)
        if alone:
            low, high = low / ONE_GPU_SPREAD, high * ONE_GPU_SPREAD
        low, high = max(low, WIDEST[0]), min(high, WIDEST[1])
        found = errors(said, np.array([r.seconds for r in rows]), np.array([r.gpu for r in rows]))
        lines.append(
            f'"{name}" = {{ low = {low:.3f}, high = {high:.3f}, mean = {found.mean:.3f}, median = '
            f"{found.median:.3f}, ops = {found.rows}, gpus = {found.gpus}, "
            f"left_out = {'false' if alone else 'true'} }}"
        )
    return [*lines, f'"other" = {{ low = {WIDEST[0]}, high = {WIDEST[1]} }}']


def old_lines() -> list[str]:
    """The lines of the groups on the card that ships now."""
    path = MODELS / "learned.toml"
    if not path.exists():
        return ['"other" = { low = 0.5, high = 2.0 }']
    assert tomllib.loads(path.read_text())["groups"]
    groups = path.read_text().partition("[groups]\n")[2].partition("\n\n")[0]
    return groups.strip().split("\n")


def main(given: Sequence[str] | None = None) -> None:
    """Fit, score with GPUs left out, and write the model and its card."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    needs.add_data(parser, *needs.SINGLE_OPS)
    parser.add_argument("--score", action="store_true", help="print the table, write nothing")
    parser.add_argument("--quick", action="store_true", help="leave no GPU out")
    args = parser.parse_args(given)
    rows = rows_of(args.data)
    found = tables(rows)
    models = fit_all(found)
    lines = old_lines()
    if not args.quick:
        scores = left_out(found, models)
        print(table_of(scores))
        lines = group_lines(scores)
    if not args.score:
        arrays: dict[str, Any] = stored(models)
        np.savez_compressed(MODELS / "learned.npz", **arrays)
        (MODELS / "learned.toml").write_text(card(rows, models, lines))
        print(f"{(MODELS / 'learned.npz').stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
