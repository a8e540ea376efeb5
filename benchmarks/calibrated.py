"""What one measured rate of a GPU gains: NeuSight's whole models, with and without it.

    python -m benchmarks.calibrated --data FOLDER --cache FOLDER

For each GPU of NeuSight's float32 steps, the rate of its largest product in NeuSight's single
ops takes the place of what `wavecast calibrate` would measure. The models were fitted without any
GPU of that chip.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import wavecast
from benchmarks.public_steps import neusight
from benchmarks.public_steps.case import Traces
from benchmarks.scoring import read
from training.learned import fitted_without, rows_of
from wavecast import Device, ops
from wavecast.devices import Fact


@lru_cache
def measured_rate(gpu: str, data: Path) -> float:
    """The FLOP/s of the product that has most of them: the longest, so the nearest to sustained."""
    products = (
        (float(ops.executed_flops(row.ops[0]) or 0), row.seconds)
        for row in rows_of(data)
        if row.gpu == gpu
        and ops.kind(row.ops[0]) is ops.Kind.MATMUL
        and ops.unit(row.ops[0]) is ops.Unit.FP32
    )
    flops, seconds = max(products, default=(0.0, 1.0))
    return flops / seconds


def calibrated(device: Device, data: Path) -> Device | None:
    """The device with that rate as a measured fact; None where there is none."""
    rate = measured_rate(device.id, data)
    if not rate:
        return None
    fact = Fact(rate, "NeuSight's single ops")
    return replace(device, measured={**device.measured, "fp32_flops": fact})


def main() -> None:
    """Print both errors of each GPU."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    given = parser.parse_args()
    errors: dict[str, list[tuple[float, float]]] = {}
    fit = lru_cache(partial(fitted_without, data=given.data, cache=given.cache))
    cases = [c for c in neusight.cases(given.data / "neusight") if "compiled" not in c.set]
    for case, trace in read(cases, Traces(given.cache)):
        plain = wavecast.device(case.gpu)
        known = calibrated(plain, given.data)
        if known is not None:
            said = (wavecast.predict(trace, gpu, predictor=fit(case.gpu)) for gpu in (plain, known))
            first, second = (each.seconds / case.measured_s - 1 for each in said)
            errors.setdefault(case.gpu, []).append((first, second))
    print("| GPU | steps | rate measured / nominal | mean error | with the measured rate |")
    print("|---|---:|---:|---:|---:|")
    for gpu, pairs in sorted(errors.items()):
        share = measured_rate(gpu, given.data) / wavecast.device(gpu).fp32_flops
        before, after = (sum(abs(pair[n]) for pair in pairs) / len(pairs) for n in (0, 1))
        print(f"| {gpu} | {len(pairs)} | {share:.0%} | {before:.0%} | {after:.0%} |")


if __name__ == "__main__":
    main()
