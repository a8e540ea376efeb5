"""The axes that shard the layers themselves: context, expert and tensor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from wavecast.errors import InvalidInput
from wavecast.parallel.experts import expert_axis, expert_weights
from wavecast.parallel.gradients import COMPUTE, TRANSFERS, exchange, kernel, wait
from wavecast.parallel.sharding.placements import (
    Placement,
    Shard,
    ShardLayout,
    even,
    layout_of,
    local,
)
from wavecast.parallel.sharding.propagation import Propagation
from wavecast.parallel.sharding.rank_trace import ShardedAxis, Surroundings, rank_trace
from wavecast.parallel.sharding.state import Policy
from wavecast.parallel.sharding.units import Numbers, Source, Units
from wavecast.parallel.strategy import Parallel, RankAxis, divisors
from wavecast.traces.recomputed import block_finder
from wavecast.traces.step import Call, Op, Phase, Scalar, TensorSpec, Trace


class Layers:
    """The layers of a step, sharded by one strategy after another."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._units: Units | None = None

    def sharded(self, strategy: Parallel) -> tuple[Trace, tuple[str, ...]]:
        """The step of one rank of the axes that shard layers, and what was assumed.

        Raises:
            InvalidInput: the layers cannot be sharded so. The message says what would fit.
        """
        if strategy.tensor == strategy.context == strategy.expert == 1:
            return self._trace, ()
        if not self._trace.values:
            raise InvalidInput(
                "tensor, sequence, context and expert parallelism follow the values of a step, and "
                "this trace has none (it is a profile, or was written by an earlier version); "
                "trace the step again, or use data, shard and pipeline only"
            )
        if self._units is None:
            self._units = Units(self._trace)
        axes: list[ShardedAxis] = []
        notes: tuple[str, ...] = ()
        context = context_axis(self._trace, strategy)
        if context is not None:
            axes.append(context)
            notes += (NOTE,)
        for shard in (expert_axis, tensor_axis):
            placed = shard(self._trace, self._units, strategy)
            if placed is not None:
                axes.append(placed[0])
                notes += placed[1]
        return rank_trace(self._trace, axes), notes


def with_layers_sharded(trace: Trace, strategy: Parallel) -> tuple[Trace, tuple[str, ...]]:
    """The step of one rank of the axes that shard layers, and what was assumed.

    Raises:
        InvalidInput: the layers cannot be sharded so. The message says what would fit.
    """
    return Layers(trace).sharded(strategy)


# Tensor and sequence parallelism: the weights of each layer sharded among ranks.
#
# Layers by columns give each rank some of the units (heads, features); layers by rows take them
# and give partial sums, which are reduced over the ranks. With sequence parallelism the rest is
# sharded by token: a gather precedes the layers by columns, and a reduce-scatter follows those by
# rows (Korthikanti et al. 2022). As with DTensor, what was gathered is kept for the backward pass.


def tensor_axis(
    trace: Trace, units: Units, strategy: Parallel
) -> tuple[ShardedAxis, tuple[str, ...]] | None:
    """The placements on the tensor axis, and what was assumed; None if it has one rank.

    Raises:
        InvalidInput: no weights can be sharded, or the plan does not fit the model.
    """
    axis = strategy.axes["tensor"]
    if axis.size == 1:
        return None
    sequence = strategy.sequence
    plan = plan_of(trace, units, strategy.tensor_plan, axis.size, experts_too=not sequence)
    # With sequence parallelism tensor ranks have whole experts, as the ranks of the data axis do.
    experts = frozenset(expert_weights(trace)) if sequence else frozenset()
    policy = Policy(axis.size, "tensor", sequence, plan.joint or sequence, plan.gathered, experts)
    begins = _first_block(trace) if sequence else {}
    placements = Propagation(trace, policy, plan.shards, begins=begins).run()
    return ShardedAxis(axis, placements), plan.notes


def _first_block(trace: Trace) -> dict[int, frozenset[int]]:
    """The hidden state that the first of the repeated blocks reads, by position of its readers."""
    block_of = block_finder(trace)
    written: set[int] = set()
    begins: dict[int, frozenset[int]] = {}
    block = ""
    for position, call in enumerate(trace):
        if call.phase is not Phase.FORWARD:
            continue
        own = block_of(call.module)
        if not own and not block:
            written.update(call.writes)
        elif own and block in ("", own):
            block = own
            hidden = {
                value for value in call.reads if value in written and _is_hidden(trace, value)
            }
            if hidden and not begins:
                written = hidden
            if hidden:
                begins[position] = frozenset(hidden)
    return begins


def _is_hidden(trace: Trace, value: int) -> bool:
    spec = trace.values[value].spec
    return len(spec.shape) == 3 and spec.dtype in ("float32", "bfloat16", "float16")


# Context parallelism: each sequence is sharded among ranks, in attention as well.
#
# As in PyTorch's `context_parallel` with its defaults: the keys and values of all ranks are
# gathered while a rank attends to its own. It then attends to those of each other rank, one after
# another, and merges the results in float32. In the backward pass the gradients of keys and values
# travel around the ring of ranks. Causal work is balanced: a rank has one piece from the front and
# one from the back of each sequence, so that each further step is half of a full one.


NOTE = (
    "assumed PyTorch's context parallelism: keys and values are gathered, causal work is balanced"
)


def context_axis(trace: Trace, strategy: Parallel) -> ShardedAxis | None:
    """The placements on the context axis; None if it has one rank.

    The gradients of all weights are partial sums. They are reduced with those of the data axis.

    Raises:
        InvalidInput: the step has no fused attention on sequences, or these cannot be sharded.
    """
    axis = strategy.axes["context"]
    if axis.size == 1:
        return None
    length, pieces = _length(trace, axis.size)
    policy = Policy(axis.size, "context", reduces=False)
    placements = Propagation(trace, policy, values=_tokens(trace, axis.size, length, pieces))
    return ShardedAxis(axis, placements.run(), RingAttention(axis).around)


def _tokens(trace: Trace, ranks: int, length: int, pieces: int) -> dict[int, Placement]:
    """The inputs and new tensors whose tokens reach attention, sharded."""
    units = Units(trace, length)
    attended = {int(n) for own in units.attended for n in units.classes.find(own)}
    layout = even(length, ranks, "context", balanced=pieces > ranks)
    return {
        source.value: Shard(source.dim, layout)
        for source in units.sources.values()
        if attended.issuperset(units.classes.find(source.numbers).tolist())
    }


def is_attention(op: Op) -> bool:
    """Whether an op is fused attention, forward or backward."""
    return op.base.startswith("aten._") and "attention" in op.base


def _length(trace: Trace, ranks: int) -> tuple[int, int]:
    """The length of the sequences, and the pieces into which they are cut."""
    attention = [call.op for call in trace if is_attention(call.op)]
    if not attention:
        raise InvalidInput(
            f"context={ranks} shards sequences in fused attention "
            "(scaled_dot_product_attention), and the step has none"
        )
    for op in attention:
        _refuse_incomplete(op)
    length = attention[0].inputs[0].shape[2]
    pieces = 2 * ranks if any(op.attr("is_causal") for op in attention) else ranks
    if length % pieces:
        half = 2 if pieces > ranks else 1
        fits = [n for n in range(1, length // half + 1) if length % (half * n) == 0]
        raise InvalidInput(
            f"context={ranks} cannot cut sequences of {length} into {pieces} equal pieces; "
            f"possible sizes are {', '.join(map(str, fits))}"
        )
    return length, pieces


def _refuse_incomplete(op: Op) -> None:
    """Raise InvalidInput for attention without its queries, keys, values and results."""
    backward = "backward" in op.base
    inputs, outputs = (4, 3) if backward else (3, 1)
    known = (*op.inputs[:inputs], *op.outputs[:outputs])
    if len(known) < inputs + outputs or any(len(tensor.shape) < 3 for tensor in known):
        raise InvalidInput(
            f"{op.name} cannot be sharded by context: it has not the {inputs} inputs and {outputs} "
            "outputs of attention on sequences"
        )


@dataclass(frozen=True)
class RingAttention:
    """The calls around each call of attention on one rank of a ring."""

    axis: RankAxis

    def around(self, call: Call) -> Surroundings | None:
        """Exchange keys and values around one call of attention, and attend to all of them."""
        op = call.op
        if not is_attention(op):
            return None
        backward = "backward" in op.base
        key, value = op.inputs[2:4] if backward else op.inputs[1:3]
        phase, module = call.phase, call.module
        own = _joined(key, value)
        everyone = TensorSpec((own.shape[0] * self.axis.size, *own.shape[1:]), own.dtype)
        before = [
            Call(Op("aten.cat", (key, value), (own,)), phase, module),
            wait(TRANSFERS, COMPUTE, phase, module),
            exchange("all_gather", own, everyone, self.axis, TRANSFERS, phase, module),
        ]
        steps = self._backward_steps(call, op) if backward else self._forward_steps(call, op)
        # In float32: forward a step's result, what is subtracted from it, and the sum; backward
        # three sums, and the gradients of keys and values as they are sent and received.
        results = (op.outputs[0], *op.outputs[1:3] * 3) if backward else op.outputs[:1] * 3
        sums = [TensorSpec(tensor.shape, "float32") for tensor in results]
        # Keys and values are made contiguous, joined and gathered.
        return Surroundings(before, list(steps), [key, value, own, everyone, *sums])

    def _forward_steps(self, call: Call, op: Op) -> Iterator[Call]:
        phase, module = call.phase, call.module
        result = op.outputs[0]
        merged = TensorSpec(result.shape, "float32")
        yield wait(COMPUTE, TRANSFERS, phase, module)
        yield kernel("aten._to_copy", result, merged, phase, module)
        for _ in range(self.axis.size - 1):
            yield Call(_other_step(op, backward=False), phase, module)
            yield kernel("aten._to_copy", result, merged, phase, module)
            for name in ("aten.sub.Tensor", "aten.mul.Tensor", "aten.sub.Tensor"):
                yield Call(Op(name, (merged, merged), (merged,)), phase, module)
        yield kernel("aten._to_copy", merged, result, phase, module)

    def _backward_steps(self, call: Call, op: Op) -> Iterator[Call]:
        """Attend to the keys of all ranks; their gradients go around and arrive complete."""
        phase, module = call.phase, call.module
        sums = [TensorSpec(tensor.shape, "float32") for tensor in op.outputs[:3]]
        both = _joined(*sums[1:])
        yield wait(COMPUTE, TRANSFERS, phase, module)
        for step in range(self.axis.size):
            if step:
                yield Call(_other_step(op, backward=True), phase, module)
                yield wait(COMPUTE, TRANSFERS, phase, module)
            for gradient, total in zip(op.outputs[:3], sums, strict=True):
                if not step:
                    yield kernel("aten._to_copy", gradient, total, phase, module)
                yield Call(Op("aten.add_.Tensor", (total, gradient), (total,)), phase, module)
            yield Call(Op("aten.cat", tuple(sums[1:]), (both,)), phase, module)
            yield wait(TRANSFERS, COMPUTE, phase, module)
            yield exchange("send", both, both, self.axis, TRANSFERS, phase, module)
        yield wait(COMPUTE, TRANSFERS, phase, module)
        for gradient, total in zip(op.outputs[:3], sums, strict=True):
            yield kernel("aten._to_copy", total, gradient, phase, module)


def _other_step(op: Op, backward: bool) -> Op:
    """Attention to another rank's keys: to the first half of them, if it is causal."""
    if not op.attr("is_causal"):
        return op
    keys = (2, 3) if backward else (1, 2)
    inputs = tuple(_half(t) if index in keys else t for index, t in enumerate(op.inputs))
    outputs = op.outputs
    if backward:
        outputs = tuple(_half(t) if i in (1, 2) else t for i, t in enumerate(op.outputs))
    attrs = tuple((name, _changed(name, value)) for name, value in op.attrs)
    return Op(op.name, inputs, outputs, attrs)


def _joined(key: TensorSpec, value: TensorSpec) -> TensorSpec:
    """Keys and values as one tensor, as they are sent."""
    return TensorSpec((2 * key.shape[0], *key.shape[1:]), value.dtype)


def _half(tensor: TensorSpec) -> TensorSpec:
    return local(tensor, Shard(2, even(tensor.shape[2], 2, "context")))


def _changed(name: str, value: Scalar) -> Scalar:
    if name == "is_causal":
        return False
    return value // 2 if name == "max_k" and isinstance(value, int) else value


# Which weights are sharded among tensor ranks, and along which dimension.
#
# A plan names modules or parameters and styles, in the words of DTensor and of Hugging Face's
# `base_model_tp_plan`. Without one, the units of the weights tell (Shoeybi et al. 2019, section
# 3): where some matmuls of a repeated block give units and others sum over them, the first are
# sharded by columns and the others by rows.


_COLUMNS = ("colwise", "packed_colwise", "local_colwise", "embedding_colwise")
_GATHERED = ("colwise_rep", "colwise_gather_output")
_ROWS = (
    *("rowwise", "packed_rowwise", "local_rowwise", "rowwise_rep", "rowwise_split_input"),
    "embedding_rowwise",
)
_REPLICATED = (
    *("sequence_parallel", "replicate", "replicated", "replicated_with_grad_allreduce"),
    *("mla_kv_a_proj", "all_reduce", "moe_identity_expert", "ep_router"),
)
_OF_EXPERTS = ("moe_tp_experts", "grouped_gemm", "ep_dispatch_experts")


@dataclass(frozen=True)
class Plan:
    """How the weights of a step are sharded."""

    shards: dict[str, Shard]
    """The placement of parameters, by name. All others are replicated."""
    gathered: frozenset[str] = frozenset()
    """The parameters of layers whose output is gathered at once."""
    joint: bool = True
    """Whether layers that read the same tensor reduce its gradient together."""
    notes: tuple[str, ...] = ()


@dataclass
class _UnitGroup:
    """Dimensions of weights that have units in common."""

    sources: list[Source]
    units: Numbers
    """The classes of its elements, in order."""
    elements: int = 0
    names: set[str] = field(default_factory=set)

    def has(self, role: str) -> bool:
        return any(role in source.roles for source in self.sources)


def plan_of(
    trace: Trace,
    units: Units,
    given: Mapping[str, str] | None,
    ranks: int,
    experts_too: bool = True,
) -> Plan:
    """The plan for a step: the given one, or one that the units give.

    Args:
        trace: forward pass, backward pass and optimizer of one micro-batch.
        units: the units of its weights.
        given: styles of modules or parameters. None to find them.
        ranks: the number of tensor ranks.
        experts_too: whether each rank has a part of every expert, not whole ones.

    Raises:
        InvalidInput: a given plan fits no weight, nothing can be sharded, or sizes do not divide.
    """
    weights = _Weights(trace, units, ranks, experts_too)
    return weights.given(given) if given is not None else weights.found()


def _distinct(numbers: Numbers) -> Numbers:
    """The distinct numbers in order: as `np.unique`, which hashes them and takes far longer."""
    ordered = np.sort(numbers)
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]


class _Weights:
    """The weights of a trace and the units of their dimensions."""

    def __init__(self, trace: Trace, units: Units, ranks: int, experts_too: bool) -> None:
        self.trace, self.units, self.ranks = trace, units, ranks
        self.by_name: dict[str, list[Source]] = {}
        stacked = {s.value for s in units.sources.values() if "expert" in s.roles}
        for source in units.sources.values():
            if experts_too or source.value not in stacked:
                name = trace.values[source.value].parameter
                self.by_name.setdefault(name, []).append(source)
        self.groups = self._grouped()
        self._group_of = {id(s): group for group in self.groups for s in group.sources}
        normalized = (units.classes.find(own)[:1] for own in units.normalized)
        self._losses = {int(number) for own in normalized for number in own}
        """The classes over which losses normalise."""
        self._even: dict[int, bool] = {}

    def name(self, source: Source) -> str:
        return self.trace.values[source.value].parameter

    def _grouped(self) -> list[_UnitGroup]:
        """The dimensions by common units."""
        sources = [s for own in self.by_name.values() for s in own]
        roots = [_distinct(self.units.classes.find(s.numbers)) for s in sources]
        size = 1 + max((int(r[-1]) for r in roots), default=0)
        group_of = np.full(size, -1)
        members: dict[int, list[int]] = {}
        joined: dict[int, int] = {}
        """The group that each group is in now."""
        for index, own in enumerate(roots):
            known = {int(g) for g in _distinct(group_of[own]) if g >= 0}
            now = sorted({joined[group] for group in known})
            members[index] = [index, *(i for group in now for i in members.pop(group))]
            joined.update((member, index) for member in members[index])
            group_of[own] = index
        groups = []
        for own_members in members.values():
            units = _distinct(np.concatenate([roots[i] for i in own_members]))
            group = _UnitGroup([sources[i] for i in sorted(own_members)], units)
            group.names = {self.name(source) for source in group.sources}
            group.elements = sum(
                self.trace.values[source.value].spec.numel for source in group.sources
            )
            groups.append(group)
        return groups

    def group_of(self, source: Source) -> _UnitGroup:
        return self._group_of[id(source)]

    def layout(self, source: Source, units: Numbers) -> ShardLayout:
        """The ranks of a dimension's elements: units in order, in pieces of equal size."""
        place = np.searchsorted(units, self.units.classes.find(source.numbers))
        return layout_of(place // -(-len(units) // self.ranks), "features")

    def is_even(self, group: _UnitGroup) -> bool:
        """Whether all units of a dimension have as many elements of it."""
        if id(group) not in self._even:
            roots = (self.units.classes.find(source.numbers) for source in group.sources)
            counts = (np.unique(own, return_counts=True)[1] for own in roots)
            self._even[id(group)] = len(group.units) > 1 and all(
                own.min() == own.max() for own in counts
            )
        return self._even[id(group)]

    def found(self) -> Plan:
        """The plan that the units give."""
        block_of = block_finder(self.trace)
        shards: dict[str, Shard] = {}
        pairs: list[_UnitGroup] = []
        in_order = sorted(self.groups, key=lambda group: -group.elements)
        for group in in_order:
            inside = [s for s in group.sources if block_of(self.name(s).rpartition(".")[0])]
            roles = {role for source in inside for role in source.roles}
            is_pair = {"in", "out"} <= roles and not group.has("channel")
            if not is_pair or not self.is_even(group):
                continue
            if group.names & shards.keys():
                continue  # a larger group has one of its weights, as of an adapter
            self._check(group)
            pairs.append(group)
            shards |= self._shards(group)
        if not pairs:
            raise InvalidInput(
                "tensor parallelism found no pairs of matmuls in repeated blocks (one that gives "
                "units such as heads, one that sums over them); give tensor_plan, such as "
                '{"layers.*.up": "colwise", "layers.*.down": "rowwise"}'
            )
        pairs.sort(key=lambda group: group.sources[0].value)
        notes = [self._note(pairs)]
        vocabulary = self._vocabulary(shards)
        if vocabulary is not None:
            size, own = vocabulary
            shards |= own
            also = " and the embedding" if len(own) > 1 or self._is_tied(own) else ""
            notes.append(
                f"assumed that the output layer{also} of {size:,} tokens is sharded by vocabulary, "
                "with the loss computed on the shards"
            )
        return Plan(shards, notes=tuple(notes))

    def _shards(self, group: _UnitGroup) -> dict[str, Shard]:
        return {
            self.name(source): Shard(source.dim, self.layout(source, group.units))
            for source in group.sources
        }

    def _check(self, group: _UnitGroup) -> None:
        count = len(group.units)
        if count % self.ranks:
            first = next(s for s in group.sources if "out" in s.roles)
            raise InvalidInput(
                f"tensor={self.ranks} does not divide the {count} units (heads, groups of heads or "
                f"features) of {self.name(first)}; possible sizes are {divisors(count)}"
            )

    def _vocabulary(self, taken: Mapping[str, Shard]) -> tuple[int, dict[str, Shard]] | None:
        """The output layer whose classes a loss normalises over, and tables with as many rows."""
        tables = [
            source
            for own in self.by_name.values()
            for source in own
            if "lookup" in source.roles and self.name(source) not in taken
        ]
        rows = {len(source.numbers) for source in tables}
        for group in sorted(self.groups, key=lambda group: -len(group.units)):
            heads = [s for s in group.sources if "out" in s.roles]
            size = len(heads[0].numbers) if heads else 0
            if (
                size not in rows
                or group.names & taken.keys()
                or self._losses.isdisjoint(group.units)
            ):
                continue
            shards = self._shards(group)
            for table in tables:
                if len(table.numbers) == size:
                    whole = even(size, self.ranks, "features")
                    shards.setdefault(self.name(table), Shard(table.dim, whole))
            return size, shards
        return None

    def _is_tied(self, shards: Mapping[str, Shard]) -> bool:
        return any("lookup" in s.roles for name in shards for s in self.by_name[name])

    def _note(self, groups: Sequence[_UnitGroup]) -> str:
        def layers(role: str) -> str:
            names = [self.name(s) for s in groups[0].sources if role in s.roles]
            paths = (name.removesuffix(".weight").rpartition(".")[2] for name in names)
            return ", ".join(dict.fromkeys(paths))

        return (
            f"assumed Megatron's tensor parallelism: {len(groups)} groups of matmuls found by data "
            f"flow, the first shards {layers('out')} by columns and {layers('in')} by rows"
        )

    def given(self, plan: Mapping[str, str]) -> Plan:
        """The plan that a user gave."""
        known = (*_COLUMNS, *_GATHERED, *_ROWS, *_REPLICATED, *_OF_EXPERTS)
        unknown = sorted({word for word in plan.values() if word not in known})
        if unknown:
            raise InvalidInput(
                f"the tensor plan has the style {unknown[0]!r}; known styles: {', '.join(known)}"
            )
        shards: dict[str, Shard] = {}
        gathered: set[str] = set()
        unused = []
        for pattern, style in plan.items():
            if style in _REPLICATED:
                continue
            names = [name for name in self.by_name if _fits(pattern, name)]
            own = {n: s for name in names for n, s in self._styled(name, style).items()}
            shards |= own
            gathered |= own.keys() if style in _GATHERED else set()
            if not own and style not in _OF_EXPERTS:
                unused.append(pattern)
        if not shards:
            some = ", ".join(sorted(name.rpartition(".")[0] for name in self.by_name)[:5])
            raise InvalidInput(
                f"the tensor plan ({', '.join(plan)}) fits no matmul or embedding of the trace; "
                f"its modules are such as {some}"
            )
        layers = sum(self._is_matmul(name) for name in shards)
        notes = [f"tensor parallel as in the given plan: {layers} matmuls are sharded"]
        if unused:
            notes.append(f"the tensor plan's {', '.join(unused)} fit no weight of the trace")
        return Plan(shards, frozenset(gathered), False, tuple(notes))

    def _is_matmul(self, name: str) -> bool:
        return any({"in", "out"} & s.roles for s in self.by_name[name]) and not any(
            "lookup" in s.roles for s in self.by_name[name] if "in" not in s.roles
        )

    def _styled(self, name: str, style: str) -> dict[str, Shard]:
        """The placement of a parameter by its style; none if it stays whole, as a row's bias."""
        if style in _OF_EXPERTS:
            return self._of_experts(name)
        roles = {"in", "lookup"} if style in _ROWS else {"out", "each"}
        tied = any("lookup" in s.roles for s in self.by_name[name])
        for source in self.by_name[name]:
            if roles & source.roles and not (tied and style in _ROWS and source.dim):
                return {name: self._shard(source)}
        return {}

    def _of_experts(self, name: str) -> dict[str, Shard]:
        """Stacked weights of experts: the first matmul by columns, the last by rows."""
        if not any("expert" in source.roles for source in self.by_name[name]):
            return {}
        for source in self.by_name[name]:
            group = self.group_of(source)
            is_pair = {"in", "out"} & source.roles and group.has("in") and group.has("out")
            if is_pair and self.is_even(group):
                return {name: self._shard(source)}
        return {}

    def _shard(self, source: Source) -> Shard:
        group = self.group_of(source)
        if not self.is_even(group):  # gathered before what needs all of it
            return Shard(source.dim, even(len(source.numbers), self.ranks, "features"))
        if not group.has("lookup") and self._losses.isdisjoint(group.units):
            self._check(group)
        return Shard(source.dim, self.layout(source, group.units))


def _fits(pattern: str, parameter: str) -> bool:
    """Whether a pattern names a parameter, or the module that has it."""
    parts = [re.escape(part) for part in pattern.split("*")]
    expression = r"(.*\.)?" + r"[^.]+".join(parts) + r"(\.[^.]+)?"
    return re.fullmatch(expression, parameter) is not None
