"""How much does one measured rate of a GPU improve predictions of NeuSight's whole models?

    python -m lab.score.calibrated --data FOLDER --cache FOLDER

`wavecast calibrate` times a large square matrix product, and the learned models then predict
products at the measured rate. No public table has the time of that product. So, for each GPU of
NeuSight's float32 steps, some of its single products stand in: those whose shortest side is
longest, since they are nearest to a large square. The median of their measured over predicted speed
is used for the square. Several products are needed (`--products`), because in that data a single
one can be off by a factor. The models were fitted without any GPU of the same chip.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import wavecast
from lab import needs
from lab.fit.learned import fitted_without, rows_of
from lab.measured.comparison import read
from lab.measured.op_row import OpRow
from lab.measured.public_steps import neusight
from lab.measured.public_steps.case import Traces
from wavecast import Device, ops
from wavecast.hardware.device import Fact
from wavecast.predictors.learned.calibration import CALIBRATED
from wavecast.predictors.learned.physics.columns import ProductRow
from wavecast.predictors.learned.physics.parts import parts_of
from wavecast.predictors.learned.predictor import Learned

PRODUCTS = 30
"""How many single products stand in for the calibrated one."""


def products(gpu: str, data: Path) -> list[OpRow]:
    """NeuSight's float32 products on a GPU, those with the longest shortest side first."""
    rows = [
        row
        for row in rows_of(data)
        if row.gpu == gpu
        and row.source == "neusight"
        and ops.kind(row.ops[0]) is ops.Kind.MATMUL
        and ops.unit(row.ops[0]) is ops.Unit.FP32
    ]
    return sorted(rows, key=shortest_side, reverse=True)


def shortest_side(row: OpRow) -> float:
    """The shortest of m, n and k of a product."""
    product = parts_of(row.ops[0])[0].row
    assert isinstance(product, ProductRow)
    return min(product.m, product.n, product.k)


def faster(some: list[OpRow], device: Device, learned: Learned) -> Iterator[float]:
    """The measured speed of each product over its predicted speed."""
    for row in some:
        estimate = learned.predict(row.ops[0], device)
        assert estimate is not None
        yield estimate.seconds / row.seconds


def calibrated(device: Device, times: float, learned: Learned) -> Device:
    """The device with a measured rate that makes large products this many times faster."""
    square = CALIBRATED[ops.Unit.FP32]
    estimate, flops = learned.predict(square, device), ops.executed_flops(square)
    assert estimate is not None
    assert flops is not None
    fact = Fact(times * flops / estimate.seconds, "NeuSight's single ops")
    return replace(device, measured={**device.measured, "fp32_flops": fact})


def main() -> None:
    """Print the error of each GPU with and without the measured rate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    needs.add_data(parser, *needs.SINGLE_OPS)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument(
        "--products",
        type=int,
        default=PRODUCTS,
        help="how many single products stand in for the calibrated one",
    )
    given = parser.parse_args()
    errors: dict[str, list[tuple[float, float]]] = {}
    gains: dict[str, float] = {}
    fit = lru_cache(partial(fitted_without, data=given.data, cache=given.cache))
    cases = [case for case in neusight.cases(given.data / "neusight") if "compiled" not in case.set]
    traces = Traces(given.cache)
    traces.make_missing(cases)
    for case, trace in read(cases, traces):
        plain, learned = wavecast.device(case.gpu), fit(case.gpu)
        if case.gpu not in gains:
            some = products(case.gpu, given.data)[: given.products]
            gains[case.gpu] = statistics.median(faster(some, plain, learned)) if some else 0.0
        if gains[case.gpu]:
            gpus = (plain, calibrated(plain, gains[case.gpu], learned))
            predictions = (wavecast.predict(trace, gpu, predictor=learned) for gpu in gpus)
            first, second = (prediction.seconds / case.measured_s - 1 for prediction in predictions)
            errors.setdefault(case.gpu, []).append((first, second))
    print("| GPU | steps | rate measured / predicted | mean error | with the measured rate |")
    print("|---|---:|---:|---:|---:|")
    for gpu, pairs in sorted(errors.items()):
        print(f"| {gpu} | {len(pairs)} | {gains[gpu]:.2f} | {_means(pairs)} |")
    every = [pair for pairs in errors.values() for pair in pairs]
    print(f"| **all** | {len(every)} | | {_means(every)} |")


def _means(pairs: list[tuple[float, float]]) -> str:
    before, after = (statistics.mean(abs(pair[n]) for pair in pairs) for n in (0, 1))
    return f"{before:.0%} | {after:.0%}"


if __name__ == "__main__":
    main()
