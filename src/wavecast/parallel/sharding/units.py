"""Elements that must be on the same rank, found along the data flow of the forward pass.

Attention works on all features of a head at once, so these stay together, with the keys and values
of the same head; a gate stays with what it multiplies; a norm keeps all of its features together.
Elements that are joined in this way are one unit, wherever a fused weight stores them. A dimension
of a weight can be sharded if it has several units, and heads need no name to be found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wavecast.errors import InvalidInput
from wavecast.parallel.sharding.placements import MOVES, Marks, compressed, dim_of
from wavecast.parallel.sharding.rules import Dims, Labels, dims_of
from wavecast.traces.step import CONTRADICTIONS, Call, Op, Phase, TensorSpec, Trace, contradiction

Numbers = NDArray[np.int64]
Role = str
"""What a dimension of a parameter is for: "in", "out", "lookup", "expert", "channel" or
"each"."""


MOST_ELEMENTS = 1 << 25
"""The elements of a dimension that are followed; the largest vocabularies have some million."""


class UnionFind:
    """A union-find: numbered elements in classes that can be joined."""

    def __init__(self) -> None:
        self._parents = np.arange(1024, dtype=np.int64)
        self._count = ANY + 1

    def fresh(self, count: int) -> Numbers:
        """New elements, each in a class of its own.

        Raises:
            InvalidInput: there are more than any layer has.
        """
        if count > MOST_ELEMENTS:
            raise InvalidInput(
                f"a dimension of {count:,} elements cannot be followed through the step, which is "
                f"needed to split its layers; at most {MOST_ELEMENTS:,} are"
            )
        while self._count + count > len(self._parents):
            size = len(self._parents)
            self._parents = np.concatenate([self._parents, np.arange(size, 2 * size)])
        self._count += count
        return np.arange(self._count - count, self._count)

    def find(self, numbers: Numbers) -> Numbers:
        """The class of each element: its smallest element."""
        parents = self._parents
        roots: Numbers = parents[numbers]
        while True:
            above = parents[roots]
            if (above == roots).all():
                break
            roots = above
        parents[numbers] = roots
        return roots

    def join(self, left: Numbers, right: Numbers) -> None:
        """Join the classes of elements, pair by pair."""
        known = (left != ANY) & (right != ANY)
        left, right = self.find(left[known]), self.find(right[known])
        while (differs := left != right).any():
            low, high = np.minimum(left, right)[differs], np.maximum(left, right)[differs]
            np.minimum.at(self._parents, high, low)
            left, right = self.find(low), self.find(high)


@dataclass
class Source:
    """A dimension of a value with which the flow begins: of a parameter, or of an input."""

    value: int
    dim: int
    numbers: Numbers
    roles: set[Role] = field(default_factory=set)


ANY = 0
"""The number of an element that every rank has, as a key that all heads share."""

Axes = tuple[Marks, ...]
"""Independent numberings of a tensor's elements, each broadcast along dimensions it ignores."""


class Units:
    """The units of a trace's weights, or of its inputs.

    Args:
        trace: the step.
        length: the length of sequences, to follow tokens instead of the features of weights. They
            begin at inputs and new tensors, such as positions, whose last dimension is as long.
    """

    def __init__(self, trace: Trace, length: int = 0) -> None:
        self._trace = trace
        self._length = length
        self.classes = UnionFind()
        self.sources: dict[tuple[int, int], Source] = {}
        self._axes: dict[int, Axes] = {}
        self._weights: dict[int, int] = {}
        """The value of the parameter that a cast or view of a weight shows."""
        self.attended: list[Numbers] = []
        """The positions of queries in fused attention."""
        self.normalized: list[Numbers] = []
        """The classes over which a loss normalises."""
        for call in trace:
            if call.phase is Phase.FORWARD and call.op.outputs:
                try:
                    self._follow(call)
                except CONTRADICTIONS as error:
                    raise contradiction("finding what can be sharded", call, error) from error

    def _axes_of(self, value: int, spec: TensorSpec) -> Axes:
        if value not in self._axes:
            self._axes[value] = ()
            known = self._trace.values[value]
            is_weight = bool(known.parameter)
            if is_weight != bool(self._length) and spec.numel:
                self._axes[value] = self._begin(value, spec)
            if is_weight:
                self._weights[value] = value
        return self._axes[value]

    def _begin(self, value: int, spec: TensorSpec) -> Axes:
        axes = []
        dims = [dim for dim, size in enumerate(spec.shape) if size > 1]
        if self._length:
            dims = [dim for dim in dims if spec.shape[dim] == self._length][-1:]
        for dim in dims:
            size = spec.shape[dim]
            source = Source(value, dim, self.classes.fresh(size))
            self.sources[value, dim] = source
            shape = tuple(size if d == dim else 1 for d in range(len(spec.shape)))
            axes.append(source.numbers.reshape(shape))
        return tuple(axes)

    def _follow(self, call: Call) -> None:
        op = call.op
        inputs = [self._axes_of(v, t) for v, t in zip(call.reads, op.inputs, strict=True)]
        if not any(inputs):
            for value, spec in zip(call.writes, op.outputs, strict=True):
                is_source = self._length and not op.inputs and spec.numel
                self._axes[value] = self._begin(value, spec) if is_source else ()
            return
        if op.base in ("aten.cat", "aten.stack"):
            outputs = [self._joined(op, inputs)]
        elif op.base in MOVES:
            moves = [MOVES[op.base](op, axis) for axis in inputs[0]]
            outputs = [tuple(m[i] for m in moves if m[i].size > 1) for i in range(len(op.outputs))]
        else:
            dims = dims_of(op)
            outputs = [()] * len(op.outputs)
            if dims is not None:
                self._note_roles(call, dims, inputs)
                self._note_ends(call, dims, inputs)
                outputs = self._related(op, dims, inputs)
        shown = self._weights.get(call.reads[0]) if len(inputs) == 1 else None
        for value, axes in zip(call.writes, outputs, strict=True):
            self._axes[value] = axes
            self._weights.pop(value, None)
            if shown is not None:
                self._weights[value] = shown

    def _joined(self, op: Op, inputs: Sequence[Axes]) -> Axes:
        """The axes of tensors that are put side by side."""
        stacks = op.base == "aten.stack"
        rank = len(op.outputs[0].shape)
        dim = dim_of(op, rank)
        tensors = [
            (tensor, [np.expand_dims(a, dim) for a in axes] if stacks else list(axes))
            for tensor, axes in zip(op.inputs, inputs, strict=True)
            if tensor.numel
        ]
        axes_kept: list[Marks] = []
        if any(axis.shape[dim] > 1 for _, axes in tensors for axis in axes):
            pieces = [_piece(tensor, axes, dim) for tensor, axes in tensors]
            wide = np.broadcast_shapes(*(p.take([0], dim).shape for p in pieces))
            joint = np.concatenate([_widened(p, wide, dim) for p in pieces], dim)
            return (compressed(joint),)
        for _, axes in tensors:
            for axis in axes:
                if axis.shape[dim] == 1:
                    self._add(axes_kept, axis)
        return tuple(axes_kept)

    def _add(self, axes: list[Marks], axis: Marks) -> None:
        """Add an axis, or join it with one along the same dimension."""
        for index, other in enumerate(axes):
            if any(n > 1 and m > 1 for n, m in zip(axis.shape, other.shape, strict=True)):
                less, more = sorted((axis, other), key=lambda marks: marks.size)
                first = next(dim for dim, size in enumerate(more.shape) if size > 1)
                if less.shape[first] == 1:  # shared by all heads: it stays whole
                    axes[index] = more
                    return
                wide = np.broadcast_arrays(less, more)
                self.classes.join(wide[0].ravel(), wide[1].ravel())
                axes[index] = less
                return
        axes.append(axis)

    def _note_roles(self, call: Call, dims: Dims, inputs: Sequence[Axes]) -> None:
        """Note what the dimensions of parameters are for."""
        if len(call.reads) == 1:
            return  # a cast
        kept = {label for labels in dims.outputs for label in labels}
        for index, value in enumerate(call.reads):
            weight = self._weights.get(value)
            if weight is None:
                continue
            for axis in inputs[index]:
                for dim, size in enumerate(axis.shape):
                    label = dims.inputs[index][dim] if index < len(dims.inputs) else ""
                    if size > 1 and label:
                        self._note(weight, axis, self._role(dims, index, label, label in kept))
                        if "convolution" in call.op.base:
                            self._note(weight, axis, "channel")

    def _note_ends(self, call: Call, dims: Dims, inputs: Sequence[Axes]) -> None:
        """Note what reaches a loss or attention."""
        if dims.vocabulary:
            dim = dims.inputs[0].index(dims.vocabulary)
            self.normalized += [axis.ravel() for axis in inputs[0] if axis.shape[dim] > 1]
        if "attention" in call.op.base:
            for labels, axes in zip(dims.inputs[:2], inputs[:2], strict=True):
                length = labels.index("t" if "t" in labels else "s")
                self.attended += [a.ravel() for a in axes if a.shape[length] > 1]

    def _role(self, dims: Dims, index: int, label: str, kept: bool) -> Role:
        if label == dims.looked_up:
            return "lookup"
        if label == "e":
            return "expert"
        if index in dims.factors:
            return "out" if kept else "in"
        return "out" if dims.looked_up else "each"

    def _note(self, weight: int, axis: Marks, role: Role) -> None:
        first = axis.ravel()[0]
        for dim in range(8):
            source = self.sources.get((weight, dim))
            if source is not None and source.numbers[0] <= first <= source.numbers[-1]:
                source.roles.add(role)

    def _related(self, op: Op, dims: Dims, inputs: Sequence[Axes]) -> list[Axes]:
        """Join what goes together, and pass it on to the outputs."""
        labelled: list[tuple[Labels, Marks]] = []
        for labels, axes in zip(dims.inputs, inputs, strict=False):
            for axis in axes:
                wide, marks = self._repeated(labels, axis, dims)
                marks = self._whole(wide, marks, dims)
                if marks.size > 1:
                    labelled.append((wide, marks))
        order = tuple(dict.fromkeys(label for labels, _ in labelled for label in labels if label))
        aligned: list[Marks] = []
        for labels, marks in labelled:
            self._add(aligned, _aligned(marks, labels, order))
        kept = [{label for label in labels if label} for labels in dims.outputs]
        results: list[Axes] = []
        for index, labels in enumerate(dims.outputs):
            own: list[Marks] = []
            for marks in aligned:
                varies = {label for label, n in zip(order, marks.shape, strict=True) if n > 1}
                if not varies & kept[index]:
                    continue
                for label in varies - kept[index]:  # summed, and other dimensions are kept
                    marks = self._together(marks, order.index(label))
                few = self._fewer(marks, order, labels, op.outputs[index], dims)
                if few.size > 1:
                    own.append(few)
            results.append(tuple(own))
        return results

    def _together(self, marks: Marks, dim: int) -> Marks:
        first = marks.take([0], dim)
        wide = np.broadcast_to(first, marks.shape)
        self.classes.join(wide.ravel(), marks.ravel())
        return first

    def _whole(self, labels: Labels, marks: Marks, dims: Dims) -> Marks:
        for dim, label in enumerate(labels):
            if marks.shape[dim] > 1 and self._is_whole(label, dims):
                marks = self._together(marks, dim)
        return marks

    def _is_whole(self, label: str, dims: Dims) -> bool:
        """Whether an op needs all elements of a dimension: norms and other statistics do."""
        if self._length:
            return not label
        if label in dims.whole or not label:
            return True
        is_sum = not any(label in labels for labels in dims.outputs)
        return is_sum and not dims.factors and label not in (dims.looked_up, dims.vocabulary)

    def _repeated(self, labels: Labels, axis: Marks, dims: Dims) -> tuple[Labels, Marks]:
        """The axis with one mark for each head, where several heads share a key."""
        for many, few, times in dims.repeats:
            if few in labels:
                dim = labels.index(few)
                if axis.shape[dim] > 1:
                    axis = np.repeat(axis, times, dim)
                labels = tuple(many if label == few else label for label in labels)
        return labels, axis

    def _fewer(
        self, marks: Marks, order: Labels, labels: Labels, result: TensorSpec, dims: Dims
    ) -> Marks:
        for many, few, times in dims.repeats:
            if few in labels and many in order:
                dim = order.index(many)
                if marks.shape[dim] > 1:
                    marks = marks.take(np.arange(0, marks.shape[dim], times), dim)
                labels = tuple(many if label == few else label for label in labels)
        shape = [1] * len(result.shape)
        dims_kept = [order.index(label) for label in labels if label in order]
        for dim, label in enumerate(labels):
            if label in order:
                shape[dim] = marks.shape[order.index(label)]
        rest = [dim for dim in range(len(order)) if dim not in dims_kept]
        return compressed(marks.transpose([*dims_kept, *rest]).reshape(shape))


def _piece(tensor: TensorSpec, axes: Sequence[Marks], dim: int) -> Marks:
    """The marks of a tensor that is joined with others along a dimension."""
    varied = [axis for axis in axes if axis.shape[dim] > 1] or list(axes)
    shape = [1] * len(tensor.shape)
    if not varied:
        shape[dim] = tensor.shape[dim]
        return np.full(shape, ANY)
    shape = list(varied[0].shape)
    shape[dim] = tensor.shape[dim]
    return np.broadcast_to(varied[0], shape)


def _widened(marks: Marks, wide: Sequence[int], dim: int) -> Marks:
    """A piece with marks along all dimensions of the others; those that it lacks are shared."""
    shape = (*wide[:dim], marks.shape[dim], *wide[dim + 1 :])
    sizes = enumerate(zip(marks.shape, wide, strict=True))
    if any(n == 1 and m > 1 for d, (n, m) in sizes if d != dim):
        return np.full(shape, ANY)
    return np.broadcast_to(marks, shape)


def _aligned(marks: Marks, labels: Labels, order: Labels) -> Marks:
    """The marks with one dimension for each label."""
    places = {label: dim for dim, label in enumerate(labels) if label}
    kept = [places[label] for label in order if label in places]
    rest = [dim for dim in range(marks.ndim) if dim not in kept]
    shape = tuple(marks.shape[places[label]] if label in places else 1 for label in order)
    return marks.transpose([*kept, *rest]).reshape(shape)
