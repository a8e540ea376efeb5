"""Fit the shares of the roofline that ops attain.

    python -m lab fit attainable --data FOLDER

Needs pandas and the public tables neusight, kernels and deepbench (docs/sources.md), and the steps
measured on our H200 (the campaign `steps`, and copies from the host). Writes
src/wavecast/data/models/attainable.toml.

Ops are grouped by kind and by what limits them (`group_of`). For each group the fit finds the floor
and the share s in (0, 1] that minimise the error of seconds = floor + bound / s; every GPU has the
same weight. The range of a group is the smallest and the largest ratio of measured to estimated
time over all GPUs, each left out of the fit in turn.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab import needs
from lab.measured import campaigns
from lab.measured.public_ops import sampled_rows
from lab.places import H200, MODELS
from wavecast import device, ops
from wavecast.predictors.attainable import bound, group_of
from wavecast.traces import file
from wavecast.traces.step import Op, TensorSpec

STEPS = "steps"
"""The campaign whose ops are fitted."""
CARD = MODELS / "attainable.toml"
OUR_GPU = "h200-sxm"
LEAST_OPS = 4
LEAST_COPY = 1 << 20
"""Bytes of the smallest copy from the host that is fitted."""
SHARES = np.geomspace(0.02, 1.0, 120)
FLOORS = np.geomspace(0.5e-6, 30e-6, 40)
# Some groups were measured on one GPU only, so no range is narrower than this.
LEAST_LOW, LEAST_HIGH = 0.5, 1.8


@dataclass(frozen=True)
class Observed:
    """The ops of one group: roofline bound, measured time, number of kernels and GPU of each."""

    bound_s: NDArray[np.float64]
    seconds: NDArray[np.float64]
    kernels: NDArray[np.float64]
    gpus: NDArray[np.str_]

    def where(self, mask: NDArray[np.bool_]) -> Observed:
        """The ops that a mask selects."""
        return Observed(*(getattr(self, f.name)[mask] for f in fields(self)))


def observations(folder: Path | None) -> dict[str, Observed]:
    """All measured ops by group. Public tables are read only where `folder` is given."""
    groups: dict[str, list[tuple[float, float, int, str]]] = defaultdict(list)

    def add(op: Op, gpu: str, seconds: float) -> None:
        least = bound(op, device(gpu)) if ops.launches(op) else None
        if least is not None and seconds > 0:
            row = (least.seconds, seconds, ops.kernels(op), gpu)
            groups[group_of(op, least)].append(row)
            groups["other"].append(row)

    for op, seconds in host_copies():
        add(op, OUR_GPU, seconds)
    for trace in campaigns.traces(STEPS).values():
        for call in trace:
            add(call.op, OUR_GPU, file.busy_s(call.kernels))
    if folder is not None:
        for row in sampled_rows(folder):
            add(row.ops[0], row.gpu, row.seconds)
    return {
        name: Observed(*(np.array(column) for column in zip(*group, strict=True)))
        for name, group in groups.items()
        if len(group) >= LEAST_OPS
    }


def host_copies() -> Iterator[tuple[Op, float]]:
    """Copies from the host that the GPU and not the call takes long for, and their times."""
    document = json.loads((H200 / "host_copies.json").read_text(encoding="utf-8"))
    for row in document["copies"]:
        if row["nbytes"] >= LEAST_COPY and row["non_blocking"]:
            shape, attrs = (row["nbytes"],), (("pin_memory", True),) if row["pinned"] else ()
            source, copy = (TensorSpec(shape, "uint8", device=place) for place in ("cpu", "cuda"))
            yield Op("aten._to_copy", (source,), (copy,), attrs), row["seconds"]


def fit(observed: Observed, floors: NDArray[np.float64] = FLOORS) -> tuple[float, float]:
    """The share and the floor with the least mean absolute error of the logarithm."""
    # Long ops matter more. They are weighted by the square root of their time and not by the time
    # itself, because short ops are many and add up.
    weights = np.sqrt(observed.seconds)
    for gpu in np.unique(observed.gpus):
        weights[observed.gpus == gpu] /= weights[observed.gpus == gpu].sum()
    errors = [
        np.abs(
            np.log(
                (floor * observed.kernels + observed.bound_s / SHARES[:, None]) / observed.seconds
            )
        )
        @ weights
        for floor in floors
    ]
    at_floor, at_share = np.unravel_index(int(np.argmin(errors)), np.shape(errors))
    return float(SHARES[at_share]), float(floors[at_floor])


def spread(observed: Observed, floor_s: float) -> tuple[float, float]:
    """The range of a group's measured time over its estimate, on GPUs left out of the fit.

    The floor is not fitted again: only our own measurements separate GPU time from host time.
    """
    ratios = []
    gpus = np.unique(observed.gpus)
    for gpu in gpus:
        out = observed.gpus == gpu
        share, _ = fit(observed.where(~out if len(gpus) > 1 else out), np.array([floor_s]))
        rest = observed.where(out)
        estimate_s = floor_s * rest.kernels + rest.bound_s / share
        ratios.append(float(rest.seconds.sum() / estimate_s.sum()))
    return min(*ratios, LEAST_LOW, 1.0), max(*ratios, LEAST_HIGH, 1.0)


def main(given: Sequence[str] = ()) -> None:
    """Fit all groups and write the card."""
    parser = needs.parser(__doc__)
    needs.add_data(parser, *needs.SINGLE_OPS)
    groups = observations(parser.parse_args(given).data)
    gpus = sorted({str(gpu) for observed in groups.values() for gpu in observed.gpus})
    lines = [
        "# Shares of the roofline that ops attain. Written by lab/fit/attainable.py.",
        f'fitted = "{datetime.now(UTC).date()}"',
        'data = "16 training steps on our H200 (measurements/h200/traces/steps.npz); single ops '
        'published by NeuSight, aiconfigurator and DeepBench (lab/measured/public_ops.py)"',
        f"gpus = {json.dumps(gpus)}",
        f'steps_sha256 = "{campaigns.digest(STEPS)}"',
        "",
        "[shares]",
    ]
    for name in sorted(groups):
        share, floor_s = fit(groups[name])
        low, high = spread(groups[name], floor_s)
        count, on = len(groups[name].seconds), len(np.unique(groups[name].gpus))
        lines.append(
            f'"{name}" = {{ share = {share:.3f}, floor_s = {floor_s:.2e}, low = {low:.2f}, '
            f"high = {high:.2f}, ops = {count}, gpus = {on} }}"
        )
    CARD.parent.mkdir(exist_ok=True)
    CARD.write_text("\n".join(lines) + "\n")
    print(CARD.read_text())
