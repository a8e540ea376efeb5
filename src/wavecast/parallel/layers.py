"""The axes that shard the layers themselves: context, expert and tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wavecast.errors import InvalidInput
from wavecast.parallel.exchanges import COMPUTE, TRANSFERS, exchange, kernel, wait
from wavecast.parallel.experts import expert_axis, expert_weights
from wavecast.parallel.plans import plan_of
from wavecast.parallel.sharding.placements import Placement, Shard, even, local
from wavecast.parallel.sharding.propagation import Propagation
from wavecast.parallel.sharding.rank_trace import ShardedAxis, Surroundings, rank_trace
from wavecast.parallel.sharding.state import Policy
from wavecast.parallel.sharding.units import Units
from wavecast.parallel.strategy import Parallel, RankAxis
from wavecast.traces.recomputed import block_finder
from wavecast.traces.step import Call, Op, Phase, Scalar, TensorSpec, Trace


class Layers:
    """The layers of a step, sharded by one strategy after another.

    Args:
        trace: forward pass, backward pass and optimizer of one micro-batch.
    """

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
            made = shard(self._trace, self._units, strategy)
            if made is not None:
                axes.append(made[0])
                notes += made[1]
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
    found: dict[int, frozenset[int]] = {}
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
            if hidden and not found:
                written = hidden
            if hidden:
                found[position] = frozenset(hidden)
    return found


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
        made = op.outputs[0]
        merged = TensorSpec(made.shape, "float32")
        yield wait(COMPUTE, TRANSFERS, phase, module)
        yield kernel("aten._to_copy", made, merged, phase, module)
        for _ in range(self.axis.size - 1):
            yield Call(_other_step(op, backward=False), phase, module)
            yield kernel("aten._to_copy", made, merged, phase, module)
            for name in ("aten.sub.Tensor", "aten.mul.Tensor", "aten.sub.Tensor"):
                yield Call(Op(name, (merged, merged), (merged,)), phase, module)
        yield kernel("aten._to_copy", merged, made, phase, module)

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
            for made, total in zip(op.outputs[:3], sums, strict=True):
                if not step:
                    yield kernel("aten._to_copy", made, total, phase, module)
                yield Call(Op("aten.add_.Tensor", (total, made), (total,)), phase, module)
            yield Call(Op("aten.cat", tuple(sums[1:]), (both,)), phase, module)
            yield wait(TRANSFERS, COMPUTE, phase, module)
            yield exchange("send", both, both, self.axis, TRANSFERS, phase, module)
        yield wait(COMPUTE, TRANSFERS, phase, module)
        for made, total in zip(op.outputs[:3], sums, strict=True):
            yield kernel("aten._to_copy", total, made, phase, module)


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
