"""Fit the learned op models, and score them on GPUs left out of the fit.

    python -m lab fit learned --data FOLDER            fit, and write the model and its card
    python -m lab fit learned --data FOLDER --score    print the table, write nothing
    python -m lab fit learned --data FOLDER --quick    fit only, and keep the old ranges
    python -m lab fit learned --data FOLDER --only stream   fit this model; the others stay

Needs pandas, the public tables neusight, kernels and deepbench (docs/sources.md), and our own
measurements. Writes src/wavecast/data/models/learned.npz and learned.toml.

For the scores, every GPU is predicted by models that were fitted without it. Some kinds of op were
measured on one GPU only. No model can be fitted without that GPU, so the table marks them "kind
unseen", and the card gives the errors of the full fit, with a wider range.
"""

from __future__ import annotations

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
from lab.fit.op_fit import fit, further_trees
from lab.fit.op_table import OpTable, tables
from lab.measured.op_data import OF_A_CHIP, all_rows, rows_of_a_chip
from lab.measured.op_makers import OpRow, digest
from lab.places import MODELS
from wavecast import ops
from wavecast.hardware.devices import device
from wavecast.ops import Kind
from wavecast.predictors.attainable import Attainable, Roofline
from wavecast.predictors.learned.batch import batch_of, group_of, is_masked, parts_of
from wavecast.predictors.learned.gpus import Floats, chip_name, gpu_of
from wavecast.predictors.learned.model import PHYSICS, OpModel
from wavecast.predictors.learned.predictor import Learned, restored, stored
from wavecast.traces.step import Op

VENDOR = "NVIDIA"
"""The vendor of the GPUs whose ops are fitted."""
FITTED = ("stream", "product", "convolution", "depthwise", "attention", "recurrent")
"""Models fitted here. A model whose parts occur in ops of another is fitted before it. Grouped
products have a separate fit (`lab.fit.grouped`)."""
CONCATENATION = "concatenation"
"""The model of `cat` has a separate fit as well (`lab.fit.concatenation`), on our GPU alone, which
every fit here shares."""
LEAST_ROWS = 20
"""GPUs with fewer rows of a model are not scored."""
RANGE = (0.05, 0.95)
"""The quantiles of measured over predicted time that make a range."""
WIDEST = (0.2, 5.0)
"""The limits of any range. A few very short ops are off by more, but no step depends on them."""
ONE_GPU_SPREAD = 1.35
"""The factor by which a range is widened if all measurements are from one GPU. It is the spread
between the eight GPUs with measured elementwise ops."""


@dataclass(frozen=True, eq=False)
class ScoredOps:
    """Measured ops, and their times as predicted by models that were fitted without their GPU."""

    rows: Sequence[OpRow]
    said_s: Floats
    """Predictions by models that never saw the GPU."""
    fitted_s: Floats
    """Predictions by the models that have seen all GPUs."""


@functools.lru_cache(maxsize=1)
def rows_of(data: Path) -> Sequence[OpRow]:
    """All ops that are fitted. AMD's are left out: they are few, and the libraries differ.

    So is attention with few queries, which counts as a pass over memory: what was measured of it is
    mostly the launch of its kernels, and would be taken for that of an elementwise op.
    """
    rows = [row for row in all_rows(data) if device(row.gpu).vendor == VENDOR]
    return [row for row in rows if not is_short(row.ops[0])]


def is_short(op: Op) -> bool:
    """Whether an op is attention with so few queries that it counts as a pass over memory."""
    return ops.kind(op) is Kind.ATTENTION and any(p.model == "stream" for p in parts_of(op))


def fit_all(
    measured: Mapping[str, OpTable], *, chips: bool = True, only: Sequence[str] = FITTED
) -> dict[str, OpModel]:
    """A model for each name in `FITTED`. One without measurements keeps its physical guesses.

    Those that are not in `only` are the shipped ones.
    """
    models: dict[str, OpModel] = {}
    for name in FITTED:
        if name not in only:
            models[name] = Learned.shipped().models[name]
        elif name in measured:
            models[name] = fit(name, measured[name], models, chips=chips)
        else:
            models[name] = OpModel(
                name, {parameter: start for parameter, (start, *_) in PHYSICS[name][1].items()}
            )
    return models


def left_out(
    measured: Mapping[str, OpTable], full: Mapping[str, OpModel], names: Sequence[str] = FITTED
) -> dict[str, ScoredOps]:
    """The rows of each model, predicted by models that were fitted without the GPU's chip."""
    scores = {}
    for name in names:
        table = measured[name]
        predicted_s = np.full(len(table), np.nan)
        gpus, counts = np.unique(table.gpu, return_counts=True)
        for gpu, count in zip(gpus, counts, strict=True):
            out = table.gpu == gpu
            same = np.isin(table.gpu, [other for other in gpus if chip_of(other) == chip_of(gpu)])
            if count < LEAST_ROWS:
                continue
            if same.all():
                predicted_s[out] = table.where(out).predicted(full)
                continue
            others = {key: full[key] for key in full if key != name}
            model = fit(name, table.where(~same), others, chips=False)
            predicted_s[out] = table.where(out).predicted(others | {name: model})
        scored = ~np.isnan(predicted_s)
        rows = [row for row, is_scored in zip(table.rows, scored, strict=True) if is_scored]
        scores[name] = ScoredOps(rows, predicted_s[scored], table.predicted(full)[scored])
        print(f"{name}: {len(gpus)} GPUs, {len(rows)} rows", flush=True)
    return scores


@functools.cache
def chip_of(gpu: str) -> tuple[str, int | None]:
    """The chip of a GPU: the same for GPUs that differ in memory or cooling only."""
    gpu_device = device(gpu)
    return gpu_device.architecture, gpu_device.sm_count


def fitted_without(gpu: str, data: Path, cache: Path) -> Learned:
    """The models fitted on the ops of all GPUs except those with this GPU's chip.

    They have neither trees of single chips nor constants of generations (`lab.fit.generations`).

    Args:
        gpu: the GPU to leave out; "" leaves none out.
        data: the folder of public tables.
        cache: a folder that keeps fitted models.
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
    """The models fitted on these rows, read from the file if it exists and else written to it."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = stored(fit_all(tables(rows), chips=chips))
        np.savez_compressed(path, **arrays)
    with np.load(path) as kept:
        models = restored(dict(kept), FITTED)
    models[CONCATENATION] = Learned.shipped().models[CONCATENATION]
    gpus = tuple(map(device, sorted({row.gpu for row in rows})))
    return replace(Learned.shipped(), models=models, fitted_on=gpus)


# Errors and ranges.


@dataclass(frozen=True)
class Errors:
    """The errors of a group of rows; every GPU has the same weight."""

    rows: int
    gpus: int
    mean: float
    median: float
    of_time: float
    """The sum of all errors over the sum of all times."""


def errors(predicted_s: Floats, seconds: Floats, gpu: np.ndarray) -> Errors:
    """The errors of one predictor: predicted and measured seconds, and the GPU of each row."""
    off = np.abs(predicted_s / seconds - 1)
    of_gpus = [gpu == name for name in np.unique(gpu)]
    return Errors(
        len(predicted_s),
        len(of_gpus),
        float(np.mean([off[here].mean() for here in of_gpus])),
        float(np.mean([np.median(off[here]) for here in of_gpus])),
        float(
            np.mean(
                [
                    np.abs(predicted_s - seconds)[here].sum() / seconds[here].sum()
                    for here in of_gpus
                ]
            )
        ),
    )


def grouped(scores: Mapping[str, ScoredOps]) -> dict[str, ScoredOps]:
    """All rows by group (`group_of`); a group shares one range on the card."""
    groups: dict[str, tuple[list[OpRow], list[float], list[float]]] = {}
    for scored in scores.values():
        batch = batch_of([row.ops[0] for row in scored.rows], {})
        for position, row in enumerate(scored.rows):
            gpu = gpu_of(device(row.gpu))
            assert gpu is not None
            name = group_of(batch.main[position], int(batch.unit[position]), gpu)
            rows, predicted_s, fitted_s = groups.setdefault(name, ([], [], []))
            rows.append(row)
            predicted_s.append(float(scored.said_s[position]))
            fitted_s.append(float(scored.fitted_s[position]))
    return {
        name: ScoredOps(rows, np.array(predicted_s), np.array(fitted_s))
        for name, (rows, predicted_s, fitted_s) in sorted(groups.items())
    }


def spread(rows: Sequence[OpRow], predicted_s: Floats) -> tuple[float, float]:
    """The range of measured over predicted time; every GPU has the same weight."""
    ratio = np.array([row.seconds for row in rows]) / predicted_s
    gpu = np.array([row.gpu for row in rows])
    weight = np.zeros(len(rows))
    for name in np.unique(gpu):
        weight[gpu == name] = 1.0 / (gpu == name).sum()
    order = np.argsort(ratio)
    below = np.cumsum(weight[order]) / weight.sum()
    low, high = (float(ratio[order][np.searchsorted(below, share)]) for share in RANGE)
    return min(low, 1.0), max(high, 1.0)


def covered(rows: Sequence[OpRow], predicted_s: Floats) -> float:
    """The share of a GPU's ops within the range of the other GPUs' ops, averaged over GPUs."""
    gpu = np.array([row.gpu for row in rows])
    ratio = np.array([row.seconds for row in rows]) / predicted_s
    shares = []
    for name in np.unique(gpu):
        others = gpu != name
        low, high = spread([row for row in rows if row.gpu != name], predicted_s[others])
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
        "attainable mean med. time   learned (GPU left out) mean med. time, "
        "in the other GPUs' range, per GPU mean"
    ]
    for name, scored in grouped(scores).items():
        rows, predicted_s = scored.rows, scored.said_s
        seconds = np.array([row.seconds for row in rows])
        gpu = np.array([row.gpu for row in rows])
        text = f"{name:20} {len(rows):6d} {len(np.unique(gpu)):4d}"
        for of_one in (said_by(Roofline(), rows), said_by(Attainable.shipped(), rows), predicted_s):
            off = errors(of_one, seconds, gpu)
            text += f"   {off.mean:7.1%} {off.median:6.1%} {off.of_time:6.1%}"
        per_gpu = ", ".join(
            f"{gpu_id} {np.abs(predicted_s / seconds - 1)[gpu == gpu_id].mean():.0%}"
            for gpu_id in np.unique(gpu)
        )
        if len(np.unique(gpu)) == 1:
            lines.append(f"{text}   kind unseen")
        else:
            lines.append(f"{text}   {covered(rows, predicted_s):.0%}   {per_gpu}")
    return "\n".join(lines)


def card(rows: Sequence[OpRow], models: Mapping[str, OpModel], groups: Sequence[str]) -> str:
    """The content of the card: data, ranges and errors of a fit."""
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
    """Measured rates of the devices that were calibrated."""
    for gpu_device in (device(gpu) for gpu in gpus):
        rates = {
            name: f.value for name, f in gpu_device.measured.items() if name.endswith("_flops")
        }
        if rates:
            yield f'[references."{chip_name(gpu_device)}"]'
            yield from (f"{name} = {value:.5g}" for name, value in rates.items())


def group_lines(scores: Mapping[str, ScoredOps]) -> list[str]:
    """The lines of the card that give each group's range and errors."""
    lines = []
    for name, scored in grouped(scores).items():
        rows = scored.rows
        one_gpu = len({row.gpu for row in rows}) == 1
        predicted_s = scored.fitted_s if one_gpu else scored.said_s
        low, high = spread(rows, predicted_s)
        if one_gpu:
            low, high = low / ONE_GPU_SPREAD, high * ONE_GPU_SPREAD
        low, high = max(low, WIDEST[0]), min(high, WIDEST[1])
        off = errors(
            predicted_s, np.array([r.seconds for r in rows]), np.array([r.gpu for r in rows])
        )
        lines.append(
            f'"{name}" = {{ low = {low:.3f}, high = {high:.3f}, mean = {off.mean:.3f}, median = '
            f"{off.median:.3f}, ops = {off.rows}, gpus = {off.gpus}, "
            f"left_out = {'false' if one_gpu else 'true'} }}"
        )
    return [*lines, f'"other" = {{ low = {WIDEST[0]}, high = {WIDEST[1]} }}']


def main(given: Sequence[str] = ()) -> None:
    """Fit, score with GPUs left out, and write the model and its card."""
    parser = needs.parser(__doc__)
    needs.add_data(parser, *needs.SINGLE_OPS)
    parser.add_argument("--score", action="store_true", help="print the table, write nothing")
    parser.add_argument("--quick", action="store_true", help="leave no GPU out")
    parser.add_argument("--only", nargs="+", choices=FITTED, default=FITTED, help="fit these alone")
    args = parser.parse_args(given)
    rows = rows_of(args.data)
    measured = tables(rows)
    models = fit_all(measured, only=args.only)
    lines = old_lines()
    if not args.quick:
        scores = left_out(measured, models, args.only)
        print(table_of(scores))
        lines = (
            group_lines(scores) if len(args.only) == len(FITTED) else renewed(group_lines(scores))
        )
    if not args.score:
        models, seen = with_later_rows(models, rows, args.only)
        arrays: dict[str, Any] = stored(models)
        np.savez_compressed(MODELS / "learned.npz", **arrays)
        (MODELS / "learned.toml").write_text(card(seen, models, lines))
        print(f"{(MODELS / 'learned.npz').stat().st_size / 1e6:.2f} MB")


# The lines of the card of the learned op models that give the errors and ranges of each group.


def old_lines() -> list[str]:
    """The lines of the groups on the card that ships today."""
    path = MODELS / "learned.toml"
    if not path.exists():
        return ['"other" = { low = 0.5, high = 2.0 }']
    assert tomllib.loads(path.read_text())["groups"]
    groups = path.read_text().partition("[groups]\n")[2].partition("\n\n")[0]
    return groups.strip().split("\n")


def renewed(lines: Sequence[str]) -> list[str]:
    """The lines of the groups on the card that ships today, with these in place of theirs."""
    by_group = {line.partition(" = ")[0]: line for line in (*old_lines(), *lines)}
    last = by_group.pop('"other"')
    return [*(by_group[group] for group in sorted(by_group)), last]


# Rows of later campaigns of one chip: which of them help, and its trees grown further on them.


FURTHER = ("stream", "product", "depthwise")
"""Models whose trees of our chip are grown further on the campaign `newer`."""
SHARES = {"sounds": 0.3, "odd": 0.3}
"""The weight of a campaign's rows, relative to all rows before; 1 for others. With equal weight,
convolutions of the 84 blind steps were predicted worse."""


def with_rows_of_a_chip(
    models: Mapping[str, OpModel],
    rows: Sequence[OpRow],
    more: Sequence[OpRow],
    share: float = 1.0,
    only: Sequence[str] | None = None,
) -> dict[str, OpModel]:
    """The models with the trees of chips grown further on more rows; all else stays as it is.

    `rows` are those that the models were fitted on; `share` is what the others weigh beside them.
    Models that are not in `only` stay as they are; None stands for all.
    """
    gpus, added = {row.gpu for row in more}, set(map(id, more))
    both = tables([*(row for row in rows if row.gpu in gpus), *more])
    grown, names = dict(models), list(models)
    for name in set(tables(more)) & set(names if only is None else only):
        new = np.array([id(row) in added for row in both[name].rows])
        others = {key: models[key] for key in names[: names.index(name)]}
        chips = further_trees(both[name], new, models[name], others, share)
        grown[name] = replace(models[name], chips=chips)
    return grown


def with_later_rows(
    models: Mapping[str, OpModel], rows: Sequence[OpRow], only: Sequence[str]
) -> tuple[dict[str, OpModel], Sequence[OpRow]]:
    """The models with our chip's trees grown on its later campaigns, and all rows that they saw.

    Models that are not in `only` stay as they are.
    """
    grown, seen = restored(stored(models), list(models)), list(rows)
    for campaign in OF_A_CHIP:
        more = telling_rows(campaign, rows_of_a_chip(campaign))
        grown = with_rows_of_a_chip(grown, seen, more, SHARES.get(campaign, 1.0), only)
        seen += more
    return grown, seen


def telling_rows(campaign: str, more: Sequence[OpRow]) -> Sequence[OpRow]:
    """The rows of a campaign that help to predict others.

    Of `newer`, recurrent layers and convolutions made the other half worse. Of `sounds` and `odd`,
    passes over memory, plain and depthwise convolutions did so with the blind steps; matmuls gained
    nothing. Trees for convolutions in groups made those that were left out of `filters` worse.
    """
    if campaign == "channels-last":
        return more
    return [
        row
        for name, table in tables(more).items()
        for row in table.rows
        if _tells(campaign, name, row.ops[0])
    ]


def _tells(campaign: str, model: str, op: Op) -> bool:
    if model == "convolution":
        return False
    if campaign == "filters":
        return model in ("depthwise", "attention")
    if campaign == "newer":
        return model in FURTHER
    return model == "attention" and is_masked(op)
