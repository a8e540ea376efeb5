"""The time of a step from the times of its ops on the GPU and on the host.

The host needs time to issue each op. The GPU runs ops in order, each only after it was issued. At a
synchronisation the host waits for the GPU. Iterations follow each other: without a synchronisation
the host already issues the next iteration while the GPU works on this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wavecast.hardware.hosts import Seconds


@dataclass(frozen=True)
class StepTime:
    """The times of one iteration in the steady state of many."""

    seconds: float
    """The iteration's wall-clock time."""
    gpu_s: float
    """The time that the GPU needs, gaps between kernels included."""
    host_s: float
    """The time that the host needs to issue the ops, synchronisation costs included."""

    @property
    def bound_by(self) -> str:
        """What limits the step: "gpu", "host", or "both" where they wait for each other."""
        if max(self.gpu_s, self.host_s) < 0.9 * self.seconds:
            return "both"
        return "gpu" if self.gpu_s >= self.host_s else "host"


def play(
    issue_s: Seconds, gpu_s: Seconds, sync_after: Sequence[int], sync_s: float = 0.0
) -> StepTime:
    """The time of one iteration when host and GPU run many of them.

    All streams are treated as one: work that would overlap is counted one after the other.

    Args:
        issue_s: the host's time for each call.
        gpu_s: the GPU time of each call.
        sync_after: positions of the calls after which the host waits for the GPU.
        sync_s: seconds that one synchronisation costs beyond waiting for the GPU.
    """
    host_total, gpu_total = float(issue_s.sum()), float(gpu_s.sum())
    if not sync_after:
        # Two servers in a row, each working in order: the slower one limits the rate.
        return StepTime(max(host_total, gpu_total), gpu_total, host_total)
    # After each wait, host and GPU start together. What follows the last wait of an iteration runs
    # on into the next iteration, so the calls are rotated to begin after that wait.
    shift = -(sync_after[-1] + 1)
    issue_s, gpu_s = np.roll(issue_s, shift), np.roll(gpu_s, shift)
    ends = [(end + shift) % len(issue_s) + 1 for end in sync_after]
    seconds, begin = 0.0, 0
    for end in sorted(ends):
        seconds += _finish_s(issue_s[begin:end], gpu_s[begin:end]) + sync_s
        begin = end
    return StepTime(seconds, gpu_total, host_total + sync_s * len(ends))


def _finish_s(issue_s: Seconds, gpu_s: Seconds) -> float:
    """When the GPU finishes calls that it can start only once they are issued, in seconds."""
    if not len(issue_s):  # two waits at one call
        return 0.0
    issued = np.cumsum(issue_s)
    # finish = max over k of (issued[k] + the GPU time of call k and all later calls)
    remaining = np.cumsum(gpu_s[::-1])[::-1]
    return float((issued + remaining).max())
