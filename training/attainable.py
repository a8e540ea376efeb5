"""Fit the shares of the roofline that ops attain, from the steps measured on our H200.

    python -m training.attainable

For each kind of op and limit: the share s in (0, 1] that fits best seconds = floor + bound / s,
ops weighted by their time, and between which factors of the estimate the kind's time lay in steps with
90% of it. Writes data/models/attainable.toml.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from datetime import date
from pathlib import Path

import numpy as np

from wavecast import device, load_trace, ops
from wavecast.predictors.attainable import group_of
from wavecast.predictors.roofline import bound

ROOT = Path(__file__).parent.parent
STEPS = ROOT / "measurements" / "h200" / "steps"
CARD = ROOT / "src" / "wavecast" / "data" / "models" / "attainable.toml"
GPU = "h200-sxm"
SMALL_BYTES = 100_000
LEAST_OPS = 4
# A few steps on one GPU do not show how far apart GPUs are: no range is narrower than this.
LEAST_LOW, LEAST_HIGH = 0.8, 1.25


Row = tuple[float, float, int, int]


def observations() -> dict[str, list[Row]]:
    """(bound, measured seconds, kernels, step) of every op that ran, by kind and limit."""
    found: dict[str, list[Row]] = defaultdict(list)
    for step, path in enumerate(sorted(STEPS.glob("*.json.gz"))):
        for call in load_trace(path):
            seconds = sum(kernel.seconds for kernel in call.kernels)
            least = bound(call.op, device(GPU)) if ops.launches(call.op) else None
            if least is not None and seconds > 0:
                found[group_of(call.op, least)].append(
                    (least.seconds, seconds, ops.kernels(call.op), step)
                )
    return found


def smallest_kernel_s() -> float:
    """What elementwise ops take that move next to nothing."""
    times = [
        sum(kernel.seconds for kernel in call.kernels)
        for path in sorted(STEPS.glob("*.json.gz"))
        for call in load_trace(path)
        if len(call.kernels) == 1
        and ops.kind(call.op) == "elementwise"
        and sum(t.nbytes for t in (*call.op.inputs, *call.op.outputs)) < SMALL_BYTES
    ]
    return float(np.median(times))


def fit(rows: list[Row], floor_s: float) -> tuple[float, float, float]:
    """The share, and the range of measured over estimated time that holds 90% of the steps."""
    bounds, seconds, kernels, steps = (
        np.array(column, float) for column in zip(*rows, strict=True)
    )
    shares = np.geomspace(0.01, 1.0, 400)
    estimates = floor_s * kernels + bounds / shares[:, None]
    errors = np.abs(np.log(estimates / seconds)) @ seconds
    best = int(errors.argmin())
    measured, estimated = (
        np.array([times[steps == step].sum() for step in np.unique(steps)])
        for times in (seconds, estimates[best])
    )
    ratios = measured / estimated
    order = np.argsort(ratios)
    # Steps in which the kind hardly matters say little about its range.
    time_below = np.cumsum(measured[order]) / measured.sum()
    low, high = (ratios[order][np.searchsorted(time_below, q)] for q in (0.05, 0.95))
    return float(shares[best]), float(min(low, LEAST_LOW)), float(max(high, LEAST_HIGH))


def main() -> None:
    """Fit all kinds and write the card."""
    found = observations()
    floor_s = smallest_kernel_s()
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in sorted(STEPS.glob("*.json.gz"))))
    lines = [
        "# Shares of the roofline that ops attain. Made by training/attainable.py.",
        f'fitted = "{date.today()}"',
        'data = "16 training steps on our H200, torch 2.11 (measurements/h200/steps)"',
        f'data_sha256 = "{digest.hexdigest()}"',
        f"floor_s = {floor_s:.3e}  # the smallest kernel",
        "",
        "[shares]",
    ]
    groups = {name: rows for name, rows in found.items() if len(rows) >= LEAST_OPS}
    groups["other"] = [row for rows in found.values() for row in rows]
    for name in sorted(groups):
        share, low, high = fit(groups[name], floor_s)
        lines.append(
            f'"{name}" = {{ share = {share:.3f}, low = {low:.2f}, high = {high:.2f}, '
            f"ops = {len(groups[name])} }}"
        )
    CARD.parent.mkdir(exist_ok=True)
    CARD.write_text("\n".join(lines) + "\n")
    print(CARD.read_text())


if __name__ == "__main__":
    main()
