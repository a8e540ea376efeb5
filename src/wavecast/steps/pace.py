"""The pace of a measured step: what its kernels and its host leave unexplained.

Kernels of several streams overlap, kernels follow each other with gaps, and the host's time
between ops is not seen by any profiler. The pace holds these so that a measured step, played
again on its own GPU, takes the time that was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from wavecast import ops
from wavecast.hardware.hosts import Seconds
from wavecast.ops import Kind
from wavecast.steps.timeline import play
from wavecast.traces import overlap
from wavecast.traces.step import Call

_QUICKEST = 0.5
"""A host is not quicker than its recording by more than this factor. A step that would need one
is not held up by its waits."""


@dataclass(frozen=True)
class Pace:
    """How a measured step's parts make its whole."""

    exposure: Seconds
    """Of each call: the part of its kernels' time that no other kernel covers, of this step or,
    where steps overlap, of its neighbours."""
    gap_s: Seconds
    """Of each call: time between kernels, which a better GPU does not shorten."""
    host_factor: float
    """What the host's recorded times must be multiplied with."""
    waits: bool = True
    """Whether the host's waits hold the GPU up; not where the GPU has work of other steps."""


def pace_of(
    calls: Sequence[Call], issue_s: Seconds, measured_s: float | None, sync_s: float = 0.0
) -> Pace:
    """The pace of measured calls.

    Args:
        calls: what ran, with its kernels.
        issue_s: the host's time for each call.
        measured_s: the whole step's time; None: not known, so the parts are taken as they are.
        sync_s: what a wait costs the host beyond waiting.
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
        return play(issue_s * host, exposed + gap * launches, after, cost_s).seconds

    waits = step_s(_QUICKEST, 0.0) <= measured_s
    host, gap = _reconcile(partial(step_s, waits=waits), issue_s, exposed, launches, measured_s)
    return Pace(exposure, gap * launches, host, waits)


def _reconcile(
    step_s: Callable[[float, float], float],
    issue_s: Seconds,
    gpu_s: Seconds,
    launches: Seconds,
    measured_s: float,
) -> tuple[float, float]:
    """The host's factor and the gap per kernel with which the step takes the measured time.

    A step that took longer than its parts explain waited for whoever had more to do: the host's
    unseen work, or the gaps between kernels. One that took less had a quicker host than the
    recording; the kernels are what they are.

    Args:
        step_s: the step's time with a host's factor and a gap per kernel.
        issue_s: the host's time for each call.
        gpu_s: the GPU's time for each call.
        launches: how many kernels each call ran.
        measured_s: the time to arrive at.
    """
    if step_s(1.0, 0.0) > measured_s:
        return _solve(lambda host: step_s(host, 0.0), measured_s, 0.0, 1.0), 0.0
    if gpu_s.sum() >= issue_s.sum():
        most = measured_s / max(launches.sum(), 1.0)
        return 1.0, _solve(lambda gap: step_s(1.0, gap), measured_s, 0.0, most)
    most = measured_s / float(issue_s.sum())
    return _solve(lambda host: step_s(host, 0.0), measured_s, 1.0, max(most, 1.0)), 0.0


def _solve(rising: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Where a function that does not fall reaches a value, by halving; the nearest end if never."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return high
