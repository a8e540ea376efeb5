"""The time of each op of a step, from predictors and scalers whose answers are checked."""

from __future__ import annotations

import math
from collections.abc import Sequence

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.hardware.cluster import Cluster
from wavecast.hardware.device import Device
from wavecast.hardware.processors import update_rate
from wavecast.ops import Kind
from wavecast.parallel.offload import UPDATE
from wavecast.predictors.base import Estimate, Familiarity, Predictor, Scaler
from wavecast.predictors.collectives import Collectives
from wavecast.predictors.first_flash import FIRST, first_flash
from wavecast.steps.overlap import shipped_overlap
from wavecast.steps.work import work_of
from wavecast.traces.step import Op, Trace

Answers = tuple[Estimate | None, ...]
"""One estimate per distinct piece of work. None if no kernel runs or no predictor could answer."""


def predict_ops(trace: Trace, target: Device, predictor: Predictor) -> Answers:
    """A predictor's estimate for each distinct piece of work of a trace."""
    work = work_of(trace)
    return work.spread(_predicted(work.launched_ops, target, predictor))


def scale_ops(trace: Trace, target: Device, scaler: Scaler, origin: Device) -> Answers:
    """A scaler's estimate on the target GPU for each measured call of a trace."""
    work = work_of(trace)
    scaled = scaler.scale_all(work.launched_calls, origin, target)
    return work.spread(_checked(scaled, work.launched_ops, scaler))


class ClusterPredictor:
    """The times of ops on one GPU of a cluster: kernels by a predictor, collectives by the links.

    Answers are kept, since the same ops come back with every strategy.
    """

    def __init__(
        self, kernels: Predictor, collectives: Collectives, device: Device, cluster: Cluster
    ) -> None:
        self.device = device
        self.cluster = cluster
        self.kernels = kernels
        self._collectives = collectives
        self._answers: dict[Op, Estimate | None] = {}

    def on(self, cluster: Cluster) -> ClusterPredictor:
        """The same for another cluster; what is known of kernels is kept."""
        other = ClusterPredictor(self.kernels, self._collectives, self.device, cluster)
        known = self._answers.items()
        other._answers = {op: a for op, a in known if ops.kind(op) is not Kind.COLLECTIVE}
        return other

    @property
    def has_gaps(self) -> bool:
        """Whether the GPU idles between kernels, beyond the estimates of its ops."""
        return self.kernels.familiarity(self.device) is Familiarity.MEASURED

    @property
    def slowdown(self) -> float:
        """How much longer kernels take while a collective runs beside them."""
        return shipped_overlap().slowdown_on(self.cluster.node.link)

    def answers(self, trace: Trace) -> Answers:
        """The estimate for each distinct piece of work of a trace."""
        wanted = [call.op for call in trace.arrays.works]
        self._learn(wanted)
        return tuple(self._answers[op] for op in wanted)

    def known_s(self, op: Op) -> float:
        """The GPU time of an op; 0 where nobody could answer."""
        if op not in self._answers:
            self._learn([op])
        answer = self._answers[op]
        return 0.0 if answer is None else answer.seconds

    def _learn(self, wanted: Sequence[Op]) -> None:
        """Ask for all new ops at once, which is much faster than one by one."""
        computed = []
        for op in dict.fromkeys(op for op in wanted if op not in self._answers):
            if ops.kind(op) is Kind.COLLECTIVE:
                self._answers[op] = self._collectives.predict(op, self.cluster, self.device)
            elif op.name == UPDATE:
                self._answers[op] = host_update(op, self.cluster)
            elif ops.launches(op):
                computed.append(op)
            else:
                self._answers[op] = None
        if computed:
            predicted = _predicted(computed, self.device, self.kernels)
            for op, answer in zip(computed, predicted, strict=True):
                first = op.attr(FIRST, False)
                self._answers[op] = first_flash(op, self.device, answer) if first else answer


_HOST_RANGE = 2.0
"""How far off the host's rate may be: that of one machine stands for all."""


def host_update(op: Op, cluster: Cluster) -> Estimate | None:
    """The time of an optimizer on the host, whose memory the ranks of a machine share.

    None if the bandwidth of that memory is unknown.
    """
    rate, ranks = update_rate(cluster), op.attr("ranks", 1)
    traffic = sum(tensor.nbytes for tensor in op.inputs)
    if rate is None or not traffic or not isinstance(ranks, int):
        return None
    seconds = traffic * min(ranks, cluster.gpus_per_node) / rate
    source = "the bandwidth of the host's memory"
    return Estimate(seconds, seconds / _HOST_RANGE, seconds * _HOST_RANGE, source)


def _predicted(
    wanted: Sequence[Op], target: Device, predictor: Predictor
) -> Sequence[Estimate | None]:
    return _checked(predictor.predict_all(wanted, target), wanted, predictor)


def _checked(
    answers: Sequence[Estimate | None], ops: Sequence[Op], predictor: Predictor | Scaler
) -> Sequence[Estimate | None]:
    """The answers as given, if they are valid. The predictor may be the user's.

    Raises:
        InvalidInput: an answer is no Estimate, or its times are not positive, finite and in order.
    """
    who = type(predictor).__name__
    if len(answers) != len(ops):
        raise InvalidInput(
            f"{who} was asked for the times of {len(ops)} ops and gave {len(answers)} answers; "
            "it should give one for each op"
        )
    for op, answer in zip(ops, answers, strict=True):
        if answer is None:
            continue
        if not isinstance(answer, Estimate):
            raise InvalidInput(
                f"{who} answered {answer!r} for {op.name}; "
                "it should return an Estimate, or None for an op that it cannot predict"
            )
        if not 0 < answer.low_s <= answer.seconds <= answer.high_s < math.inf:
            raise InvalidInput(
                f"{who} answered {answer.low_s:g} <= {answer.seconds:g} <= {answer.high_s:g} s "
                f"for {op.name}; times must be positive, finite and in this order"
            )
    return answers
