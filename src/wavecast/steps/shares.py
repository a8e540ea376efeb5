"""The parts of a step, by op, module or predictor, and the GPU time of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from wavecast.hardware.hosts import Seconds
from wavecast.steps.timed_trace import Coded, TimedTrace
from wavecast.traces.arrays import Codes, encode


@dataclass(frozen=True)
class Share:
    """One part of a step, such as an op name or a module."""

    name: str
    calls: int
    """How many calls of the step belong to it."""
    gpu_s: float
    """The GPU time of these calls together, in seconds."""


def shares_by(
    runs: Sequence[tuple[TimedTrace, int]], coded: Callable[[TimedTrace], Coded]
) -> tuple[Share, ...]:
    """The GPU time of traces, each run so many times, by a code of each call, longest first."""
    shares = [(shares_of(*coded(timed), timed.call_s), times) for timed, times in runs]
    if len(shares) == 1 and shares[0][1] == 1:
        return shares[0][0]
    sums: dict[str, tuple[int, float]] = {}
    for parts, times in shares:
        for part in parts:
            calls, gpu_s = sums.get(part.name, (0, 0.0))
            sums[part.name] = calls + times * part.calls, gpu_s + times * part.gpu_s
    added = (Share(name, *sums[name]) for name in sums)
    return tuple(sorted(added, key=lambda share: -share.gpu_s))


_NO_LINE = "no line of yours"
"""The line of ops whose line is not known: those of a library's thread, or of a saved trace."""


def shares_by_line(runs: Sequence[tuple[TimedTrace, int]]) -> tuple[Share, ...]:
    """The GPU time of traces by line of the user's code, longest first.

    The backward pass is at the line that starts it. Traces name all lines if they are asked to.
    """
    return shares_by(runs, lambda timed: encode([c.line or _NO_LINE for c in timed.trace.calls]))


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
