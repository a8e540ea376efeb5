"""The times of what one rank of a cluster runs: kernels and collectives, played on its streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wavecast import ops
from wavecast.hardware.cluster import Cluster
from wavecast.hardware.device import Device
from wavecast.hardware.hosts import HostModel, Seconds
from wavecast.ops import Kind
from wavecast.parallel.strategy import Parallel, RankAxis
from wavecast.predictors.base import Estimate, Predictor
from wavecast.predictors.collectives import Collectives
from wavecast.steps.overlap import shipped_overlap
from wavecast.steps.streams import StreamTimes, play_streams
from wavecast.traces.recomputed import as_issued
from wavecast.traces.step import Call, Op, Phase, TensorSpec, Trace


class ClusterPredictor:
    """The times of ops on one GPU of a cluster: kernels by a predictor, collectives by the links.

    Answers are kept, since the same ops come back with every strategy.
    """

    def __init__(
        self, kernels: Predictor, collectives: Collectives, device: Device, cluster: Cluster
    ) -> None:
        self.device = device
        self.cluster = cluster
        self._kernels = kernels
        self._collectives = collectives
        self._answers: dict[Op, Estimate | None] = {}

    def learn(self, wanted: Sequence[Op]) -> None:
        """Ask for all ops at once, which is much faster than one by one."""
        new = [op for op in dict.fromkeys(wanted) if op not in self._answers]
        computed = []
        for op in new:
            if ops.kind(op) is Kind.COLLECTIVE:
                self._answers[op] = self._collectives.predict(op, self.cluster, self.device)
            elif ops.launches(op):
                computed.append(op)
            else:
                self._answers[op] = None
        predicted = self._kernels.predict_all(computed, self.device)
        self._answers.update(zip(computed, predicted, strict=True))

    @property
    def slowdown(self) -> float:
        """How much longer kernels take while a collective runs beside them."""
        return shipped_overlap().slowdown_on(self.cluster.node.link)

    def answer(self, op: Op) -> Estimate | None:
        """The estimate for an op; None where nobody could answer, or no kernel runs."""
        if op not in self._answers:
            self.learn([op])
        return self._answers[op]

    def known_s(self, op: Op) -> float:
        """The GPU time of an op; 0 where nobody could answer."""
        answer = self.answer(op)
        return 0.0 if answer is None else answer.seconds

    def seconds(self, calls: Sequence[Call]) -> Seconds:
        """The GPU time of each call; 0 where nobody could answer."""
        self.learn([call.op for call in calls])
        return np.array([self.known_s(call.op) for call in calls])


@dataclass(frozen=True)
class TimedCalls:
    """The calls of a trace, the host's time for each, and the GPU's."""

    calls: tuple[Call, ...]
    issue_s: Seconds
    gpu_s: Seconds

    @property
    def turn(self) -> int:
        """The position where the backward pass begins."""
        backward = (i for i, call in enumerate(self.calls) if call.phase is Phase.BACKWARD)
        return next(backward, len(self.calls))


class RankPlayer:
    """Plays traces on the GPU and host that were asked for."""

    def __init__(self, predictor: ClusterPredictor, host: HostModel) -> None:
        self._predictor = predictor
        self.host = host

    def timed(self, trace: Trace) -> TimedCalls:
        """The calls of a trace with their times."""
        # Of the whole trace, since a forward pass alone would count as one without a backward pass.
        issue_s = self.host.issue_times(as_issued(trace.calls))
        return TimedCalls(trace.calls, issue_s, self._predictor.seconds(trace.calls))

    def play(self, timed: TimedCalls, begin: int = 0, end: int | None = None) -> StreamTimes:
        """The times of some calls, repeated as in a training."""
        return play_streams(
            timed.calls[begin:end],
            timed.issue_s[begin:end],
            timed.gpu_s[begin:end],
            slowdown=self._predictor.slowdown,
            sync_s=self.host.trip_s,
        )

    def transfer_s(self, tensor: TensorSpec, strategy: Parallel) -> float:
        """The time to send a tensor to the next stage."""
        axis = RankAxis(2, strategy.axes["pipeline"].stride)
        attrs = (("ranks", axis.size), ("stride", axis.stride))
        return self._predictor.known_s(Op("nccl.send", (tensor,), (tensor,), attrs))
