"""The predicted time of one optimizer step that is spread over several GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.hardware.cluster import Cluster
from wavecast.hardware.device import Device
from wavecast.hardware.hosts import REFERENCE_HOST, HostModel
from wavecast.parallel.ranks import ModelPart, ParallelStep, RankGroup
from wavecast.parallel.schedules import PartTimes, order_of, play_schedule
from wavecast.parallel.spreading import Spreader, without_collectives
from wavecast.parallel.strategy import Parallel
from wavecast.predictors.base import refuse_impossible
from wavecast.showing import Shown
from wavecast.steps.overlap import shipped_overlap
from wavecast.steps.parallel_ranges import shipped_widening
from wavecast.steps.rank_player import ClusterPredictor, RankPlayer
from wavecast.steps.shares import Share
from wavecast.steps.streams import StreamTimes
from wavecast.traces.step import Op, Trace


@dataclass(frozen=True)
class StageTime:
    """The times of one pipeline stage, or of all ranks without a pipeline, in seconds."""

    stage: int
    ranks: int
    forward_s: float
    """The forward pass of one micro-batch."""
    backward_s: float
    """Its backward pass."""
    last_s: float
    """What the last micro-batch adds to that: reductions, clipping, the optimizer."""
    communication_s: float
    """The time of collectives in the whole step, hidden or not."""
    exposed_s: float
    """The part of it in which the rank computes nothing."""
    idle_s: float
    """The time in which the stage waits for other stages: the bubble of the pipeline."""


@dataclass(frozen=True, repr=False)
class ParallelPrediction(Shown):
    """The predicted time of one optimizer step on several GPUs.

    ```python
    prediction = wavecast.predict(trace, "h100-sxm-80gb", parallel=wavecast.Parallel(data=8))
    prediction.seconds, prediction.throughput, prediction.efficiency
    ```
    """

    trace: Trace
    """One micro-batch on one GPU."""
    device: Device
    cluster: Cluster
    step: ParallelStep
    """What each group of ranks runs."""
    seconds: float
    """The wall-clock time of one optimizer step."""
    low_s: float
    high_s: float
    stages: tuple[StageTime, ...]
    single_s: float
    """The time of one micro-batch with the optimizer on one GPU, as if it fitted there."""
    host: HostModel = REFERENCE_HOST
    """The host that issues the ops of each rank."""
    ops_range: tuple[float, float] = (1.0, 1.0)
    """The ends of the range before it was widened, relative to `seconds`: the errors of ops."""
    waiting_s: float = 0.0
    """The part of `seconds` in which ranks wait for the slowest of them."""
    unpredicted: tuple[Share, ...] = ()
    """Ops that nobody could predict. Their time is counted as 0."""
    player: RankPlayer | None = field(default=None, repr=False, compare=False)
    """What plays the ranks again, for `rank_timetables`. None in a prediction that was read."""

    def __post_init__(self) -> None:
        what = f"the step on {self.gpus} x {self.device.id}"
        refuse_impossible(what, self.seconds, self.low_s, self.high_s)

    def __repr__(self) -> str:
        times = f"seconds={self.seconds:.4g}, low_s={self.low_s:.4g}, high_s={self.high_s:.4g}"
        return f"ParallelPrediction({self.gpus} x {self.device.id!r}, {times})"

    @property
    def strategy(self) -> Parallel:
        """How the step is spread."""
        return self.step.strategy

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return self.strategy.gpus

    @property
    def samples(self) -> int | None:
        """Samples (the trace's `unit`) of one optimizer step of all GPUs; None when unknown."""
        if self.trace.samples is None:
            return None
        return self.trace.samples * self.strategy.microbatches * self.strategy.data

    @property
    def throughput(self) -> float | None:
        """Samples per second of all GPUs together; None when the trace has no sample count."""
        return None if self.samples is None else self.samples / self.seconds

    @property
    def efficiency(self) -> float:
        """The speed per GPU, divided by that of one GPU that runs the same micro-batches alone."""
        strategy = self.strategy
        alone_s = self.single_s * strategy.microbatches * strategy.data / self.gpus
        return alone_s / self.seconds

    @property
    def exposed_s(self) -> float:
        """The time in which the slowest stage only communicates."""
        return max(stage.exposed_s for stage in self.stages)

    @property
    def idle_s(self) -> float:
        """The time in which the busiest stage waits for other stages."""
        return min(stage.idle_s for stage in self.stages)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed."""
        return self.step.notes


def predict_parallel(
    trace: Trace, strategy: Parallel, predictor: ClusterPredictor, host: HostModel
) -> ParallelPrediction:
    """The time of one optimizer step that is spread over the GPUs of a cluster.

    Raises:
        InvalidInput: the step cannot be spread this way. The message says what would fit.
    """
    steps = ParallelSteps(trace, predictor, host)
    return steps.predict(steps.spread(strategy))


class ParallelSteps:
    """One micro-batch, spread and predicted by many strategies that share as much as they can.

    Args:
        trace: one micro-batch on one GPU.
        predictor: predicts ops on the GPU and its cluster.
        host: the host that issues the ops.
    """

    def __init__(self, trace: Trace, predictor: ClusterPredictor, host: HostModel) -> None:
        self.trace = trace
        self._predictor = predictor
        self._player = RankPlayer(predictor, host)
        predictor.learn([call.op for call in trace])
        self._spreader = Spreader(trace, lambda call: predictor.known_s(call.op))

    def spread(self, strategy: Parallel) -> ParallelStep:
        """What each group of ranks runs, with a pipeline's stages cut at equal predicted time.

        Raises:
            InvalidInput: the step cannot be spread this way. The message says what would fit.
        """
        _refuse_without_network(strategy, self._predictor.cluster)
        return self._spreader.spread(strategy)

    @cached_property
    def single_s(self) -> float:
        """The time of one micro-batch with the optimizer on one GPU, as if it fitted there."""
        return self._player.play(self._player.timed(without_collectives(self.trace))).seconds

    def predict(self, step: ParallelStep) -> ParallelPrediction:
        """The time of one optimizer step that was spread before."""
        strategy, predictor = step.strategy, self._predictor
        if step.boundary is None:
            seconds, stages = _without_pipeline(step.groups[0], strategy, self._player)
        else:
            seconds, stages = _with_pipeline(step, self._player)
        waiting_s = seconds * shipped_overlap().waiting(strategy.gpus)
        seconds += waiting_s
        narrow = _spread_of(step, predictor)
        below, above = shipped_widening().widened(*narrow)
        return ParallelPrediction(
            trace=self.trace,
            device=predictor.device,
            cluster=predictor.cluster,
            step=step,
            seconds=seconds,
            low_s=seconds * below,
            high_s=seconds * above,
            stages=stages,
            single_s=self.single_s,
            host=self._player.host,
            ops_range=narrow,
            waiting_s=waiting_s,
            unpredicted=_unpredicted(step, predictor),
            player=self._player,
        )


def _refuse_without_network(strategy: Parallel, cluster: Cluster) -> None:
    if cluster.network is None and strategy.gpus > cluster.domain_gpus:
        raise InvalidInput(
            f"{strategy.gpus} GPUs need several machines, and no network is known for "
            f"{cluster.id}; use at most {cluster.domain_gpus} GPUs, or another cluster "
            "(wavecast clusters)"
        )


def _without_pipeline(
    group: RankGroup, strategy: Parallel, player: RankPlayer
) -> tuple[float, tuple[StageTime, ...]]:
    part = group.parts[0]
    last = player.play(player.timed(part.last))
    repeated = strategy.microbatches - 1
    timed = player.timed(part.plain)
    plain = player.play(timed) if repeated else last
    forward = player.play(timed, 0, timed.turn)
    backward_s = max(plain.seconds - forward.seconds, 0.0)
    stage = StageTime(
        stage=0,
        ranks=group.ranks,
        forward_s=forward.seconds,
        backward_s=backward_s,
        last_s=last.seconds - plain.seconds,
        communication_s=repeated * plain.communication_s + last.communication_s,
        exposed_s=repeated * plain.exposed_s + last.exposed_s,
        idle_s=0.0,
    )
    return repeated * plain.seconds + last.seconds, (stage,)


@dataclass(frozen=True)
class _PartPlay:
    forward: StreamTimes
    backward: StreamTimes
    last: StreamTimes
    """The backward pass of the last micro-batch, and what follows."""

    @property
    def extra_s(self) -> float:
        return max(self.last.seconds - self.backward.seconds, 0.0)


def _play_part(part: ModelPart, player: RankPlayer) -> _PartPlay:
    plain, last = player.timed(part.plain), player.timed(part.last)
    return _PartPlay(
        player.play(plain, 0, plain.turn),
        player.play(plain, plain.turn),
        player.play(last, last.turn),
    )


def _with_pipeline(step: ParallelStep, player: RankPlayer) -> tuple[float, tuple[StageTime, ...]]:
    strategy = step.strategy
    stages, parts = strategy.pipeline, strategy.pipeline * strategy.virtual
    assert step.boundary is not None
    transfer_s = player.transfer_s(step.boundary, strategy)
    plays = [[_play_part(part, player) for part in group.parts] for group in step.groups]
    times = [
        PartTimes(
            play.forward.seconds,
            play.backward.seconds,
            play.backward.seconds / 2,
            transfer_s,
        )
        for play in (plays[index % stages][index // stages] for index in range(parts))
    ]
    orders = order_of(strategy.schedule, stages, parts, strategy.microbatches)
    played = play_schedule(orders, times)
    made, ends = [], []
    for group, own in zip(step.groups, plays, strict=True):
        extra_s = sum(play.extra_s for play in own)
        ends.append(played.ends_s[group.stage] + extra_s)
        count = strategy.microbatches
        made.append(
            StageTime(
                stage=group.stage,
                ranks=group.ranks,
                forward_s=sum(play.forward.seconds for play in own),
                backward_s=sum(play.backward.seconds for play in own),
                last_s=extra_s,
                communication_s=_total(own, count, "communication_s"),
                exposed_s=_total(own, count, "exposed_s"),
                idle_s=played.seconds - played.busy_s[group.stage],
            )
        )
    return max(ends), tuple(made)


def _total(plays: Sequence[_PartPlay], count: int, name: str) -> float:
    """The sum of a time over all micro-batches of a step."""
    times = [
        count * getattr(play.forward, name)
        + (count - 1) * getattr(play.backward, name)
        + getattr(play.last, name)
        for play in plays
    ]
    return float(sum(times))


def _spread_of(step: ParallelStep, predictor: ClusterPredictor) -> tuple[float, float]:
    """Low and high end of the step's time, relative to it, from the ranges of its ops.

    Errors of ops of one kind are taken as fully correlated, those of different kinds as
    independent.
    """
    kinds: dict[object, list[float]] = {}
    for op, count in _counted(step).items():
        answer = predictor.answer(op)
        if answer is not None:
            sums = kinds.setdefault(ops.kind(op), [0.0, 0.0, 0.0])
            sums[0] += count * answer.seconds
            sums[1] += count * (answer.seconds - answer.low_s)
            sums[2] += count * (answer.high_s - answer.seconds)
    table = np.array(list(kinds.values())) if kinds else np.zeros((1, 3))
    total = float(table[:, 0].sum()) or 1.0
    below, above = np.linalg.norm(table[:, 1]), np.linalg.norm(table[:, 2])
    return max(1 - float(below) / total, 0.0), 1 + float(above) / total


def _unpredicted(step: ParallelStep, predictor: ClusterPredictor) -> tuple[Share, ...]:
    counts: dict[str, int] = {}
    for op, count in _counted(step).items():
        if predictor.answer(op) is None and ops.launches(op):
            counts[op.name] = counts.get(op.name, 0) + count
    return tuple(Share(name, calls, 0.0) for name, calls in counts.items())


def _counted(step: ParallelStep) -> dict[Op, int]:
    """How often each op runs in the last micro-batch of all groups."""
    counts: dict[Op, int] = {}
    for group in step.groups:
        for part in group.parts:
            for op, count in part.last.counts.items():
                counts[op] = counts.get(op, 0) + count
    return counts
