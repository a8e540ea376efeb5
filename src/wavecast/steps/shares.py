"""The parts of a step, by op, module or predictor, and the GPU time of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wavecast.hardware.hosts import Seconds
from wavecast.traces.arrays import Codes


@dataclass(frozen=True)
class Share:
    """One part of a step, such as an op name or a module."""

    name: str
    calls: int
    """How many calls of the step belong to it."""
    gpu_s: float
    """The GPU time of these calls together, in seconds."""


def shares_of(names: Sequence[str], codes: Codes, seconds: Seconds) -> tuple[Share, ...]:
    """The parts of a step, longest first.

    Args:
        names: the names of the parts.
        codes: the part of each call, as a position in `names`.
        seconds: the GPU time of each call.
    """
    calls = np.bincount(codes, minlength=len(names)).tolist()
    times = np.bincount(codes, weights=seconds, minlength=len(names)).tolist()
    shares = map(Share, names, calls, times)
    return tuple(sorted(shares, key=lambda share: -share.gpu_s))
