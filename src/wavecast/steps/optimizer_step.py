"""One optimizer step of all GPUs: groups of ranks, each with its own host and streams.

All ranks of a group run the same. One GPU is one group of one rank with one micro-batch. Without a
pipeline there is one group; with one, each stage is a group, and the schedule puts their passes
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from wavecast.hardware.hosts import GraphedHost, Host
from wavecast.parallel.pipeline import PartTimes, Played, order_of, play_schedule
from wavecast.parallel.ranks import ModelPart, ParallelStep
from wavecast.parallel.spreading import exchanging_ranks
from wavecast.parallel.strategy import Parallel
from wavecast.results import Brief
from wavecast.steps.op_times import ClusterPredictor, shipped_overlap
from wavecast.steps.player import StepTime
from wavecast.steps.timed_trace import TimedTrace
from wavecast.traces.step import Op, Phase, Trace

_OPTIMIZER = list(Phase).index(Phase.OPTIMIZER)


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


class TimedPart(NamedTuple):
    """A part of the model on one rank."""

    plain: TimedTrace
    """A micro-batch whose gradients are only added up."""
    last: TimedTrace
    """The last micro-batch, with reductions and the optimizer."""


@dataclass(frozen=True, eq=False)
class TimedGroup:
    """Ranks that run the same."""

    ranks: int
    stage: int
    parts: tuple[TimedPart, ...]

    def runs(self, microbatches: int) -> list[tuple[TimedTrace, int]]:
        """The traces that a rank runs in an optimizer step, and how often each."""
        both = [((p.plain, microbatches - 1), (p.last, 1)) for p in self.parts]
        return [run for part in both for run in part if run[1]]


class _PassTimes(NamedTuple):
    """The passes of one part of the model."""

    forward: StepTime
    backward: StepTime
    last: StepTime
    """The backward pass of the last micro-batch, and what follows."""

    @property
    def extra_s(self) -> float:
        return max(self.last.seconds - self.backward.seconds, 0.0)

    def total(self, count: int, name: str) -> float:
        """The sum of a time over so many micro-batches."""
        forward, backward, last = (getattr(times, name) for times in self)
        return float(count * forward + (count - 1) * backward + last)


@dataclass(frozen=True, eq=False)
class OptimizerStep:
    """One optimizer step of all ranks."""

    groups: tuple[TimedGroup, ...]
    strategy: Parallel
    transfer_s: float | None = None
    """The time to send activations to the next stage. None without a pipeline."""

    @cached_property
    def ranks_s(self) -> float:
        """The time of the step if all ranks were equally fast."""
        if self.transfer_s is not None:
            extra = [sum(times.extra_s for times in own) for own in self._passes]
            ends_s = (self._schedule.ends_s[group.stage] for group in self.groups)
            return max(end_s + extra_s for end_s, extra_s in zip(ends_s, extra, strict=True))
        [part] = self.groups[0].parts
        repeated = self.strategy.microbatches - 1
        return (repeated * part.plain.step.seconds if repeated else 0.0) + part.last.step.seconds

    @property
    def waiting_s(self) -> float:
        """The time in which ranks wait for the slowest of them."""
        return self.ranks_s * shipped_overlap().waiting(self.strategy.gpus)

    @cached_property
    def stages(self) -> tuple[StageTime, ...]:
        """The times of each group of ranks."""
        if self.transfer_s is None:
            return (self._only_stage(),)
        count = self.strategy.microbatches
        return tuple(
            StageTime(
                stage=group.stage,
                ranks=group.ranks,
                forward_s=sum(times.forward.seconds for times in own),
                backward_s=sum(times.backward.seconds for times in own),
                last_s=sum(times.extra_s for times in own),
                communication_s=sum(times.total(count, "communication_s") for times in own),
                exposed_s=sum(times.total(count, "exposed_s") for times in own),
                idle_s=self._schedule.seconds - self._schedule.busy_s[group.stage],
            )
            for group, own in zip(self.groups, self._passes, strict=True)
        )

    @property
    def slowest(self) -> TimedGroup:
        """The group that works longest: the others wait for it."""
        if len(self.groups) == 1:
            return self.groups[0]
        return min(zip(self.stages, self.groups, strict=True), key=lambda pair: pair[0].idle_s)[1]

    def _only_stage(self) -> StageTime:
        [group] = self.groups
        [part] = group.parts
        repeated, last = self.strategy.microbatches - 1, part.last.step
        plain = part.plain.step if repeated else last
        forward = part.plain.play(0, part.plain.turn)
        return StageTime(
            stage=0,
            ranks=group.ranks,
            forward_s=forward.seconds,
            backward_s=max(plain.seconds - forward.seconds, 0.0),
            last_s=max(last.seconds - plain.seconds, 0.0),  # it adds up no gradients
            communication_s=repeated * plain.communication_s + last.communication_s,
            exposed_s=repeated * plain.exposed_s + last.exposed_s,
            idle_s=0.0,
        )

    @cached_property
    def _passes(self) -> list[list[_PassTimes]]:
        """The passes of the parts of each stage."""
        return [
            [
                _PassTimes(plain.play(0, plain.turn), plain.play(plain.turn), last.play(last.turn))
                for plain, last in group.parts
            ]
            for group in self.groups
        ]

    @cached_property
    def _schedule(self) -> Played:
        strategy = self.strategy
        stages, parts = strategy.pipeline, strategy.pipeline * strategy.virtual
        times = [
            PartTimes(
                passed.forward.seconds,
                passed.backward.seconds,
                passed.backward.seconds / 2,
                self.transfer_s or 0.0,
            )
            for passed in (self._passes[index % stages][index // stages] for index in range(parts))
        ]
        orders = order_of(strategy.schedule, stages, parts, strategy.microbatches)
        return play_schedule(orders, times)


@dataclass(frozen=True, eq=False, repr=False)
class Ranks(Brief):
    """What the ranks of a step on several GPUs run, and what predicts their ops."""

    spread: ParallelStep
    predictor: ClusterPredictor
    alone: TimedTrace
    """One micro-batch with the optimizer on one GPU, as if it fitted there."""

    def alone_s(self, traced: Trace) -> float:
        """The time of a GPU's share of the work, if one GPU did all of it alone.

        It accumulates the gradients of all micro-batches, and updates all weights once. Ranks that
        share the update save time that this GPU needs.

        Args:
            traced: the step before it was spread. Code that is parallel itself is what one rank
                runs.
        """
        strategy = self.spread.strategy
        optimizer = np.flatnonzero(self.alone.arrays.phase == _OPTIMIZER)
        end = int(optimizer[0]) if len(optimizer) else None
        whole_s = self.alone.step.seconds
        if strategy.microbatches > 1:
            whole_s += (strategy.microbatches - 1) * self.alone.play(0, end).seconds
        return whole_s * (1.0 if exchanging_ranks(traced) else strategy.data / strategy.gpus)

    def with_host(self, factor: float) -> Ranks:
        """The same with hosts that take so many times as long."""
        host = self.alone.host
        assert isinstance(host, Host | GraphedHost)  # recorded times are those of one GPU
        return replace(self, alone=replace(self.alone, host=host.scaled(factor)))

    def optimizer_step(self) -> OptimizerStep:
        """The step, with the times of what each group of ranks runs."""
        groups = tuple(
            TimedGroup(group.ranks, group.stage, tuple(map(self._timed_part, group.parts)))
            for group in self.spread.groups
        )
        return OptimizerStep(groups, self.spread.strategy, self._transfer_s())

    def _timed_part(self, part: ModelPart) -> TimedPart:
        return TimedPart(self._timed(part.plain), self._timed(part.last))

    def _timed(self, trace: Trace) -> TimedTrace:
        return replace(self.alone, trace=trace, answers=self.predictor.answers(trace))

    def _transfer_s(self) -> float | None:
        """The time to send the boundary of a pipeline's stages to the next one."""
        tensor = self.spread.boundary
        if tensor is None:
            return None
        stride = self.spread.strategy.axes["pipeline"].stride
        op = Op("nccl.send", (tensor,), (tensor,), (("ranks", 2), ("stride", stride)))
        return self.predictor.known_s(op)


def on_one_gpu(timed: TimedTrace) -> OptimizerStep:
    """The step of one GPU: one group of one rank."""
    return OptimizerStep((TimedGroup(1, 0, (TimedPart(timed, timed),)),), Parallel())


def whole_step(runs: Sequence[tuple[TimedTrace, int]], seconds: float) -> StepTime:
    """The times of a rank over all its micro-batches, in a step of so many seconds."""
    gpu_s = sum(times * timed.step.gpu_s for timed, times in runs)
    return StepTime(seconds, gpu_s, sum(times * timed.step.host_s for timed, times in runs))
