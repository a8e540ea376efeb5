"""The least time that a strategy can take, known before the step is spread that way.

A search that knows it need not play most strategies. The bound is sound: it leaves calls out and
never adds one. It has the calls of a rank's micro-batch as its layers are sharded, played on its
host and its streams; the collectives of the data axis, each stream by itself; and a pipeline's
schedule, played with the GPU's time of each stage alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from wavecast import ops
from wavecast.ops import Kind
from wavecast.parallel.editing import COMPUTE, GATHERS, REDUCTIONS, flat
from wavecast.parallel.exchanges import all_gather, all_reduce, reduce_scatter, shard_of
from wavecast.parallel.gradients import gradients
from wavecast.parallel.mixtures import expert_weights
from wavecast.parallel.offload import UPDATE, HostUpdate
from wavecast.parallel.pipeline import Cut, cut_model, memory_by_part
from wavecast.parallel.rank_memory import held_microbatches
from wavecast.parallel.schedules import PartTimes, order_of, play_schedule
from wavecast.parallel.sharded import gathered_dtype, gathered_units
from wavecast.parallel.strategy import Parallel
from wavecast.steps.op_times import ClusterPredictor
from wavecast.steps.overlap import shipped_overlap
from wavecast.steps.timed_trace import TimedTrace
from wavecast.traces.step import Allocation, Call, Op, Phase, Role, TensorSpec, Trace

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
    _cuts: dict[int, Cut] = field(default_factory=dict)
    _parts_of: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    _states_of: dict[int, list[RankStates]] = field(default_factory=dict)
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

    def least_s(self, strategy: Parallel) -> float:
        """The least time of an optimizer step."""
        every_s, last_s = self._known_traffic(strategy)
        count = strategy.microbatches
        if strategy.pipeline == 1:
            first_s = max(self.whole_s, every_s)
            seconds = (count - 1) * first_s + max(first_s, last_s) + self._host_s(strategy)
        else:
            seconds = max(self._pipeline_s(strategy), count * every_s / strategy.pipeline)
            seconds += self._stage_host_s(strategy)
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

    def _stage_host_s(self, strategy: Parallel) -> float:
        """The least time of the optimizer on the host of a stage, which ends after its passes."""
        if strategy.offload == "none":
            return 0.0
        stages = strategy.pipeline
        parts = self._states(stages * strategy.virtual)
        own = (parts[stage::stages] for stage in range(stages))
        nbytes = int(min(sum(part.optimizer_bytes(strategy) for part in held) for held in own))
        traffic = TensorSpec((2 * nbytes,), "uint8", device="cpu")
        return self.predictor.known_s(Op(UPDATE, (traffic,), (), (("ranks", strategy.gpus),)))

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
            sums = np.zeros((parts, 2))
            turn, seconds = self.timed.turn, self._busy_s
            for at, owner in enumerate(self._cut(parts).owners[: self.end]):
                sums[owner, int(at >= turn)] += seconds[at]
            self._parts_of[parts] = [(float(f), float(b)) for f, b in sums]
        return self._parts_of[parts]

    def _cut(self, parts: int) -> Cut:
        """Where the model is cut, as it will be when it is spread."""
        if parts not in self._cuts:
            known_s = self.predictor.known_s
            self._cuts[parts] = cut_model(self.trace, parts, lambda call: known_s(call.op))
        return self._cuts[parts]

    def least_bytes(self, strategy: Parallel) -> float:
        """The least memory of the fullest rank, where its backward pass begins."""
        stages = strategy.pipeline
        parts = self._states(stages * strategy.virtual)
        return max(
            RankStates.held_bytes(parts[stage::stages], strategy, held)
            for stage, held in enumerate(held_microbatches(strategy))
        )

    def _states(self, parts: int) -> list[RankStates]:
        """What each part of the model keeps."""
        if parts not in self._states_of:
            cut = self._cut(parts) if parts > 1 else None
            self._states_of[parts] = RankStates.of_parts(self.trace, cut, parts, self.end)
        return self._states_of[parts]

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


_Pair = tuple[int, int]
"""The bytes of dense layers, and of experts."""


@dataclass(frozen=True)
class RankStates:
    """The bytes of what a step keeps, or one part of its model."""

    weights: _Pair
    gradients: _Pair
    optimizer: _Pair
    activations: int
    """What the forward pass keeps for the backward pass."""
    copies: int
    """The copies of weights among it, which FSDP may make in its own way."""

    @staticmethod
    def of(trace: Trace) -> RankStates:
        """What a micro-batch keeps on one GPU."""
        return RankStates.of_parts(trace, None, 1, len(trace))[0]

    @staticmethod
    def of_parts(trace: Trace, cut: Cut | None, parts: int, end: int) -> list[RankStates]:
        """What each part of a model keeps.

        Args:
            trace: one micro-batch.
            cut: where the model is cut. None for one part.
            parts: the number of parts.
            end: the position where the backward pass ends.
        """
        owners = (0,) * len(trace) if cut is None else cut.owners
        every = [list(range(len(trace.allocations)))]
        homes = every if cut is None else memory_by_part(trace, cut, owners[:end], parts)
        experts = expert_weights(trace)
        modules = {name.rpartition(".")[0] for name in experts}
        sums: list[dict[tuple[Role, bool], int]] = [defaultdict(int) for _ in range(parts)]
        turn = _turn(trace)
        for own, numbers in zip(sums, homes, strict=True):
            for allocation in map(trace.allocations.__getitem__, numbers):
                if _is_kept(allocation, turn):
                    own[allocation.role, allocation.module in modules] += allocation.nbytes
        for gradient in gradients(trace):
            own = sums[owners[gradient.ready]]
            own[Role.GRADIENT, gradient.parameter in experts] += gradient.nbytes
        return [RankStates._summed(own) for own in sums]

    @staticmethod
    def _summed(sums: Mapping[tuple[Role, bool], int]) -> RankStates:
        def pair(role: Role) -> _Pair:
            return sums[role, False], sums[role, True]

        copies = sum(pair(Role.WEIGHT_COPY))
        kept = copies + sum(pair(Role.INTERMEDIATE)) + sum(pair(Role.INPUT))
        states = pair(Role.PARAMETER), pair(Role.GRADIENT), pair(Role.OPTIMIZER_STATE)
        return RankStates(*states, kept, copies)

    @property
    def has_optimizer(self) -> bool:
        """Whether the optimizer keeps states."""
        return any(self.optimizer)

    def least_bytes(self, strategy: Parallel) -> float:
        """The weights, gradients and optimizer states of one rank."""
        # With sequence parallelism each tensor rank has whole experts.
        whole = strategy.expert if strategy.sequence else strategy.tensor * strategy.expert
        states = self._shared(strategy, with_gradients=True, ways=(strategy.tensor, whole))
        return states / strategy.pipeline

    def least_with_activations(self, strategy: Parallel) -> float:
        """The least memory of the fullest rank, before layers are sharded and the model is cut.

        Stage s of a pipeline holds the activations of at least `stages - s` micro-batches, as far
        as there are so many. How they are distributed is not known, so it is as good as can be.
        """
        stages, count = strategy.pipeline, strategy.microbatches
        kept = self._kept(strategy) / (strategy.tensor * strategy.context)
        whole = strategy.expert if strategy.sequence else strategy.tensor * strategy.expert
        states = self._shared(strategy, with_gradients=count > 1, ways=(strategy.tensor, whole))
        held = sum(1 / min(stages - stage, count) for stage in range(stages))
        return max((states + kept) / stages, kept / held)

    @staticmethod
    def held_bytes(parts: Sequence[RankStates], strategy: Parallel, held: int) -> float:
        """The least memory of a rank with these parts, where a backward pass begins.

        Args:
            parts: the parts of the model that it has.
            strategy: how the step is spread.
            held: the micro-batches whose activations it holds.
        """
        alone = strategy.microbatches == 1
        kept = [part._kept(strategy) for part in parts]
        states = sum(part._shared(strategy, with_gradients=not alone) for part in parts)
        return states + max(kept) + (held - 1) * (sum(kept) // len(parts))

    def optimizer_bytes(self, strategy: Parallel) -> float:
        """The optimizer states that belong to one data-parallel rank."""
        axes = strategy.axes
        ranks = axes["shard"].size, axes["expert_replica"].size
        return sum(nbytes / rank for nbytes, rank in zip(self.optimizer, ranks, strict=True))

    def _kept(self, strategy: Parallel) -> int:
        return self.activations - (self.copies if strategy.shard == 3 else 0)

    def _shared(self, strategy: Parallel, *, with_gradients: bool, ways: _Pair = (1, 1)) -> float:
        """The weights and states, of which layers are sharded so many ways, among the data axis."""
        stage = strategy.shard
        held = [(self.weights, stage >= 3)]
        if with_gradients:
            held.append((self.gradients, stage >= 2))
        if strategy.offload == "none":
            held.append((self.optimizer, stage >= 1))
        axes = strategy.axes
        ranks = axes["shard"].size, axes["expert_replica"].size
        return sum(
            nbytes / way / (rank if is_sharded else 1)
            for pair, is_sharded in held
            for nbytes, way, rank in zip(pair, ways, ranks, strict=True)
        )


def _turn(trace: Trace) -> int:
    """The position where the backward pass begins."""
    backward = (at for at, call in enumerate(trace) if call.phase is Phase.BACKWARD)
    return next(backward, len(trace))


def _is_kept(allocation: Allocation, turn: int) -> bool:
    """Whether memory is held where the backward pass begins, gradients apart."""
    if allocation.role in (Role.PARAMETER, Role.OPTIMIZER_STATE):
        return True
    born, freed = allocation.born, allocation.freed
    return born is not None and born < turn and (freed is None or freed > turn)


def _waiting(strategy: Parallel) -> float:
    """How much longer a step takes since ranks wait for each other."""
    return (1 + shipped_overlap().waiting(strategy.gpus)) * (1 - _ROUNDING)


def _reductions(strategy: Parallel, nbytes: int) -> Iterator[Call]:
    """The reductions of gradients: among the ranks that share a copy, then among the copies."""
    axes = strategy.axes
    whole = flat(nbytes, "float32")
    yield reduce_scatter(whole, axes["shard"], REDUCTIONS, Phase.BACKWARD)
    yield all_reduce(shard_of(whole, axes["shard"]), axes["replica"], REDUCTIONS, Phase.BACKWARD)
