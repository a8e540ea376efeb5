"""A step is not the sum of its ops: the host issues them, the GPU runs them, and they meet.

The host needs time to issue each op; the GPU runs ops in order and not before they were issued;
at a synchronisation the host waits for the GPU. Iterations follow each other: without a
synchronisation the host already issues the next while the GPU works on this one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.ops import Kind
from wavecast.trace import Call, Op

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Host:
    """What it costs a host to issue work, in Python, dispatcher, autograd and driver."""

    name: str
    op_s: float
    """An op that launches a kernel."""
    view_s: float
    """An op that launches none."""
    convolution_s: float
    """What cuDNN adds to find its plan for a convolution."""
    kernel_s: float
    """Each kernel of an op that launches many (recurrent layers)."""
    tensor_s: float
    """Each tensor of an op on lists (foreach optimizers)."""
    sync_s: float
    """A return trip to the GPU."""

    def scaled(self, factor: float) -> Host:
        """A host that takes `factor` times as long for everything; with 0 only the GPU counts."""
        _check_factor(factor)
        times = {
            name: getattr(self, name) * factor
            for name in ("op_s", "view_s", "convolution_s", "kernel_s", "tensor_s", "sync_s")
        }
        return replace(self, name=f"{self.name} x{factor:g}", **times)

    def issue_times(self, calls: Sequence[Call]) -> Seconds:
        """The host's time for each call."""
        known: dict[Op, float] = {}
        for call in calls:
            if call.op not in known:
                known[call.op] = self.issue_s(call.op)
        return np.array([known[call.op] for call in calls])

    def issue_s(self, op: Op) -> float:
        """The host's time for one call of an op."""
        kind = ops.kind(op)
        if not ops.launches(op):
            return self.view_s
        if kind is Kind.RNN:
            return self.op_s + self.kernel_s * ops.kernels(op)
        lists = self.tensor_s * len(op.inputs) if kind is Kind.OPTIMIZER else 0.0
        return self.op_s + lists + (self.convolution_s if kind is Kind.CONVOLUTION else 0.0)


REFERENCE_HOST = Host(
    name="reference host",
    op_s=32.3e-6,
    view_s=12.9e-6,
    convolution_s=74.7e-6,
    kernel_s=8.9e-6,
    tensor_s=0.2e-6,
    sync_s=12.2e-6,
)
"""The host of our H200 (a virtual machine, Python 3.12, torch 2.11), fitted by
`training/host.py` on the steps at batch 2 of measurements/h200/steps.csv, two runs of each."""


@dataclass(frozen=True)
class RecordedHost:
    """The host on which a step was measured: each call costs what it cost there."""

    name: str = "host of the measurement"
    factor: float = 1.0
    sync_s: float = 0.0

    def scaled(self, factor: float) -> RecordedHost:
        """A host that takes `factor` times as long for everything; with 0 only the GPU counts."""
        _check_factor(factor)
        return replace(self, name=f"{self.name} x{factor:g}", factor=self.factor * factor)

    def issue_times(self, calls: Sequence[Call]) -> Seconds:
        """The host's time for each call."""
        return np.array([call.host_s or 0.0 for call in calls]) * self.factor


def _check_factor(factor: float) -> None:
    if not 0 <= factor < math.inf:
        raise InvalidInput(
            f"the host factor must be a number from 0 on, not {factor}: 2 is a host half as "
            "fast as the reference, 0 one that costs nothing"
        )


@dataclass(frozen=True)
class Step:
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


def play(issue_s: Seconds, gpu_s: Seconds, sync_after: Sequence[int], sync_s: float = 0.0) -> Step:
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
        return Step(max(host_total, gpu_total), gpu_total, host_total)
    # Between two waits both start together; the last piece runs into the next iteration's first.
    shift = -(sync_after[-1] + 1)
    issue_s, gpu_s = np.roll(issue_s, shift), np.roll(gpu_s, shift)
    ends = [(end + shift) % len(issue_s) + 1 for end in sync_after]
    seconds, begin = 0.0, 0
    for end in sorted(ends):
        seconds += _meet(issue_s[begin:end], gpu_s[begin:end]) + sync_s
        begin = end
    return Step(seconds, gpu_total, host_total + sync_s * len(ends))


def _meet(issue_s: Seconds, gpu_s: Seconds) -> float:
    """When the GPU is done with calls of which it may start each only once issued."""
    if not len(issue_s):  # two waits at one call
        return 0.0
    issued = np.cumsum(issue_s)
    # done = max over k of (issued[k] + everything the GPU still has to do from k on)
    remaining = np.cumsum(gpu_s[::-1])[::-1]
    return float((issued + remaining).max())
