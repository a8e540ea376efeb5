"""The ways to spread a training step over a number of GPUs, and what became of each."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.footprint.memory import Memory
from wavecast.hardware.hosts import HostModel
from wavecast.ops import Kind
from wavecast.parallel.experts import expert_weights
from wavecast.parallel.gradients import (
    COMPUTE,
    GATHERS,
    REDUCTIONS,
    all_gather,
    all_reduce,
    flat,
    gradients,
    reduce_scatter,
    shard_of,
)
from wavecast.parallel.pipeline import (
    Cut,
    PartTimes,
    cut_model,
    memory_by_part,
    order_of,
    play_schedule,
)
from wavecast.parallel.ranks import held_microbatches
from wavecast.parallel.sharded import UPDATE, HostUpdate, gathered_dtype, gathered_units
from wavecast.parallel.strategy import Parallel, option_of
from wavecast.planning.cost import TOKENS
from wavecast.predictors.attainable import limits
from wavecast.results import Shown
from wavecast.steps.op_times import ClusterPredictor, shipped_overlap
from wavecast.steps.prediction import Prediction
from wavecast.steps.request import ParallelSteps
from wavecast.steps.timed_trace import TimedTrace
from wavecast.traces.recomputed import recomputed
from wavecast.traces.step import Allocation, Call, Op, Phase, Role, TensorSpec, Trace

TOO_LARGE = "does not fit: "
SLOWER = "slower than those shown, by its lower bound"
INTERRUPTED = "not tried: the search was interrupted"
OVERDUE = "not tried: the time for the search was over"


@dataclass(frozen=True)
class Layout(Shown):
    """One way to spread the step, and what became of it."""

    strategy: Parallel
    micro_batch: int
    """Samples of one micro-batch on one replica."""
    recompute: str = "none"
    """What the backward pass recomputes: none, selective or full."""
    memory: Memory | None = None
    """The memory of the fullest rank. None when it was clear before that it cannot fit."""
    prediction: Prediction | None = None
    """None when it does not fit, cannot be done, or was not played."""
    least_s: float | None = None
    """The least time that it could take, where it was not played because others are faster."""
    least_bytes: float | None = None
    """The least memory of the fullest rank, where it does not fit."""
    reason: str = ""
    """Why it cannot be used, or what it loses time with."""

    @property
    def seconds(self) -> float | None:
        """The time of one optimizer step; None when it cannot be used or was not played."""
        return None if self.prediction is None else self.prediction.seconds

    @property
    def fits(self) -> bool:
        """Whether it was not refused for its memory."""
        return not self.reason.startswith(TOO_LARGE)

    @property
    def summary(self) -> str:
        """Its time and itself, in one line."""
        seconds = "not known" if self.seconds is None else f"{self.seconds:.3g} s"
        return f"{seconds} with {option_of(self.strategy)}, micro-batch {self.micro_batch}"

    @property
    def is_tried(self) -> bool:
        """Whether the search came to it before it was stopped."""
        return self.reason not in (INTERRUPTED, OVERDUE)


def ranked(layouts: Sequence[Layout]) -> list[Layout]:
    """Layouts that work, fastest first, then the others."""
    working = [layout for layout in layouts if layout.seconds is not None]
    failed = [layout for layout in layouts if layout.seconds is None]
    return [*sorted(working, key=lambda layout: layout.seconds or 0.0), *failed]


def shortened(layouts: Sequence[Layout], best: int | None) -> list[Layout]:
    """Ranked layouts, of which those after the best keep their times and not their predictions."""
    if best is None:
        return list(layouts)
    rest = (
        layout
        if layout.prediction is None
        else replace(layout, prediction=None, memory=None, least_s=layout.seconds, reason=SLOWER)
        for layout in layouts[best:]
    )
    return [*layouts[:best], *rest]


def losses(prediction: Prediction) -> str:
    """What a strategy loses time with."""
    strategy = prediction.parallel
    on_host = strategy is not None and strategy.offload != "none"
    exposed = "exposed communication" + (" and the host's optimizer" if on_host else "")
    parts = {"waiting for other stages": prediction.idle_s, exposed: prediction.exposed_s}
    shares = [
        f"{name} {seconds / prediction.seconds:.0%}"
        for name, seconds in parts.items()
        if seconds > 0.005 * prediction.seconds
    ]
    return ", ".join(shares)


# The least time that a strategy can take, known before the step is spread that way.
#
# A search that knows it need not play most strategies. The bound is sound: it leaves calls out and
# never adds one. It has the calls of a rank's micro-batch as its layers are sharded, played on its
# host and its streams; the collectives of the data axis, each stream by itself; and a pipeline's
# schedule, played with the GPU's time of each stage alone.


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


# The strategies that a search may choose from.


MEMORY_MARGIN = 0.08
"""The share of a GPU's memory that a strategy leaves free unless asked: fragments, other sequences,
and what a library allocates that nobody traced."""


@dataclass(frozen=True)
class Search:
    """What is looked for."""

    gpus: int
    global_batch: int
    micro_batches: tuple[int, ...] = (1, 2, 4, 8, 16)
    most_tensor: int | None = None
    """The largest tensor size to try. None for the GPUs that are linked without a network."""
    tensor_plan: Mapping[str, str] | None = None
    """How modules are split among tensor ranks. None to find it."""
    recompute: tuple[str, ...] = ("none",)
    """What the backward pass may recompute, the least first: none, selective, full."""
    offload: bool = True
    """Whether optimizer states may be kept in the host's memory."""
    best: int | None = None
    """How many of the best are wanted. None for all, of which none is left out by its bound."""
    memory_margin: float = MEMORY_MARGIN
    """The share of a GPU's memory that must stay free."""
    within_s: float | None = None
    """When the search ends with what it has. None when all strategies were tried."""
    first_fitting: bool = False
    """Whether it ends as soon as one strategy fits."""

    def __post_init__(self) -> None:
        if not 0 <= self.memory_margin < 1:
            raise InvalidInput(
                f"the memory margin is {self.memory_margin:g}; it is the share of a GPU's memory "
                "that stays free, at least 0 and below 1, such as 0.08"
            )
        if self.within_s is not None and not self.within_s > 0:
            raise InvalidInput(f"a search takes more than {self.within_s:g} seconds")


def candidates(
    search: Search, domain_gpus: int, blocks: int, experts: int = 1
) -> Iterator[tuple[Parallel, int]]:
    """The strategies to try, each with its micro-batch."""
    for tensor, context, pipeline in _axes(search, domain_gpus, blocks):
        data = search.gpus // (tensor * context * pipeline)
        if search.global_batch % data:
            continue
        plan = search.tensor_plan if tensor > 1 else None
        axes = Parallel(
            data=data, tensor=tensor, context=context, pipeline=pipeline, tensor_plan=plan
        )
        for micro in search.micro_batches:
            count, rest = divmod(search.global_batch // data, micro)
            if rest or not count:
                continue
            for strategy in _variants(replace(axes, microbatches=count), blocks):
                for expert in _powers(math.gcd(experts, data * tensor), experts):
                    chosen = replace(strategy, expert=expert)
                    yield chosen, micro
                    if search.offload and (chosen.shard or data == 1):
                        yield replace(chosen, offload="optimizer"), micro


def _axes(search: Search, domain_gpus: int, blocks: int) -> Iterator[tuple[int, int, int]]:
    """The sizes of tensor, context and pipeline."""
    most_tensor = search.most_tensor or domain_gpus
    for tensor in _powers(search.gpus, most_tensor):
        for context in _powers(search.gpus // tensor, max(domain_gpus // tensor, 1)):
            for pipeline in _powers(search.gpus // (tensor * context), max(blocks, 1)):
                yield tensor, context, pipeline


def _variants(axes: Parallel, blocks: int) -> Iterator[Parallel]:
    """The schedules of a pipeline, and what is sharded among which ranks."""
    for sequence in (True, False) if axes.tensor > 1 else (False,):
        for scheduled in _schedules(replace(axes, sequence=sequence), blocks):
            yield scheduled
            for group in dict.fromkeys((*_powers(axes.data, axes.data), axes.data)):
                if group == 1:
                    continue
                chosen = None if group == axes.data else group
                for shard in (1, 2, 3):
                    sharded = replace(scheduled, shard=shard, shard_group=chosen)
                    yield sharded
                    if shard == 3:
                        yield replace(sharded, reshard=False)


def _schedules(axes: Parallel, blocks: int) -> Iterator[Parallel]:
    yield axes
    if axes.pipeline == 1:
        return
    yield replace(axes, schedule="zero-bubble")
    for virtual in _powers(blocks, blocks)[1:]:
        fits = blocks >= virtual * axes.pipeline and axes.microbatches % axes.pipeline == 0
        if fits and virtual <= _MOST_VIRTUAL:
            yield replace(axes, virtual=virtual)


_MOST_VIRTUAL = 4
"""The most parts that a stage has. More of them send more, and hide hardly more of the bubble."""


def shared_layers(strategy: Parallel) -> tuple[int, ...]:
    """What strategies have in common whose layers are sharded alike."""
    tokens = strategy.data * strategy.context if strategy.expert > 1 else 0
    return strategy.tensor, strategy.context, strategy.expert, tokens, not strategy.sequence


def shards_layers(shared: tuple[int, ...]) -> bool:
    """Whether layers are sharded, from what such strategies have in common."""
    return max(shared[:3]) > 1


def _powers(total: int, most: int) -> list[int]:
    """The powers of two that divide a number, up to the largest allowed."""
    powers = [1]
    while total % (2 * powers[-1]) == 0 and 2 * powers[-1] <= most:
        powers.append(2 * powers[-1])
    return powers


# The batches with which language models were trained: what a global batch is compared with.


PUBLISHED = (
    (1.3e9, 1.0e6, "GPT-3 XL (Brown et al., 2020, table 2.1)"),
    (13e9, 4.0e6, "Llama 2 7B and 13B (Touvron et al., 2023, section 2.2)"),
    (70e9, 4.0e6, "Llama 2 70B (Touvron et al., 2023, section 2.2)"),
    (405e9, 16.0e6, "Llama 3 405B (Grattafiori et al., 2024, section 3.4.1)"),
    (1e13, 62.9e6, "DeepSeek-V3 (2024, section 4.2: 15,360 sequences of 4,096 tokens)"),
)
"""The largest batch, in tokens, that was published for models of at most so many parameters."""


def batch_warning(trace: Trace, global_batch: int, samples: int) -> str | None:
    """A sentence if a global batch is larger than such models are known to be trained with.

    Args:
        trace: one micro-batch.
        global_batch: the sequences of one optimizer step.
        samples: the sequences of the trace.
    """
    if trace.unit != TOKENS or trace.samples is None:
        return None
    tokens = global_batch * trace.samples / samples
    sizes = {v.parameter: v.spec.numel for v in trace.values if v.parameter}
    parameters = sum(sizes.values())
    # Names round the number of parameters: Llama 2 13B has 13.0 billion, and Llama 3 8B has 8.03.
    batch, source = next((b, s) for most, b, s in PUBLISHED if parameters <= 1.1 * most)
    if not parameters or tokens <= 1.1 * batch:  # 4 million is also said of 2^22
        return None
    return (
        f"the global batch has {tokens / 1e6:.1f} million tokens; the largest published for a "
        f"model of this size has {batch / 1e6:.1f} million ({source}), and a larger one may need "
        "more tokens to reach the same loss"
    )


# How much of the GPUs' arithmetic a training uses: model FLOPs utilisation.


def model_flops_utilization(step: Prediction) -> float | None:
    """The share of the GPUs' dense arithmetic rates that the model's own FLOPs use (MFU).

    As Chowdhery et al. define it ("PaLM", 2022, appendix B): the FLOPs of forward and backward
    pass, without those that are recomputed, over what the GPUs could compute in the same time. The
    rates are those of the units on which the matmuls run. None if a rate is not known.
    """
    again = recomputed(step.trace.calls)
    ideal_s = 0.0
    for position, call in enumerate(step.trace.calls):
        if position in again or call.phase is Phase.OPTIMIZER or not ops.launches(call.op):
            continue
        arithmetic = [limit for limit in limits(call.op, step.device) if limit.unit is not None]
        ideal_s += sum(limit.seconds for limit in arithmetic)
    replicas = 1 if step.parallel is None else step.parallel.data
    used_s = ideal_s * step.microbatches * replicas / step.gpus
    return used_s / step.seconds if ideal_s else None


# What network a training needs: its best strategies on faster and slower networks.


FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""The speeds that are tried, relative to the network of the cluster."""


@dataclass(frozen=True)
class NetworkPoint:
    """One speed of the network, and the best strategy with it."""

    factor: float
    """The speed, relative to the network of the cluster."""
    bytes_per_s: float
    """The speed of all adapters of one machine together, in one direction."""
    strategy: Parallel
    seconds: float
    """One optimizer step."""
    relative: float
    """The speed of the training, relative to the network of the cluster."""


def network_points(
    layouts: Sequence[Layout], predictor: ClusterPredictor, host: HostModel
) -> list[NetworkPoint]:
    """The fastest of some layouts on slower and faster networks.

    Empty if the GPUs are in one machine, or the network is not known. Layouts that are not given
    are not tried again, so the table says what the network costs these.
    """
    cluster = predictor.cluster
    steps = [
        (layout.strategy, layout.prediction) for layout in layouts if layout.prediction is not None
    ]
    if cluster.network is None or not steps or steps[0][0].gpus <= cluster.domain_gpus:
        return []
    points: list[NetworkPoint] = []
    usual_s = steps[0][1].seconds
    for factor in FACTORS:
        speed = cluster.network.bytes_per_s * factor
        other = predictor.on(replace(cluster, network=replace(cluster.network, bytes_per_s=speed)))
        timed = [
            (ParallelSteps(step.trace, other, host).predict(step.spread).seconds, strategy)
            for strategy, step in steps
            if step.spread is not None
        ]
        seconds, strategy = min(timed, key=lambda pair: pair[0])
        points.append(NetworkPoint(factor, speed, strategy, seconds, usual_s / seconds))
    return points
