"""The time of each op of a step, from predictors and scalers whose answers are checked."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.files import shipped_toml
from wavecast.hardware.clusters import Cluster, LinkKind
from wavecast.hardware.devices import Device
from wavecast.hardware.hosts import update_rate
from wavecast.ops import Kind
from wavecast.parallel.sharded import UPDATE
from wavecast.predictors.attainable import FIRST, first_flash
from wavecast.predictors.base import Estimate, Familiarity, Predictor, Scaler
from wavecast.predictors.collectives import Collectives
from wavecast.traces.arrays import Codes, StepArrays, encode
from wavecast.traces.step import Call, Op, Trace

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
        asked = [call.op for call in trace.arrays.works]
        self._learn(asked)
        return tuple(self._answers[op] for op in asked)

    def known_s(self, op: Op) -> float:
        """The GPU time of an op; 0 where nobody could answer."""
        if op not in self._answers:
            self._learn([op])
        answer = self._answers[op]
        return 0.0 if answer is None else answer.seconds

    def _learn(self, asked: Sequence[Op]) -> None:
        """Ask for all new ops at once, which is much faster than one by one."""
        computed = []
        for op in dict.fromkeys(op for op in asked if op not in self._answers):
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
    asked: Sequence[Op], target: Device, predictor: Predictor
) -> Sequence[Estimate | None]:
    return _checked(predictor.predict_all(asked, target), asked, predictor)


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


# The distinct pieces of work of a step, and which of them launch kernels.


@dataclass(frozen=True, eq=False)
class StepWork:
    """The distinct pieces of work of a step, as predictors are asked for them."""

    arrays: StepArrays
    launches: tuple[bool, ...]
    """Whether each piece of work launches a kernel."""
    kind_names: tuple[str, ...]
    """The op kind of each piece of work."""

    @cached_property
    def kind(self) -> Codes:
        """A number for the op kind of each piece of work."""
        return encode(self.kind_names)[1]

    @cached_property
    def launched_calls(self) -> tuple[Call, ...]:
        """The pieces of work that launch a kernel."""
        pairs = zip(self.arrays.works, self.launches, strict=True)
        return tuple(call for call, launches in pairs if launches)

    @cached_property
    def launched_ops(self) -> tuple[Op, ...]:
        """The ops of `launched_calls`."""
        return tuple(call.op for call in self.launched_calls)

    def spread(self, answers: Sequence[Estimate | None]) -> tuple[Estimate | None, ...]:
        """One answer for each piece of work, from those for `launched_calls`; None elsewhere."""
        remaining = iter(answers)
        return tuple(next(remaining) if launches else None for launches in self.launches)


def work_of(trace: Trace) -> StepWork:
    """The work of a trace; the most recent ones are cached."""
    return _work(trace.arrays, trace.measurement is not None)


@lru_cache(maxsize=16)
def _work(arrays: StepArrays, measured: bool) -> StepWork:
    return StepWork(
        arrays=arrays,
        launches=tuple(
            bool(call.kernels) if measured else ops.launches(call.op) for call in arrays.works
        ),
        kind_names=tuple(str(ops.kind(call.op)) for call in arrays.works),
    )


# What several GPUs cost beyond kernels and collectives: they disturb and await each other.
#
# While a collective runs, kernels are slower, since it takes part of the GPU. And the ranks of a
# step never end at the same moment: a collective begins when the slowest rank has come.


@dataclass(frozen=True, slots=True)
class OverlapConstants:
    """The fitted constants (lab/fit/overlap.py)."""

    slowdown: Mapping[str, float]
    """A kernel takes 1 + this times as long beside a collective: between boards with NVLink
    ("nvlink"), and between cards ("pcie"), joined by bridges or not."""
    rank_spread: float
    """The standard deviation of a step's time among ranks, as a share of it."""

    def slowdown_on(self, link: LinkKind) -> float:
        """How much longer kernels take beside a collective in a machine with such links."""
        return self.slowdown["pcie" if link in (LinkKind.PCIE, LinkKind.BRIDGES) else "nvlink"]

    def waiting(self, ranks: int) -> float:
        """The time that ranks wait for the slowest of them, as a share of a step."""
        return self.rank_spread * expected_maximum(ranks)


@functools.cache
def shipped_overlap() -> OverlapConstants:
    """The constants that were fitted to measured scaling."""
    table = shipped_toml("models/overlap.toml")
    return OverlapConstants(table["slowdown"], table["rank_spread"])


@functools.cache
def expected_maximum(count: int) -> float:
    """About how many standard deviations the largest of some normal values lies above their mean.

    It is Blom's approximation of the largest normal order statistic, within 0.03 up to millions.

    >>> round(expected_maximum(2), 2), round(expected_maximum(1024), 1)
    (0.59, 3.2)
    """
    if count <= 1:
        return 0.0
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
