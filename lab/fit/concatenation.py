"""Fit the time of `cat`, measured on our H200.

    python -m lab fit concatenation

Needs only our own campaigns of traces (measurements/h200/traces). Writes
src/wavecast/data/models/concatenation.toml.

The constants (`wavecast.predictors.learned.streams`) are fitted on every `cat` of
the campaigns that other fits read as well. The errors and the range are computed with each campaign
left out of the fit in turn. The range is widened, because all measurements are from one GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

import numpy as np
from numpy.typing import NDArray

from lab import needs
from lab.fit.learned import ONE_GPU_SPREAD, RANGE
from lab.fit.op_fit import constants
from lab.measured import campaigns
from lab.measured.op_data import HELD_OUT
from lab.measured.op_makers import OpRow, digest
from lab.places import MODELS
from wavecast.hardware.devices import device
from wavecast.predictors.learned.batch import batch_of
from wavecast.predictors.learned.columns import Columns
from wavecast.predictors.learned.gpus import Floats, GpuFacts
from wavecast.predictors.learned.predictor import Learned
from wavecast.predictors.learned.streams import (
    CONCATENATION_PARAMETERS,
    concatenation_limits,
)
from wavecast.predictors.learned.tiles import Theta
from wavecast.traces.step import Op

GPU = "h200-sxm"
NAME = "concatenation"
PRIOR = 2.0
"""How strongly a constant is pulled to its physical guess. Without measurements it stays there."""


@dataclass(frozen=True, eq=False)
class CatTimes:
    """Measured calls of `cat`, one row for each op of a campaign."""

    rows: Sequence[OpRow]
    campaign: NDArray[np.str_]
    columns: Columns
    gpu: GpuFacts

    @property
    def seconds(self) -> Floats:
        """The measured time of each row: the median of its calls."""
        return np.array([row.seconds for row in self.rows])

    def where(self, chosen: NDArray[np.bool_]) -> CatTimes:
        """The rows that a mask selects."""
        rows = [row for row, keep in zip(self.rows, chosen, strict=True) if keep]
        columns = {name: values[chosen] for name, values in self.columns.items()}
        return CatTimes(rows, self.campaign[chosen], columns, self.gpu)

    def said(self, theta: Theta) -> Floats:
        """The predicted time of each row with these constants."""
        return concatenation_limits(self.columns, self.gpu, theta).seconds()


def measured() -> CatTimes:
    """Every `cat` in one kernel of the campaigns that fits read."""
    by_op: dict[tuple[str, Op], list[float]] = {}
    for campaign in campaigns.names():
        if campaign not in HELD_OUT:
            for trace in campaigns.traces(campaign).values():
                for call in trace.calls:
                    if call.op.base == "aten.cat" and len(call.kernels) == 1 and call.op.outputs:
                        times = by_op.setdefault((campaign, call.op), [])
                        times.append(call.kernels[0].seconds)
    given = [op for _, op in by_op]
    batch = batch_of(given, {})
    part = batch.parts[NAME]
    rows = [OpRow((op,), GPU, median(times), name) for (name, op), times in by_op.items()]
    gpu = Learned.shipped().gpu(device(GPU))
    assert gpu is not None
    kept = [rows[int(position)] for position in part.op]
    return CatTimes(kept, np.array([row.source for row in kept]), part.columns, gpu)


def fit(table: CatTimes) -> dict[str, float]:
    """The constants, by robust least squares on the logarithm of the time; long ones weigh more."""
    seconds = table.seconds
    weight = np.clip(seconds / np.median(seconds), 1 / 16, 16.0) ** 0.25

    def missed(theta: Theta) -> Floats:
        errors: Floats = weight * np.log(table.said(theta) / seconds)
        return errors

    return constants(CONCATENATION_PARAMETERS, missed, PRIOR)


def left_out(table: CatTimes) -> Floats:
    """The predicted seconds of each row, by a fit without the rows of its campaign."""
    predicted_s = np.zeros(len(table.rows))
    for campaign in np.unique(table.campaign):
        here = table.campaign == campaign
        predicted_s[here] = table.where(here).said(fit(table.where(~here)))
    return predicted_s


def card(table: CatTimes, theta: Mapping[str, float]) -> str:
    """The content of the file."""
    seconds, others_s = table.seconds, left_out(table)
    off = np.abs(others_s / seconds - 1)
    low, high = np.quantile(seconds / others_s, RANGE)
    lines = [
        "# The model of the kernels of cat. Written by lab/fit/concatenation.py.",
        f'fitted = "{datetime.now(UTC).date()}"',
        f'data = "calls of cat in {len(np.unique(table.campaign))} campaigns on our H200, '
        'torch 2.11 (measurements/h200/traces)"',
        f"rows = {len(table.rows)}",
        f'rows_sha256 = "{digest(table.rows)}"',
        f'gpus = ["{GPU}"]',
        "",
        "[constants]",
        *(f"{name} = {value}" for name, value in theta.items()),
        "",
        "# mean, median: relative errors on campaigns left out of the fit. low, high: the range",
        "# of nine in ten ratios of measured to predicted time there. Since only one GPU was",
        f"# measured, the range is widened; it was {low:.3f} to {high:.3f}.",
        "[groups]",
        f'"{NAME}" = {{ low = {low / ONE_GPU_SPREAD:.3f}, high = {high * ONE_GPU_SPREAD:.3f}, '
        f"mean = {off.mean():.3f}, median = {np.median(off):.3f}, ops = {len(table.rows)}, "
        "gpus = 1, left_out = false }",
    ]
    return "\n".join(lines) + "\n"


def main(given: Sequence[str] = ()) -> None:
    """Fit, write the file and print it."""
    needs.parser(__doc__).parse_args(given)
    table = measured()
    path = MODELS / f"{NAME}.toml"
    path.write_text(card(table, fit(table)), encoding="utf-8")
    print(path.read_text(encoding="utf-8"))
