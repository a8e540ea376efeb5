"""Context parallelism: each sequence is divided among ranks, in attention as well.

As in PyTorch's `context_parallel` with its defaults: the keys and values of all ranks are gathered
while a rank attends to its own. It then attends to those of each other rank, one after another, and
merges the results in float32. In the backward pass the gradients of keys and values travel around
the ring of ranks. Causal work is balanced: a rank has one piece from the front and one from the
back of each sequence, so that each further step is half of a full one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from wavecast.errors import InvalidInput
from wavecast.parallel.editing import COMPUTE, TRANSFERS, Edit, kernel, wait
from wavecast.parallel.exchanges import exchange
from wavecast.parallel.products import Part, layers_of, runs_of
from wavecast.parallel.split_memory import is_list_op, share_memory
from wavecast.parallel.splits import Split, Splits, adopted, after, share, share_op
from wavecast.parallel.strategy import Parallel, RankAxis
from wavecast.traces.step import Call, Op, Phase, Role, Scalar, TensorSpec, Trace

_NOTE = (
    "assumed PyTorch's context parallelism: keys and values are gathered, causal work is balanced"
)


def with_context(trace: Trace, strategy: Parallel) -> tuple[Trace, tuple[str, ...]]:
    """The step of one context rank, and what was assumed.

    The gradients of all weights are partial sums. They are reduced with those of the data axis.

    Raises:
        InvalidInput: the step has no fused attention on sequences, or these cannot be divided.
    """
    axis = strategy.axes["context"]
    if axis.size == 1:
        return trace, ()
    division = _ContextRank(trace, axis, _length(trace, axis.size))
    division.divide()
    return division.made(), (_NOTE,)


def _is_attention(op: Op) -> bool:
    return op.base.startswith("aten._scaled_dot_product_") or (
        op.base.startswith("aten._") and "attention" in op.base
    )


def _along_sequence(splits: Splits) -> bool:
    return any(split is not None and split.dim > 0 for split in splits)


def _length(trace: Trace, ranks: int) -> int:
    """The length of the sequences."""
    attention = [call.op for call in trace if _is_attention(call.op)]
    if not attention:
        raise InvalidInput(
            f"context={ranks} divides sequences in fused attention "
            "(scaled_dot_product_attention), and the step has none"
        )
    length = attention[0].inputs[0].shape[2]
    pieces = 2 * ranks if any(op.attr("is_causal") for op in attention) else ranks
    if length % pieces:
        half = 2 if pieces > ranks else 1
        fits = [n for n in range(1, length // half + 1) if length % (half * n) == 0]
        raise InvalidInput(
            f"context={ranks} cannot divide sequences of {length} into {pieces} equal pieces; "
            f"possible sizes are {', '.join(map(str, fits))}"
        )
    return length


@dataclass
class _ContextRank:
    """A trace whose sequences are being divided."""

    trace: Trace
    axis: RankAxis
    length: int
    latest: dict[TensorSpec, Split] = field(default_factory=dict)
    ops: dict[int, Op] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.edit = Edit(self.trace)
        self.parts: dict[int, Part] = {}
        """What the products with weights compute, by position."""
        self.weights: set[int] = set()
        """The calls that cast or turn a weight."""
        for run in runs_of(self.trace, layers_of(self.trace)):
            self.parts.update(run.parts)
            shape = sorted((run.layer.wide_in, run.layer.wide_out))
            for position in range(run.start, run.end):
                op = self.trace.calls[position].op
                if op.base in ("aten.t", "aten._to_copy") and sorted(op.inputs[0].shape) == shape:
                    self.weights.add(position)

    def divide(self) -> None:
        for position, call in enumerate(self.trace):
            if is_list_op(call):
                continue
            inputs, outputs = self._splits(position, call.op)
            if call.op.base in ("aten.bmm", "aten.baddbmm") and _along_sequence(inputs):
                raise InvalidInput(
                    f"{call.module} attends with products of its own, which context="
                    f"{self.axis.size} cannot divide; use scaled_dot_product_attention, with a "
                    "kernel that the GPU has for its dtype and shapes"
                )
            op = share_op(call.op, inputs, outputs, self.axis.size)
            if _is_attention(op):
                op = _shorter(op, self.axis.size)
                self._attend(position, call, op)
            self.ops[position] = op
            for tensor, split in zip(call.op.outputs, outputs, strict=True):
                if split is None:
                    self.latest.pop(tensor, None)
                else:
                    self.latest[tensor] = split

    def _splits(self, position: int, op: Op) -> tuple[Splits, Splits]:
        # A weight may have the shape of an activation, so products are known by their place.
        if position in self.weights:
            return (None,) * len(op.inputs), (None,) * len(op.outputs)
        if position in self.parts:
            return self._product(self.parts[position], op)
        inputs = tuple(self._of(tensor) for tensor in op.inputs)
        if op.base == "aten.arange" and op.outputs[0].shape == (self.length,):
            return inputs, (Split(0, self.length),)
        if op.base == "aten.embedding_dense_backward":
            return inputs, (None,)
        outputs = after(op, inputs, self.axis.size)
        return adopted(op, inputs, outputs), outputs

    def _product(self, part: Part, op: Op) -> tuple[Splits, Splits]:
        """The divisions of a product with a weight: by rows, which are positions."""
        if part == "weight":  # a sum over all positions
            summed = op.inputs[0].shape[1]
            return (self._rows(summed, 1), self._rows(summed, 0)), (None,)
        rows = self._rows(op.outputs[0].shape[0], 0)
        return (*(None,) * (len(op.inputs) - 2), rows, None), (rows,)

    def _rows(self, count: int, dim: int) -> Split | None:
        """The division of rows; None if they are no positions, as in a head on the first word."""
        return None if count % self.length else Split(dim, self.length)

    def _of(self, tensor: TensorSpec) -> Split | None:
        """The division of a tensor that is read: that of words and positions is known by shape."""
        rank = len(tensor.shape)
        if tensor.dtype == "int64" and rank in (1, 2) and tensor.shape[-1] == self.length:
            return Split(rank - 1, self.length)
        return self.latest.get(tensor)

    def _attend(self, position: int, call: Call, op: Op) -> None:
        """Exchange keys and values around one call of attention, and attend to all of them."""
        backward = call.phase is Phase.BACKWARD and "backward" in op.base
        key, value = op.inputs[2:4] if backward else op.inputs[1:3]
        phase, module = call.phase, call.module
        own = _joined(key, value)
        everyone = TensorSpec((own.shape[0] * self.axis.size, *own.shape[1:]), own.dtype)
        self.edit.insert(
            position,
            [
                Call(Op("aten.cat", (key, value), (own,)), phase, module),
                wait(TRANSFERS, COMPUTE, phase, module),
                exchange("all_gather", own, everyone, self.axis, TRANSFERS, phase, module),
            ],
        )
        self.edit.allocate(everyone.nbytes, Role.INTERMEDIATE, position, position + 1)
        steps = self._backward_steps(call, op) if backward else self._forward_steps(call, op)
        self.edit.insert(position + 1, steps)

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

    def made(self) -> Trace:
        for position, op in self.ops.items():
            self.edit.replace_op(position, op)
        share_memory(self.edit, self.trace, [], self.ops)
        return self.edit.made()


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
    return share(tensor, Split(2, tensor.shape[2]), 2)


def _changed(name: str, value: Scalar) -> Scalar:
    if name == "is_causal":
        return False
    return value // 2 if name == "max_k" and isinstance(value, int) else value


def _shorter(op: Op, ranks: int) -> Op:
    """Attention whose longest sequence is that of one rank."""
    attrs = tuple(
        (name, value // ranks if name in ("max_q", "max_k") and isinstance(value, int) else value)
        for name, value in op.attrs
    )
    return Op(op.name, op.inputs, op.outputs, attrs)
