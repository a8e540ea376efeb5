"""Fit the time of fused kernels (torch.compile), measured on our H200.

    python -m lab fit fused

Needs only measurements/h200/compiled. Writes
src/wavecast/data/models/fused.toml (constants, ranges, errors) and fused.npz (trees).

The constants of the physics (`wavecast.predictors.learned.fusions`) are fitted by robust
least squares, then small trees on the factor that remains. Errors and ranges are computed with each
family of steps left out of the fit in turn; kernels of small functions are in every fit. Ranges are
widened, because all measurements are from one GPU.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from lab import needs
from lab.fit.boosting import grow
from lab.fit.learned import ONE_GPU_SPREAD, RANGE
from lab.fit.op_fit import constants
from lab.measured.compiled import GPU, SMALL, FusedKernel, kernels
from lab.places import MODELS
from wavecast.hardware.devices import device
from wavecast.predictors.learned.batch import parts_of
from wavecast.predictors.learned.columns import Columns, columns_of
from wavecast.predictors.learned.fusions import FUSED_PARAMETERS, fused_s
from wavecast.predictors.learned.gpus import Floats, GpuFacts
from wavecast.predictors.learned.model import FEATURES, REACH, OpModel
from wavecast.predictors.learned.predictor import Learned, stored
from wavecast.predictors.learned.tiles import Theta
from wavecast.traces.step import Op

PRIOR = 2.0
"""How strongly a constant is pulled to its physical guess."""
SAMPLE = 3000
"""The most kernels for the fit of the constants."""
TREES: Mapping[str, Any] = {"trees": 300, "depth": 5, "rate": 0.08, "least": 8.0}
SHORT_S = 3e-6
"""Kernels shorter than this weigh less: the profiler's clock counts in steps of 32 ns or more."""
MOST = 4.0
"""The largest weight of a kernel relative to the median one; the smallest is 1 / MOST."""


def our_gpu() -> GpuFacts:
    """The GPU that was measured, as predictions see it."""
    facts = Learned.shipped().gpu(device(GPU))
    assert facts is not None
    return facts


def columns(rows: Sequence[FusedKernel]) -> Columns:
    """The columns of the kernels."""
    return columns_of([parts_of(row.op)[0].row for row in rows])


def weights(rows: Sequence[FusedKernel]) -> Floats:
    """Long kernels and those that run often weigh more, by the square root of their time."""
    seconds = np.array([row.seconds * row.runs for row in rows])
    weight: Floats = np.clip(np.sqrt(seconds / np.median(seconds)), 1 / MOST, MOST)
    weight *= np.minimum(np.array([row.seconds for row in rows]) / SHORT_S, 1.0)
    scaled: Floats = weight / weight.mean()
    return scaled


def fit(rows: Sequence[FusedKernel], name: str = "fused") -> OpModel:
    """The model of fused kernels, Inductor's or XLA's: constants, then trees."""
    gpu, weight = our_gpu(), weights(rows)
    seconds = np.array([row.seconds for row in rows])
    table = columns(rows)
    drawn = np.arange(len(rows))
    if len(rows) > SAMPLE:
        generator = np.random.default_rng(0)
        drawn = generator.choice(len(rows), SAMPLE, replace=False, p=weight / weight.sum())
    part = {name: values[drawn] for name, values in table.items()}
    root = np.sqrt(weight[drawn]) if len(drawn) == len(rows) else np.ones(len(drawn))

    def missed(theta: Theta) -> Floats:
        errors: Floats = root * np.log(fused_s(part, gpu, theta) / seconds[drawn])
        return errors

    theta = constants(FUSED_PARAMETERS, missed, PRIOR)
    left = np.clip(np.log(seconds / fused_s(table, gpu, theta)), -REACH, REACH)
    forest = grow(FEATURES[name](table, gpu), left, weight, **TREES)
    return OpModel(name, theta, forest)


def said(rows: Sequence[FusedKernel], model: OpModel) -> Floats:
    """The predicted seconds of each kernel on our GPU."""
    return model.seconds(columns(rows), our_gpu())


def left_out(rows: Sequence[FusedKernel], name: str = "fused") -> Floats:
    """The predicted seconds of each kernel, by a fit without the steps of its family.

    The kernels of small functions are divided into five parts, and each is left out in turn.
    """
    groups = np.array([_group(row) for row in rows])
    predicted_s = np.zeros(len(rows))
    for group in np.unique(groups):
        out = groups == group
        model = fit([row for row, left in zip(rows, out, strict=True) if not left], name)
        predicted_s[out] = said([row for row, left in zip(rows, out, strict=True) if left], model)
    return predicted_s


def _group(row: FusedKernel) -> str:
    if row.family != SMALL:
        return row.family
    return f"{SMALL} {int(row.source.split()[-1]) % 5}"


def _values(op: Op) -> tuple[Any, ...]:
    tensors = [(t.shape, t.dtype, t.strides, t.device) for t in (*op.inputs, *op.outputs)]
    return op.name, len(op.inputs), tensors, op.attrs


def digest(rows: Sequence[FusedKernel]) -> str:
    """A hash of everything that the fit sees."""
    seen = (repr((*_values(row.op), float(f"{row.seconds:.6g}"))) for row in rows)
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()


def card(rows: Sequence[FusedKernel], others_s: Floats, name: str, head: Sequence[str]) -> str:
    """The content of the file of a model of fused kernels, with the lines that it begins with."""
    seconds = np.array([row.seconds for row in rows])
    total_s = np.array([row.seconds * row.runs for row in rows])
    ratios = others_s / seconds
    of_steps = np.array([row.family != SMALL for row in rows])
    off = np.abs(ratios - 1)[of_steps]
    low, high = np.quantile(1 / ratios[of_steps], RANGE)
    by_time = (off * total_s[of_steps]).sum() / total_s[of_steps].sum()
    lines = [
        *head,
        f"rows = {len(rows)}",
        f'rows_sha256 = "{digest(rows)}"',
        f'gpus = ["{GPU}"]',
        "",
        "# mean, median: relative errors of the kernels of steps whose family was left out of the",
        "# fit. by_time: the same, each kernel by its share of the time. low, high: the range of",
        "# nine in ten ratios of measured to predicted time there. Only one GPU was measured, so",
        f"# the range is widened; it was {low:.3f} to {high:.3f}.",
        "[groups]",
        f'"{name}" = {{ low = {low / ONE_GPU_SPREAD:.3f}, high = {high * ONE_GPU_SPREAD:.3f}, '
        f"mean = {off.mean():.3f}, median = {np.median(off):.3f}, by_time = {by_time:.3f}, "
        f"ops = {of_steps.sum()}, gpus = 1, left_out = true }}",
        "",
        "[families]",
    ]
    for family in families_of(rows):
        here = np.array([row.family == family for row in rows])
        ratio = (ratios * total_s)[here].sum() / total_s[here].sum() - 1
        lines.append(f'"{family}" = {{ kernels = {here.sum()}, total = {ratio:.3f} }}')
    return "\n".join(lines) + "\n"


def families_of(rows: Sequence[FusedKernel]) -> list[str]:
    """The families of the steps that the kernels are of."""
    return sorted({row.family for row in rows} - {SMALL})


def _head(rows: Sequence[FusedKernel]) -> list[str]:
    small = sum(row.family == SMALL for row in rows)
    return [
        "# The model of the fused kernels that torch.compile makes.",
        "# Written by lab/fit/fused.py.",
        f'fitted = "{datetime.now(UTC).date()}"',
        f'data = "{len(rows) - small} kernels of compiled steps of {len(families_of(rows))} '
        f"families, and {small} of small functions, on our H200, torch 2.11 "
        '(measurements/h200/compiled)"',
    ]


def main(given: Sequence[str] = ()) -> None:
    """Fit, write the files and print the card."""
    needs.parser(__doc__).parse_args(given)
    rows = [row for row in kernels() if row.family != "host"]
    model = fit(rows)
    others_s = left_out(rows)
    np.savez_compressed(MODELS / "fused.npz", **stored({"fused": model}))  # type: ignore[arg-type]
    path = MODELS / "fused.toml"
    path.write_text(card(rows, others_s, "fused", _head(rows)), encoding="utf-8")
    print(path.read_text(encoding="utf-8"))
