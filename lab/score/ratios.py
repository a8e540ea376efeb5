"""How well are products and convolutions predicted from one GPU to another?

    python -m lab.score.ratios --data FOLDER

Needs pandas and the public table neusight (docs/sources.md), which has the same float32 products
and convolutions on five GPUs. Three ways to scale from one GPU to another are compared in a printed
table: by the ratio of the two predictions, by wave scaling, and by the ratio of peak rates.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from lab import needs
from lab.measured.layer_ops import op_of
from lab.measured.published_gpus import NEUSIGHT_NVIDIA
from lab.measured.tables import read_frame
from wavecast.hardware.device import Device
from wavecast.hardware.devices import device
from wavecast.predictors.habitat import Habitat
from wavecast.predictors.mlp.layers import Bmm, Conv2d, Layer, Linear
from wavecast.predictors.wave import WaveScaling
from wavecast.traces.step import Call, Kernel, Phase

KEYS = {
    "conv": ["b", "c_in", "c_out", "ksize", "in_size", "stride", "pad"],
    "bmm": ["b", "m", "n", "k"],
    "linear": ["b", "m", "n", "k"],
}
LEAST_MS = 0.2
"""Shorter timings measure the host's launches, not the GPU."""
PAIRS = 400
"""At most this many rows are compared for each pair of GPUs."""


def layer_of(kind: str, row: Any) -> Layer:
    """The layer that a row of the table was measured on."""
    if kind == "linear":
        return Linear(bias=True, batch=int(row.m), in_features=int(row.n), out_features=int(row.k))
    if kind == "bmm":
        return Bmm(int(row.b), int(row.m), int(row.n), int(row.k))
    sizes = (row.b, row.in_size, row.c_in, row.c_out, row.ksize, row.stride, row.pad)
    return Conv2d(False, *map(int, sizes))


def joined(table: Any, kind: str) -> Iterator[tuple[Device, Device, Any]]:
    """Rows of the same layer on two GPUs, for every ordered pair."""
    rows = table[
        (table.op == kind) & table.gpu.isin(NEUSIGHT_NVIDIA) & (table.latency_ms > LEAST_MS)
    ]
    if kind == "linear":  # these run at 0.18 of the peak, the others of the same GPU at 0.74
        rows = rows[~((rows.gpu == "P4") & (rows.split == "train"))]
    rows = rows.drop_duplicates([*KEYS[kind], "gpu"])
    for origin, target in itertools.permutations(NEUSIGHT_NVIDIA, 2):
        both = rows[rows.gpu == origin].merge(
            rows[rows.gpu == target], on=KEYS[kind], suffixes=("_o", "_t")
        )
        for row in both.sample(min(PAIRS, len(both)), random_state=0).itertuples():
            yield device(NEUSIGHT_NVIDIA[origin]), device(NEUSIGHT_NVIDIA[target]), row


def measured_call(kind: str, row: Any) -> Call:
    """The layer as measured on the origin. 128 registers are assumed; none were recorded."""
    has_grid = row.grid_x_o == row.grid_x_o  # not NaN
    grid, block = (
        tuple(int(max(1, getattr(row, f"{what}_{axis}_o"))) for axis in "xyz") if has_grid else None
        for what in ("grid", "block")
    )
    kernel = Kernel(str(row.kernel_o), row.latency_ms_o * 1e-3, grid, block, 128, 0)  # type: ignore[arg-type]
    return Call(op_of(layer_of(kind, row)), Phase.FORWARD, kernels=(kernel,))


def main() -> None:
    """Print mean errors, and the share of measurements within the ranges."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    needs.add_data(parser, "neusight")
    table = read_frame(parser.parse_args().data / "neusight" / "ops.parquet")
    print("kind      pairs   ratio    wave    peak   in the ratio's range")
    for kind in KEYS:
        errors: dict[str, list[float]] = {"ratio": [], "wave": [], "peak": []}
        within = []
        for origin, target, row in joined(table, kind):
            call, real_s = measured_call(kind, row), row.latency_ms_t * 1e-3
            ratio = Habitat.shipped().scale_call(call, origin, target)
            wave = WaveScaling().scale_call(call, origin, target)
            assert ratio is not None
            assert wave is not None
            peak_s = row.latency_ms_o * 1e-3 * origin.fp32_flops / target.fp32_flops
            predicted_s = {"ratio": ratio.seconds, "wave": wave.seconds, "peak": peak_s}
            for way, seconds in predicted_s.items():
                errors[way].append(abs(seconds / real_s - 1))
            within.append(ratio.low_s <= real_s <= ratio.high_s)
        means = "  ".join(f"{np.mean(way_errors):6.1%}" for way_errors in errors.values())
        print(f"{kind:8} {len(within):6}  {means}   {np.mean(within):.0%}")


if __name__ == "__main__":
    main()
