"""What is known of a step while placements are propagated through it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NoReturn

import numpy as np

from wavecast.errors import InvalidInput
from wavecast.parallel.sharding.placements import (
    MOVES,
    REPLICATE,
    UNKNOWN,
    Kind,
    Marks,
    Partial,
    Placement,
    Placements,
    Shard,
    ShardLayout,
    dim_of,
    even,
    layout_of,
    merged,
    stretched,
)
from wavecast.parallel.sharding.rules import Dims, dims_of
from wavecast.traces.recomputed import recomputed
from wavecast.traces.step import Call, Op, Phase, TensorSpec, Trace

CASTS = frozenset(f"aten.{n}" for n in ("_to_copy", "clone", "alias", "detach", "contiguous"))
SUMS = ("aten.add", "aten.add_", "aten.sub")


@dataclass(frozen=True)
class Policy:
    """What an axis does with partial sums."""

    ranks: int
    axis: str
    """The name of the axis in messages: `tensor`."""
    sequence: bool = False
    """Whether partial sums become shards of the tokens, not replicas."""
    joint: bool = True
    """Whether gradients of the same tensor are summed before they are reduced."""
    gathered: frozenset[str] = frozenset()
    """The parameters of layers whose output is gathered at once."""
    elsewhere: frozenset[str] = frozenset()
    """The parameters whose partial gradients are reduced with those of other axes."""
    reduces: bool = True
    """Whether partial sums are reduced. Those of the context axis wait for the data axis."""


@dataclass(frozen=True)
class Exchange:
    """A redistribution of a value before a call."""

    position: int
    name: str
    """The collective: `all_reduce`, `all_gather`, `reduce_scatter` or `all_to_all`."""
    value: int
    source: Placement
    target: Placement
    call: Call
    """The call for which it is done, with the phase and the module."""
    spec: TensorSpec
    """The whole tensor."""
    with_values: tuple[int, ...] = ()
    """Further values that are exchanged as one flat tensor."""

    @property
    def is_copy(self) -> bool:
        """Whether it writes another tensor than it reads."""
        return self.name != "all_reduce"


@dataclass
class PlacementState:
    """The placements of a step on one axis of ranks, so far.

    Args:
        trace: forward pass, backward pass and optimizer of one micro-batch.
        policy: what is done with partial sums.
        parameters: the placements of parameters, by name. Others are replicated.
        values: the placements of other values that exist before the step or are created in it.
        begins: the calls, by position, that begin to shard the tokens of what they read.
    """

    trace: Trace
    policy: Policy
    parameters: Mapping[str, Placement] = field(default_factory=dict)
    values: Mapping[int, Placement] = field(default_factory=dict)
    begins: Mapping[int, frozenset[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.placed: dict[int, Placement] = {}
        """The present placement of values. Those that are absent are replicated."""
        self.first: dict[int, Placement] = {}
        """The placement in which a value was written, or which it had before."""
        self.calls: dict[int, tuple[Placements, Placements]] = {}
        """The placements of a call's inputs and outputs; absent if all are replicated."""
        self.exchanges: list[Exchange] = []
        self.copies: dict[tuple[int, int], int] = {}
        """The exchange whose copy a call reads, by position and input."""
        self._copy_of: dict[int, int] = {}
        """The exchange that has the present content of a value."""
        self._gathered: dict[int, dict[str, int]] = {}
        """The exchanges that gathered a value, by the layer that needed it; -1 for a view."""
        self._producer: dict[int, int] = {}
        self._weights: dict[int, str] = {}
        self._token_rows: dict[int, ShardLayout] = {}
        self._partial_in: dict[int | None, set[int]] = {}
        self._recomputed = recomputed(self.trace.calls)
        self._destinations = _destinations(self.trace)
        self._first_at: dict[int, int] = {}
        self._read: set[int] = set()
        """The values that were read since they were written."""
        self._norms_end = 0
        """The position after the last norm of sharded gradients."""
        self._to_experts = _to_experts(self.trace)
        for value, placement in self.values.items():
            self._set(value, placement)
            self.first[value] = placement

    def _set(self, value: int, placement: Placement) -> None:
        if placement == REPLICATE:
            self.placed.pop(value, None)
        else:
            self.placed[value] = placement
        if isinstance(placement, Partial):
            memory = self.trace.values[value].allocation
            self._partial_in.setdefault(memory, set()).add(value)

    def _exchange(self, position: int, name: str, value: int, target: Placement, call: Call) -> int:
        """Add the redistribution of a value, and return its number."""
        spec, source = self.trace.values[value].spec, self.placed.get(value, REPLICATE)
        self.exchanges.append(Exchange(position, name, value, source, target, call, spec))
        return len(self.exchanges) - 1

    def _replace(self, position: int, name: str, value: int, target: Placement, call: Call) -> None:
        """Redistribute a value for all calls that follow."""
        self._copy_of[value] = self._exchange(position, name, value, target, call)
        self._set(value, target)

    def _tokens(self, spec: TensorSpec) -> Placement:
        """The shard of the tokens of a hidden state: its last dimension but one."""
        if not self.policy.sequence:
            return REPLICATE
        if len(spec.shape) >= 3:
            dim = len(spec.shape) - 2
            return Shard(dim, even(spec.shape[dim], self.policy.ranks, "tokens"))
        rows = self._token_rows.get(spec.shape[0]) if len(spec.shape) == 2 else None
        return REPLICATE if rows is None else Shard(0, rows)

    def _is_forward(self, position: int, call: Call) -> bool:
        """Whether a call is of the forward pass, or computes it again."""
        return call.phase is Phase.FORWARD or position in self._recomputed

    def _refuse(self, call: Call, reason: str) -> NoReturn:
        shapes = " and ".join(str(tensor.shape) for tensor in call.op.inputs[:3])
        raise InvalidInput(
            f"{self.policy.axis}={self.policy.ranks} cannot shard {call.op.base} on {shapes} in "
            f"{call.module or 'the step'} ({call.phase.value}): {reason}; give tensor_plan with "
            "the style of each weight of the block, or leave the block replicated"
        )


def kind_of(placement: Placement) -> str:
    """What is sharded; empty if nothing is."""
    return placement.layout.kind if isinstance(placement, Shard) else ""


def _destinations(trace: Trace) -> dict[int, tuple[str, bool]]:
    """The parameter of whose gradient a value is a term, and whether it is transposed."""
    parameters = {
        v: (value.gradient_of, False) for v, value in enumerate(trace.values) if value.gradient_of
    }
    for call in reversed(trace.calls):
        if call.phase is not Phase.BACKWARD or not call.writes or call.writes[0] not in parameters:
            continue
        base = call.op.base
        if base in SUMS or base in CASTS or base in MOVES:
            name, transposed = parameters[call.writes[0]]
            for value in call.reads:
                parameters.setdefault(value, (name, transposed ^ (base == "aten.t")))
    return parameters


def _to_experts(trace: Trace) -> set[int]:
    """The values from which a grouped matmul follows, with pointwise ops and views between."""
    sent: set[int] = set()
    if not any(call.op.base == GROUPED for call in trace):
        return sent
    for call in reversed(trace.calls):
        if call.op.base == GROUPED:
            sent.update(call.reads[:2])
        elif sent.intersection(call.writes) and not _chooses(call.op):
            sent.update(call.reads)
    return sent


def _chooses(op: Op) -> bool:
    if op.base in MOVES or op.base in JOINS:
        return False
    dims = dims_of(op)
    return dims is None or dims.rows or bool(dims.factors) or bool(dims.whole)


# The placements of an op's outputs from those of its inputs, and which inputs it needs otherwise.
#
# This is DTensor's question of each op. Labels of dimensions (`rules`) answer it for ops that
# compute, and marks of elements (`indexing`) for ops that move elements.


GROUPED = "aten._grouped_mm"
JOINS = ("aten.cat", "aten.stack")
_SLICE_GRADIENTS = ("aten.slice_backward", "aten.select_backward")


class Unshardable(Exception):
    """An op whose inputs are sharded in a way that no rule covers. Says why."""


@dataclass(frozen=True, slots=True)
class OpPlacements:
    """What becomes of an op's tensors."""

    inputs: Placements
    """The placements that the op needs."""
    outputs: Placements
    rows: TensorSpec | None = None
    """What a loss over a sharded vocabulary all-reduces; None for other ops."""
    reductions: int = 0


@lru_cache(maxsize=65536)
def outcome_of(op: Op, given: Placements, goal: Shard | None = None) -> OpPlacements:
    """What becomes of an op's tensors.

    Args:
        op: the op on whole tensors.
        given: the placements of its inputs. Partial ones are passed on to the outputs.
        goal: the placement of the parameter whose gradient the op computes, if known.

    Raises:
        Unshardable: no rule covers it.
    """
    count = len(op.outputs)
    partial = next((p for p in given if isinstance(p, Partial)), None)
    if partial is not None:
        kept = tuple(partial if isinstance(p, Shard) else p for p in given)
        return OpPlacements(kept, (REPLICATE if is_new(op) else partial,) * count)
    if op.base == "aten.embedding_dense_backward" and goal is not None and goal.dim == 0:
        return OpPlacements((REPLICATE,) * len(given), (goal,))
    if not any(isinstance(p, Shard) for p in given):
        return _of_replicas(op, given, goal)
    for names, rule in _BY_MARKS:
        if op.base in names:
            return rule(op, given)
    dims = dims_of(op)
    if dims is None:
        raise Unshardable("no rule says how this op is sharded")
    return _by_labels(op, dims, given, goal)


def _of_replicas(op: Op, given: Placements, goal: Shard | None) -> OpPlacements:
    """The outcome of an op on replicas: a shard of a gradient only, if that is the goal."""
    dims = dims_of(op) if goal is not None else None
    if goal is None or dims is None or not dims.outputs[0][goal.dim]:
        return OpPlacements(given, (REPLICATE,) * len(op.outputs))
    label = dims.outputs[0][goal.dim]
    return _with_label(op, dims, given, list(given), label, goal.layout)


def _by_labels(op: Op, dims: Dims, given: Placements, goal: Shard | None) -> OpPlacements:
    kinds = {p.layout.kind for p in given if isinstance(p, Shard)}
    if op.base == GROUPED and (experts := _experts(dims, given, goal)) is not None:
        return _sent_to_experts(op, dims, experts)
    if dims.rows and kinds <= {"tokens", "context"} and _by_rows(dims, given):
        return _rows(op, dims, given)
    if "attention" in op.base and "context" in kinds:
        dims = _same_length(dims)
    return _labelled(op, dims, given)


def _experts(dims: Dims, given: Placements, goal: Shard | None) -> ShardLayout | None:
    """The layout of experts that are spread over ranks; None if each rank has all of them."""
    for labels, placement in zip(dims.inputs, given, strict=True):
        if isinstance(placement, Shard) and labels[placement.dim] == "e":
            return placement.layout
    routed = any(isinstance(p, Shard) and p.layout.kind == "routed" for p in given)
    return goal.layout if routed and goal is not None and goal.dim == 0 else None


def _sent_to_experts(op: Op, dims: Dims, experts: ShardLayout) -> OpPlacements:
    """A grouped matmul on the rows that were sent to the experts of a rank."""
    rows = op.inputs[0].shape[dims.inputs[0].index("t")] if "t" in dims.inputs[0] else 0
    layout = layout_of(np.zeros(rows or op.inputs[1].shape[-1], np.uint16), "routed")

    def of(labels: tuple[str, ...]) -> Placement:
        if "e" in labels:
            return Shard(labels.index("e"), experts)
        return Shard(labels.index("t"), layout)

    return OpPlacements(tuple(map(of, dims.inputs)), tuple(map(of, dims.outputs)))


def _by_rows(dims: Dims, given: Placements) -> bool:
    """Whether rows are sharded along a dimension in which they are chosen or sorted."""
    return any(
        isinstance(p, Shard) and (labels[p.dim] in dims.whole or labels[p.dim].startswith("i"))
        for labels, p in zip(dims.inputs, given, strict=True)
    )


def _rows(op: Op, dims: Dims, given: Placements) -> OpPlacements:
    """Rows that each rank sorts and picks among those of its own tokens."""
    layout = next(p.layout for p in given if isinstance(p, Shard))

    def of(labels: tuple[str, ...], shape: tuple[int, ...]) -> Placement:
        for dim, label in enumerate(labels):
            if label in dims.whole or label.startswith("i"):
                return Shard(dim, stretched(layout, shape[dim]))
        return REPLICATE

    inputs = tuple(
        p if isinstance(p, Shard) else of(labels, tensor.shape)
        for labels, tensor, p in zip(dims.inputs, op.inputs, given, strict=True)
    )
    outputs = tuple(of(labels, t.shape) for labels, t in zip(dims.outputs, op.outputs, strict=True))
    return OpPlacements(inputs, outputs)


def _same_length(dims: Dims) -> Dims:
    """The labels of attention in which keys are sharded as queries are."""

    def of(tensors: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple("t" if n == "s" else n for n in labels) for labels in tensors)

    return replace(dims, inputs=of(dims.inputs), outputs=of(dims.outputs))


def is_new(op: Op) -> bool:
    """Whether an op creates a tensor, for which it reads at most the shape of another."""
    return op.base.startswith("aten.new_") or op.base.endswith("_like")


def _marks(shard: Shard, rank: int) -> Marks:
    shape = [1] * rank
    shape[shard.dim] = -1
    return shard.layout.ranks.reshape(shape)


def _placed(marks: Marks, kind: Kind) -> Shard | None:
    """The shard of which the marks tell; None if it is along no or several dimensions."""
    varied = [dim for dim, size in enumerate(marks.shape) if size > 1]
    if len(varied) != 1:
        return None
    return Shard(varied[0], layout_of(marks.ravel(), kind))


def _gathered(given: Placements, count: int) -> OpPlacements:
    return OpPlacements(tuple(REPLICATE for _ in given), (REPLICATE,) * count)


def _moved(op: Op, given: Placements) -> OpPlacements:
    shard = given[0]
    if not isinstance(shard, Shard):
        return OpPlacements(given, (REPLICATE,) * len(op.outputs))
    kind = shard.layout.kind
    moved = MOVES[op.base](op, _marks(shard, len(op.inputs[0].shape)))
    outputs = [
        _placed(marks, kind) if tensor.numel else REPLICATE
        for marks, tensor in zip(moved, op.outputs, strict=True)
    ]
    if any(shard is None for shard in outputs):
        return _gathered(given, len(op.outputs))
    return OpPlacements(given, tuple(shard for shard in outputs if shard is not None))


def _gradient_of_slice(op: Op, given: Placements) -> OpPlacements:
    """The gradient of a slice: zero but for the slice."""
    shard, whole = given[0], op.outputs[0].shape
    assert isinstance(shard, Shard)
    dim = dim_of(op, len(whole))
    if op.base == "aten.select_backward":
        return OpPlacements(given, (Shard(shard.dim + (shard.dim >= dim), shard.layout),))
    if shard.dim != dim:
        return OpPlacements(given, (shard,))
    if shard.layout.kind != "features":
        return OpPlacements(given, (Shard(dim, stretched(shard.layout, whole[dim])),))
    start, step = op.attr("start", 0), op.attr("step", 1)
    first = start if isinstance(start, int) else 0
    first = max(first + whole[dim] if first < 0 else first, 0)
    owners = np.full(whole[dim], UNKNOWN, np.uint16)
    pace = step if isinstance(step, int) else 1
    owners[first + pace * np.arange(shard.layout.size)] = shard.layout.ranks
    return OpPlacements(given, (Shard(dim, layout_of(owners, "features")),))


def _joined(op: Op, given: Placements) -> OpPlacements:
    """Tensors side by side: sharded across the joint, or each along it."""
    stacks = op.base == "aten.stack"
    rank = len(op.outputs[0].shape)
    dim = dim_of(op, rank)
    shards = [p for p in given if isinstance(p, Shard)]
    full = [bool(tensor.numel) for tensor in op.inputs]
    across = [p for p in shards if stacks or p.dim != dim]
    if across:
        layout = across[0].layout
        for other in across[1:]:
            layout = _one(layout, other.layout)
        if len(across) < len(shards) or len({p.dim for p in across}) > 1:
            return _gathered(given, 1)
        place = across[0].dim
        needed = tuple(Shard(place, layout) if used else REPLICATE for used in full)
        return OpPlacements(needed, (Shard(place + (stacks and place >= dim), layout),))
    if len(shards) < sum(full):
        return _gathered(given, 1)
    owners = np.concatenate([shard.layout.ranks for shard in shards])
    return OpPlacements(given, (Shard(dim, layout_of(owners, shards[0].layout.kind)),))


def _one(left: ShardLayout, right: ShardLayout) -> ShardLayout:
    layout = merged(left, right)
    if layout is None:
        raise Unshardable("its inputs are sharded in different ways")
    return layout


def _labelled(op: Op, dims: Dims, given: Placements) -> OpPlacements:
    needed = list(given)
    layouts: dict[str, ShardLayout] = {}
    for index, placement in enumerate(given):
        if not isinstance(placement, Shard):
            continue
        label = dims.inputs[index][placement.dim]
        layout = placement.layout
        if not label:
            continue
        if _needs_all(op, dims, label, layout):
            needed[index] = REPLICATE
            continue
        label, layout = _many(dims, label, layout)
        layouts[label] = _one(layouts[label], layout) if label in layouts else layout
    # The dimension that is sharded: features of weights come before tokens.
    features = [label for label, layout in layouts.items() if layout.kind == "features"]
    if len(features) > 1:
        raise Unshardable("two of its dimensions are sharded, each by another weight")
    rest = sorted(layouts, key=lambda label: layouts[label].kind != "routed")
    label = next(iter([*features, *rest]), "")
    if not label:
        return OpPlacements(tuple(needed), (REPLICATE,) * len(op.outputs))
    return _with_label(op, dims, given, needed, label, layouts[label])


def _with_label(
    op: Op,
    dims: Dims,
    given: Placements,
    needed: list[Placement],
    label: str,
    layout: ShardLayout,
) -> OpPlacements:
    """The outcome where one label is sharded."""
    for index, labels in enumerate(dims.inputs):
        place = _place(dims, labels, label, layout)
        if place is not None:
            needed[index] = place
        elif isinstance(given[index], Shard) and dims.inputs[index][given[index].dim]:  # type: ignore[union-attr]
            needed[index] = REPLICATE
    outputs = tuple(
        _place(dims, labels, label, layout) or _without(op, dims, label, index)
        for index, labels in enumerate(dims.outputs)
    )
    if label == dims.vocabulary and dims.reductions:
        shape = tuple(
            n for n, name in zip(op.inputs[0].shape, dims.inputs[0], strict=True) if name != label
        )
        return OpPlacements(tuple(needed), outputs, TensorSpec(shape, "float32"), dims.reductions)
    return OpPlacements(tuple(needed), outputs)


def _needs_all(op: Op, dims: Dims, label: str, layout: ShardLayout) -> bool:
    if label not in dims.whole:
        return False
    if layout.kind == "features":
        return True
    local = dims.rows or (layout.kind == "context" and "attention" in op.base)
    return not local


def _many(dims: Dims, label: str, layout: ShardLayout) -> tuple[str, ShardLayout]:
    """The heads of queries, where a label stands for the fewer heads of keys."""
    for many, few, times in dims.repeats:
        if label == few:
            return many, layout_of(np.repeat(layout.ranks, times), layout.kind)
    return label, layout


def _place(dims: Dims, labels: tuple[str, ...], label: str, layout: ShardLayout) -> Shard | None:
    for many, few, times in dims.repeats:
        if label == many and few in labels:
            label, layout = few, layout_of(layout.ranks[::times], layout.kind)
    return Shard(labels.index(label), layout) if label in labels else None


def _without(op: Op, dims: Dims, label: str, index: int) -> Placement:
    """The placement of an output that lacks the sharded dimension: it is summed, as a rule."""
    if label == dims.vocabulary or not (dims.sums_all or any(dims.outputs[index])):
        return REPLICATE
    return Partial(routed=op.base == GROUPED)


_BY_MARKS: tuple[tuple[Collection[str], Callable[[Op, Placements], OpPlacements]], ...] = (
    (JOINS, _joined),
    (MOVES, _moved),
    (_SLICE_GRADIENTS, _gradient_of_slice),
)
