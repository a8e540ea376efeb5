"""The least time that a strategy can take, known before the step is spread that way.

A search that knows it need not play most strategies. The bound is sound: it leaves calls out and
never adds one. It has the calls of a rank's micro-batch as its layers are sharded, played on its
host and its streams; the collectives of the data axis, each stream by itself; and a pipeline's
schedule, played with the GPU's time of each stage alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from wavecast import ops
from wavecast.ops import Kind
from wavecast.parallel.editing import COMPUTE, GATHERS, REDUCTIONS, flat
from wavecast.parallel.exchanges import all_gather, all_reduce, reduce_scatter, shard_of
from wavecast.parallel.gradients import gradients
from wavecast.parallel.mixtures import expert_weights
from wavecast.parallel.offload import HostUpdate
from wavecast.parallel.pipeline import cut_model
from wavecast.parallel.rank_memory import kept_bytes
from wavecast.parallel.schedules import PartTimes, order_of, play_schedule
from wavecast.parallel.sharded import gathered_dtype, gathered_units
from wavecast.parallel.strategy import Parallel
from wavecast.steps.op_times import ClusterPredictor
from wavecast.steps.overlap import shipped_overlap
from wavecast.steps.timed_trace import TimedTrace
from wavecast.traces.step import Call, Phase, Role, Trace

_ROUNDING = 1e-9
"""Sums in another order differ in their last digits."""


@dataclass(frozen=True, eq=False)
class RankWork:
    """One micro-batch of a rank, before its model is cut into stages and gradients are reduced."""

    timed: TimedTrace
    end: int
    """The position where the backward pass ends."""
    predictor: ClusterPredictor
    _traffic_of: dict[tuple[object, ...], tuple[float, float]] = field(default_factory=dict)
    _parts_of: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    _pipelines_s: dict[tuple[object, ...], float] = field(default_factory=dict)
    _updates_s: dict[tuple[object, ...], float] = field(default_factory=dict)

    @property
    def trace(self) -> Trace:
        """The calls of the micro-batch, with the optimizer."""
        return self.timed.trace

    @cached_property
    def whole_s(self) -> float:
        """The time of forward and backward pass after each other."""
        return self.timed.play(0, self.end).seconds

    @cached_property
    def kernels_s(self) -> float:
        """The time of the kernels and of the gaps between them, without collectives."""
        works, arrays = self.timed.arrays.works, self.timed.arrays
        computing = [ops.kind(call.op) is not Kind.COLLECTIVE for call in works]
        own_s = sum(
            seconds
            for seconds, work in zip(
                self.timed.taken_s[: self.end].tolist(), arrays.work[: self.end], strict=True
            )
            if computing[work]
        )
        return float(own_s)

    @cached_property
    def gradient_bytes(self) -> int:
        """The gradients that all data-parallel ranks have, experts not counted."""
        experts = expert_weights(self.trace)
        return sum(g.nbytes for g in gradients(self.trace) if g.parameter not in experts)

    @cached_property
    def units(self) -> Mapping[tuple[int, int, bool], int]:
        """How many FSDP units there are of each size, in bytes of float32, roots apart.

        The second size is that of the weights with gradients."""
        units = gathered_units(self.trace, self.end)
        return Counter((*sizes, bool(name)) for name, sizes in units.items())

    @cached_property
    def dtype(self) -> str:
        """The data type in which FSDP gathers weights."""
        return gathered_dtype(self.trace)

    @cached_property
    def kept_bytes(self) -> Mapping[bool, int]:
        """What the forward pass keeps for the backward pass, by whether autocast's copies of
        weights are part of it: FSDP has none."""
        return {copies: kept_bytes(self.trace, copies) for copies in (True, False)}

    def least_s(self, strategy: Parallel) -> float:
        """The least time of an optimizer step."""
        every_s, last_s = self._known_traffic(strategy)
        count = strategy.microbatches
        if strategy.pipeline == 1:
            first_s = max(self.whole_s, every_s)
            seconds = (count - 1) * first_s + max(first_s, last_s) + self._host_s(strategy)
        else:
            seconds = max(self._pipeline_s(strategy), count * every_s / strategy.pipeline)
        return seconds * _waiting(strategy)

    def _host_s(self, strategy: Parallel) -> float:
        """The time of the optimizer on the host, beside which nothing runs."""
        if strategy.offload == "none":
            return 0.0
        axes = strategy.axes
        key = axes["shard"], axes["expert_replica"], strategy.gpus
        if key not in self._updates_s:
            update = HostUpdate.of(self.trace, strategy)
            self._updates_s[key] = self.predictor.known_s(update.call(strategy.gpus).op)
        return self._updates_s[key]

    def _pipeline_s(self, strategy: Parallel) -> float:
        """The least time of a pipeline: its schedule, played with the GPU's times alone."""
        key = strategy.pipeline, strategy.virtual, strategy.microbatches, strategy.schedule
        if key not in self._pipelines_s:
            parts = strategy.pipeline * strategy.virtual
            orders = order_of(strategy.schedule, strategy.pipeline, parts, strategy.microbatches)
            times = [PartTimes(f, b, b / 2) for f, b in self._parts(parts)]
            self._pipelines_s[key] = play_schedule(orders, times).seconds
        return self._pipelines_s[key]

    def _parts(self, parts: int) -> list[tuple[float, float]]:
        """The GPU's time of forward and backward pass in each part of the model.

        Collectives of sharded layers are waited for at once, but for those of rings (context).
        """
        if parts not in self._parts_of:
            owners = cut_model(self.trace, parts, lambda call: self.predictor.known_s(call.op))
            sums = np.zeros((parts, 2))
            turn, seconds = self.timed.turn, self._busy_s
            for at, owner in enumerate(owners.owners[: self.end]):
                sums[owner, int(at >= turn)] += seconds[at]
            self._parts_of[parts] = [(float(f), float(b)) for f, b in sums]
        return self._parts_of[parts]

    @cached_property
    def _busy_s(self) -> list[float]:
        """The GPU's time of each call, without what other calls may hide."""
        rings = any(call.op.name == "nccl.send" for call in self.trace)
        hidden = self.timed.arrays.stream != COMPUTE if rings else False
        return list(np.where(hidden, 0.0, self.timed.taken_s))

    def _known_traffic(self, strategy: Parallel) -> tuple[float, float]:
        axes = strategy.axes
        key = strategy.shard, strategy.reshard, *(axes[n] for n in ("data", "shard", "replica"))
        if key not in self._traffic_of:
            self._traffic_of[key] = self._traffic(strategy)
        return self._traffic_of[key]

    def _traffic(self, strategy: Parallel) -> tuple[float, float]:
        """The seconds of the data axis's busiest stream, in every micro-batch and in the last."""
        axes = strategy.axes
        if not strategy.shard:
            total = flat(self.gradient_bytes, "float32")
            return 0.0, self._sum(all_reduce(total, axes["data"], REDUCTIONS, Phase.BACKWARD))
        if strategy.shard == 3:
            gathers_s = reductions_s = 0.0
            for (nbytes, reduced, is_block), times in self.units.items():
                again = 2 if strategy.reshard and is_block else 1  # the root's weights stay
                gathers_s += times * again * self._sum(self._gather(strategy, nbytes))
                if reduced:
                    reductions_s += times * self._sum(*_reductions(strategy, reduced))
            return max(gathers_s, reductions_s), 0.0
        reduced_s = self._sum(*_reductions(strategy, self.gradient_bytes))
        return (reduced_s, 0.0) if strategy.shard == 2 else (0.0, reduced_s)

    def _gather(self, strategy: Parallel, nbytes: int) -> Call:
        """The gather of the weights of an FSDP unit."""
        axis = strategy.axes["shard"]
        size = nbytes if self.dtype == "float32" else nbytes // 2
        share = shard_of(flat(size, self.dtype), axis)
        return all_gather(share, axis, GATHERS, Phase.FORWARD)

    def _sum(self, *calls: Call) -> float:
        return sum(self.predictor.known_s(call.op) for call in calls if call.op.attr("ranks") != 1)


class LayerBounds:
    """What one way to shard layers says about others, before they are sharded so.

    Without sequence parallelism tensor ranks run the kernels that they run with it, and larger
    ones between the matmuls.
    """

    def __init__(self) -> None:
        self._kernels_s: dict[tuple[int, ...], float] = {}

    def add(self, key: tuple[int, ...], work: RankWork | None) -> None:
        """Remember what was found for layers (`shared_layers`) and a micro-batch."""
        if work is not None:
            self._kernels_s[key] = work.kernels_s

    def before(self, key: tuple[int, ...]) -> Callable[[Parallel], float]:
        """The bound of strategies whose layers are not sharded yet."""
        *others, alone, micro = key
        kernels_s = self._kernels_s.get((*others, False, micro), 0.0) if alone else 0.0

        def bound(strategy: Parallel) -> float:
            each_s = kernels_s / strategy.pipeline
            return strategy.microbatches * each_s * _waiting(strategy)

        return bound


@dataclass(frozen=True)
class RankStates:
    """The bytes of what a step keeps, experts apart: dense first."""

    weights: tuple[int, int]
    gradients: tuple[int, int]
    optimizer: tuple[int, int]

    @staticmethod
    def of(trace: Trace) -> RankStates:
        """The weights and optimizer states of a micro-batch on one GPU."""
        names = expert_weights(trace)
        experts = {name.rpartition(".")[0] for name in names}
        sums: dict[tuple[Role, bool], int] = defaultdict(int)
        for allocation in trace.allocations:
            if allocation.role is not Role.GRADIENT:
                sums[allocation.role, allocation.module in experts] += allocation.nbytes
        for gradient in gradients(trace):
            sums[Role.GRADIENT, gradient.parameter in names] += gradient.nbytes
        roles = Role.PARAMETER, Role.GRADIENT, Role.OPTIMIZER_STATE
        return RankStates(*((sums[role, False], sums[role, True]) for role in roles))

    @property
    def has_optimizer(self) -> bool:
        """Whether the optimizer keeps states."""
        return any(self.optimizer)

    def least_bytes(self, strategy: Parallel) -> float:
        """The weights, gradients and optimizer states of one rank."""
        on_gpu = strategy.offload == "none"
        kept = self._bytes(self.optimizer, strategy, strategy.shard >= 1) if on_gpu else 0.0
        kept += self._bytes(self.gradients, strategy, strategy.shard >= 2)
        return kept + self._bytes(self.weights, strategy, strategy.shard >= 3)

    def _bytes(self, kinds: tuple[int, int], strategy: Parallel, is_sharded: bool) -> float:
        # With sequence parallelism each tensor rank has whole experts.
        whole = strategy.expert if strategy.sequence else strategy.tensor * strategy.expert
        axes = strategy.axes
        ways = (strategy.tensor, axes["shard"].size), (whole, axes["expert_replica"].size)
        parts = (n / s / (r if is_sharded else 1) for n, (s, r) in zip(kinds, ways, strict=True))
        return sum(parts) / strategy.pipeline

    def with_activations(self, strategy: Parallel, kept_bytes: int) -> float:
        """The least memory of the fullest rank where the backward pass begins.

        Stage s of a pipeline holds the activations of at least `stages - s` micro-batches, as far
        as there are so many. How they are distributed is not known, so it is as good as can be.
        """
        stages, count = strategy.pipeline, strategy.microbatches
        made = self._bytes(self.gradients, strategy, strategy.shard >= 2) if count == 1 else 0.0
        states = self.least_bytes(strategy) - made
        held = sum(1 / min(stages - stage, count) for stage in range(stages))
        return max(states + kept_bytes / stages, kept_bytes / held)


def _waiting(strategy: Parallel) -> float:
    """How much longer a step takes since ranks wait for each other."""
    return (1 + shipped_overlap().waiting(strategy.gpus)) * (1 - _ROUNDING)


def _reductions(strategy: Parallel, nbytes: int) -> Iterator[Call]:
    """The reductions of gradients: among the ranks that share a copy, then among the copies."""
    axes = strategy.axes
    whole = flat(nbytes, "float32")
    yield reduce_scatter(whole, axes["shard"], REDUCTIONS, Phase.BACKWARD)
    yield all_reduce(shard_of(whole, axes["shard"]), axes["replica"], REDUCTIONS, Phase.BACKWARD)
