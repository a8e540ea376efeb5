"""Habitat as published and Wavecast's default, side by side on public measurements.

    python -m lab score published --data FOLDER

Needs pandas and the public table neusight (docs/sources.md); prints a table. We have none of
Habitat's own measurements. NeuSight timed single float32 ops on three of the paper's GPUs: P100,
T4, and a V100 with 32 GB, which gets the published numbers of the one with 16 GB. Every call above
0.2 ms on both of two GPUs is scaled from each to the other. The error is that of the ratio of its
times: mean |predicted / measured - 1|.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path

import numpy as np

from lab import needs
from lab.pages import heading
from lab.score.wave import ABOVE_FLOOR_S, CONTRACTED, Runs, op_of, runs
from wavecast.hardware.devices import Device, device
from wavecast.predictors.base import Scaler
from wavecast.predictors.habitat import Habitat, Setup, published_setup
from wavecast.traces.step import Call, Phase

GPUS = {"P100": Device.P100, "V100": device("v100-pcie-32gb"), "T4": Device.T4}
ROWS = 3000
"""At most so many calls of each op, drawn at random with a fixed seed."""


@dataclass(frozen=True)
class ScaledCall:
    """A call measured on an origin, and its seconds on a target."""

    op: str
    call: Call
    origin: Device
    target: Device
    target_s: float


def scaled_calls(measured: Runs) -> list[ScaledCall]:
    """The calls that two of the GPUs ran for long enough, in both directions."""
    calls = []
    for key, by_gpu in measured.items():
        for origin, target in permutations(sorted(GPUS.keys() & by_gpu.keys()), 2):
            kernel, target_s = by_gpu[origin].kernel, by_gpu[target].kernel.seconds
            if min(kernel.seconds, target_s) > ABOVE_FLOOR_S:
                call = Call(op_of(key), Phase.FORWARD, kernels=(kernel,))
                pair = GPUS[origin], GPUS[target]
                calls.append(ScaledCall(key[0], call, *pair, target_s))
    return calls


def drawn(calls: Sequence[ScaledCall], most: int = ROWS) -> list[ScaledCall]:
    """At most `most` calls of each op."""
    draw = np.random.default_rng(0)
    names = np.array([call.op for call in calls])
    chosen = []
    for name in sorted(set(names.tolist())):
        at = draw.permutation(np.flatnonzero(names == name))[:most]
        chosen += [calls[i] for i in sorted(at.tolist())]
    return chosen


def error(calls: Sequence[ScaledCall], scaler: Scaler) -> float:
    """The mean relative error of a scaler in per cent, of the calls that it answers."""
    off = []
    for origin, target in permutations(GPUS.values(), 2):
        some = [call for call in calls if (call.origin, call.target) == (origin, target)]
        answers = scaler.scale_all([call.call for call in some], origin, target)
        off += [abs(a.seconds / c.target_s - 1) for a, c in zip(answers, some, strict=True) if a]
    return float(np.mean(off)) * 100


def _setup() -> Setup:
    """The published setup, in which the V100 with 32 GB has the numbers of that with 16 GB."""
    paper = published_setup("habitat")
    return replace(paper, gpus={**paper.gpus, GPUS["V100"].id: paper.gpus[Device.V100.id]})


def main(given: Sequence[str] = ()) -> None:
    """Print one line for ops that are scaled by waves, and one for each kind of product."""
    parser = needs.parser(__doc__)
    parser.add_argument("--data", type=needs.tables("neusight"), required=True)
    folder: Path = parser.parse_args(given).data
    calls = drawn(scaled_calls(runs(folder)))
    groups = {name: [call for call in calls if call.op == name] for name in CONTRACTED}
    waves = [call for call in calls if call.op not in CONTRACTED]
    scalers = {
        "as published": _setup().scaler(),
        "default": Habitat.shipped(),
    }
    print(*heading(f"ops | calls | {' | '.join(scalers)}"), sep="\n")
    for name, group in {"scaled by waves": waves, **groups}.items():
        errors = " | ".join(f"{error(group, scaler):.1f}" for scaler in scalers.values())
        print(f"| {name} | {len(group)} | {errors} |", flush=True)
