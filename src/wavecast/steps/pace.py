"""The pace of a measured step: corrections that make its parts add up to its measured time.

Kernels on several streams overlap, the GPU idles between kernels, and no profiler sees the host's
time between ops. The pace holds these three effects, so that a measured step, predicted for its own
GPU, takes the time that was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from wavecast import ops
from wavecast.hardware.hosts import Seconds
from wavecast.ops import Kind
from wavecast.steps.player import play_one_stream
from wavecast.traces import overlap
from wavecast.traces.step import Call

_SMALLEST_HOST_FACTOR = 0.5
"""The recording slows the host down, at most by the inverse of this factor. If a step is faster
than even that explains, its GPU is taken to have other work while the host waits."""


@dataclass(frozen=True)
class Pace:
    """The corrections that make the parts of a measured step add up to its measured time."""

    exposure: Seconds
    """The share of each call's kernel time that no other kernel covers. The other kernel may be
    one of this step or, where steps overlap, one of the steps before and after."""
    gap_s: Seconds
    """The idle time between the kernels of each call, in seconds. A faster GPU does not shorten
    it."""
    host_factor: float
    """The host's recorded times are multiplied by this."""
    waits: bool = True
    """Whether the GPU idles while the host waits. False when it has work of other steps then."""


def pace_of(
    calls: Sequence[Call], issue_s: Seconds, measured_s: float | None, sync_s: float = 0.0
) -> Pace:
    """The pace of measured calls.

    Args:
        calls: the calls of the step, with their kernels.
        issue_s: the host's recorded time for each call.
        measured_s: the measured time of the whole step. None when unknown; the parts are then
            used without corrections.
        sync_s: seconds that one synchronisation costs beyond waiting for the GPU.
    """
    hidden = [ops.kind(call.op) is Kind.COLLECTIVE for call in calls]
    exposed = np.array(overlap.exposed_s(calls, hidden), dtype=float)
    total = np.array([sum(k.seconds for k in call.kernels) for call in calls], dtype=float)
    if measured_s is not None and exposed.sum() > measured_s:
        exposed *= measured_s / exposed.sum()  # the rest ran beside the steps before and after
    exposure = np.divide(exposed, total, out=np.ones_like(total), where=total > 0)
    launches = np.array([float(len(call.kernels)) for call in calls])
    if measured_s is None:
        return Pace(exposure, np.zeros_like(total), 1.0)
    syncs = [i for i, call in enumerate(calls) if call.syncs]

    def step_s(host: float, gap: float, waits: bool = True) -> float:
        after, cost_s = (syncs, sync_s * host) if waits else ((), 0.0)
        return play_one_stream(issue_s * host, exposed + gap * launches, after, cost_s).seconds

    waits = step_s(_SMALLEST_HOST_FACTOR, 0.0) <= measured_s
    host, gap = _reconcile(partial(step_s, waits=waits), issue_s, exposed, launches, measured_s)
    return Pace(exposure, gap * launches, host, waits)


def _reconcile(
    step_s: Callable[[float, float], float],
    issue_s: Seconds,
    gpu_s: Seconds,
    launches: Seconds,
    measured_s: float,
) -> tuple[float, float]:
    """The host factor and the gap per kernel with which the step takes the measured time.

    If the step took longer than its parts explain, the slower side is made slower: the host by a
    factor above 1, or the GPU by gaps between kernels. If it took less, the recording had slowed
    the host down, and the host gets a factor below 1. Kernel times are never changed.

    Args:
        step_s: a function that gives the step's time for a host factor and a gap per kernel.
        issue_s: the host's recorded time for each call.
        gpu_s: the GPU time of each call.
        launches: how many kernels each call ran.
        measured_s: the measured time of the step.
    """
    if step_s(1.0, 0.0) > measured_s:
        return _solve(lambda host: step_s(host, 0.0), measured_s, 0.0, 1.0), 0.0
    if gpu_s.sum() >= issue_s.sum():
        most = measured_s / max(launches.sum(), 1.0)
        return 1.0, _solve(lambda gap: step_s(1.0, gap), measured_s, 0.0, most)
    most = measured_s / float(issue_s.sum())
    return _solve(lambda host: step_s(host, 0.0), measured_s, 1.0, max(most, 1.0)), 0.0


def _solve(rising: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """The argument at which a non-decreasing function reaches `wanted`, found by bisection.

    The nearest end of the interval when it never does.
    """
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return high
