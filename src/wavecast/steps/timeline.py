"""A step is not the sum of its ops: the host issues them, the GPU runs them, and they meet.

The host needs time to issue each op; the GPU runs ops in order and not before they were issued;
at a synchronisation the host waits for the GPU. Iterations follow each other: without a
synchronisation the host already issues the next while the GPU works on this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wavecast.hardware.hosts import Seconds


@dataclass(frozen=True)
class StepTime:
    """The time of one iteration in the steady state, and who makes it."""

    seconds: float
    gpu_s: float
    host_s: float

    @property
    def bound_by(self) -> str:
        """Who the other waits for: "gpu", "host", or "both" where they take turns."""
        if max(self.gpu_s, self.host_s) < 0.9 * self.seconds:
            return "both"
        return "gpu" if self.gpu_s >= self.host_s else "host"


def play(
    issue_s: Seconds, gpu_s: Seconds, sync_after: Sequence[int], sync_s: float = 0.0
) -> StepTime:
    """Play host and GPU against each other until iterations repeat.

    Args:
        issue_s: the host's time for each call.
        gpu_s: the GPU's time for each call.
        sync_after: positions of the calls after which the host waits for the GPU.
        sync_s: what a wait costs beyond waiting.

    Streams are taken as one: work that overlaps on several is counted one after the other.

    """
    host_total, gpu_total = float(issue_s.sum()), float(gpu_s.sum())
    if not sync_after:
        # Two servers in a row, each in order: the slower sets the pace.
        return StepTime(max(host_total, gpu_total), gpu_total, host_total)
    # Between two waits both start together; the last piece runs into the next iteration's first.
    shift = -(sync_after[-1] + 1)
    issue_s, gpu_s = np.roll(issue_s, shift), np.roll(gpu_s, shift)
    ends = [(end + shift) % len(issue_s) + 1 for end in sync_after]
    seconds, begin = 0.0, 0
    for end in sorted(ends):
        seconds += _meet(issue_s[begin:end], gpu_s[begin:end]) + sync_s
        begin = end
    return StepTime(seconds, gpu_total, host_total + sync_s * len(ends))


def _meet(issue_s: Seconds, gpu_s: Seconds) -> float:
    """When the GPU is done with calls of which it may start each only once issued."""
    if not len(issue_s):  # two waits at one call
        return 0.0
    issued = np.cumsum(issue_s)
    # done = max over k of (issued[k] + everything the GPU still has to do from k on)
    remaining = np.cumsum(gpu_s[::-1])[::-1]
    return float((issued + remaining).max())
