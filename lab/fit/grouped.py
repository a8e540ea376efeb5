"""Fit the time of the kernel for grouped products (mixtures of experts), measured on our H200.

    python -m lab fit grouped

Needs only measurements/h200/grouped.json. Writes
src/wavecast/data/models/grouped.toml.

The constants (`wavecast.predictors.learned.tiles`) are fitted on groups of equal and of
unequal sizes together, because a trace does not contain the sizes; the prediction lies in between.
The errors and the range are computed with each model left out of the fit in turn. The range is
widened, because all measurements are from one GPU. Only products in bfloat16 are fitted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lab import needs
from lab.fit.learned import ONE_GPU_SPREAD, RANGE
from lab.fit.op_fit import constants
from lab.places import H200, MODELS
from wavecast.hardware.devices import device
from wavecast.predictors.learned.batch import batch_of
from wavecast.predictors.learned.gpus import Floats, GpuFacts
from wavecast.predictors.learned.predictor import Learned
from wavecast.predictors.learned.tiles import GROUPED_PARAMETERS, Theta, grouped_s
from wavecast.traces.step import Op, TensorSpec

PRIOR = 2.0
"""How strongly a constant is pulled to its physical guess. Without measurements it stays there."""


def in_one_kernel(rows: Sequence[ExpertRow]) -> list[ExpertRow]:
    """The rows that ran as one grouped kernel."""
    return [row for row in rows if row.op == "aten._grouped_mm" and row.events_s is not None]


def our_gpu() -> GpuFacts:
    """The GPU that was measured, as predictions see it."""
    facts = Learned.shipped().gpu(device(GPU))
    assert facts is not None
    return facts


def said(rows: Sequence[ExpertRow], theta: Theta) -> Floats:
    """The kernel's predicted seconds for each row, with these constants."""
    batch = batch_of([op_of(row) for row in rows], {})
    return grouped_s(batch.parts["grouped"].columns, our_gpu(), theta)


def fit(rows: Sequence[ExpertRow]) -> dict[str, float]:
    """The constants of the kernel, by robust least squares on the logarithm of the time."""
    gpu = our_gpu()
    columns = batch_of([op_of(row) for row in rows], {}).parts["grouped"].columns
    seconds = np.array([measured_s(row) for row in rows])

    def missed(theta: Theta) -> Floats:
        errors: Floats = np.log(grouped_s(columns, gpu, theta) / seconds)
        return errors

    return constants(GROUPED_PARAMETERS, missed, PRIOR)


def left_out(rows: Sequence[ExpertRow]) -> Floats:
    """The predicted seconds of each row, by a fit without the rows of its model."""
    models = np.array([row.model for row in rows])
    predicted_s = np.zeros(len(rows))
    for model in np.unique(models):
        theta = fit([row for row in rows if row.model != model])
        predicted_s[models == model] = said([row for row in rows if row.model == model], theta)
    return predicted_s


def digest(rows: Sequence[ExpertRow]) -> str:
    """A hash of everything that the fit sees."""
    seen = (repr((op_of(row), float(f"{measured_s(row):.6g}"))) for row in rows)
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()


def card(rows: Sequence[ExpertRow], theta: Theta) -> str:
    """The content of the file."""
    seconds = np.array([measured_s(row) for row in rows])
    others_s = left_out(rows)
    off = np.abs(others_s / seconds - 1)
    low, high = np.quantile(seconds / others_s, RANGE)
    models = {row.model for row in rows}
    lines = [
        "# The model of the kernel for grouped products (experts) in bfloat16.",
        "# Written by lab/fit/grouped.py.",
        f'fitted = "{datetime.now(UTC).date()}"',
        f'data = "products of the experts of {len(models)} models on our H200, torch 2.11 '
        '(measurements/h200/grouped.json); groups of one size and of many"',
        f"rows = {len(rows)}",
        f'rows_sha256 = "{digest(rows)}"',
        f'gpus = ["{GPU}"]',
        "",
        "[constants]",
        *(f"{name} = {value}" for name, value in theta.items()),
        "",
        "# mean, median: relative errors on networks that were left out of the fit. low, high: the",
        "# range of nine in ten ratios of measured to predicted time there. Since only one GPU was",
        f"# measured, the range is widened; it was {low:.3f} to {high:.3f}.",
        "[groups]",
        f'"grouped/tensor" = {{ low = {low / ONE_GPU_SPREAD:.3f}, '
        f"high = {high * ONE_GPU_SPREAD:.3f}, mean = {off.mean():.3f}, "
        f"median = {np.median(off):.3f}, ops = {len(rows)}, gpus = 1, left_out = false }}",
    ]
    return "\n".join(lines) + "\n"


def main(given: Sequence[str] = ()) -> None:
    """Fit, write the file and print it."""
    needs.parser(__doc__).parse_args(given)
    rows = in_one_kernel(read())
    path = MODELS / "grouped.toml"
    path.write_text(card(rows, fit(rows)), encoding="utf-8")
    print(path.read_text(encoding="utf-8"))


# Matrix products of the experts of real models, timed on our H200.


MEASURED = H200 / "grouped.json"
GPU = "h200-sxm"


class Tensor(NamedTuple):
    """An operand of a product."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


class ExpertRow(NamedTuple):
    """One timed product."""

    model: str
    matrix: str
    turn: str
    """The pass: "forward", "data" (gradient of the data) or "weights" (gradient of the weights)."""
    tokens: int
    routing: str
    fullest: float
    """The rows of the expert with the most rows, over the mean."""
    op: str
    inputs: tuple[Tensor, ...]
    events_s: float | None
    """Seconds between CUDA events around the call. None if torch loops over groups on the host."""
    kernels_s: float | None
    """Seconds in which a kernel ran. None if no profiler recorded the call."""
    kernels: tuple[str, ...]


def read(path: Path = MEASURED) -> list[ExpertRow]:
    """The rows of a file."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [_row(*row) for row in rows]


def _row(*row: Any) -> ExpertRow:
    expert_row = ExpertRow(*row)
    tensors = (Tensor(tuple(shape), tuple(strides), d) for shape, strides, d in expert_row.inputs)
    return expert_row._replace(inputs=tuple(tensors), kernels=tuple(expert_row.kernels))


def op_of(row: ExpertRow) -> Op:
    """The op of a row, as a trace has it."""
    inputs = tuple(TensorSpec(t.shape, t.dtype, t.strides) for t in row.inputs)
    a, b = inputs[:2]
    groups = tuple(t.shape[0] for t in inputs[-1:] if row.op != "aten.bmm" and len(b.shape) == 2)
    shape = (*(groups or a.shape[:-2]), a.shape[-2], b.shape[-1])
    dtype = "bfloat16" if "scaled" in row.op else a.dtype
    return Op(row.op, inputs, (TensorSpec(shape, dtype),), (("precision", "ieee"),))


def measured_s(row: ExpertRow) -> float:
    """The measured seconds of a product: by events, or else by its kernels."""
    seconds = row.kernels_s if row.events_s is None else row.events_s
    assert seconds is not None
    return seconds
