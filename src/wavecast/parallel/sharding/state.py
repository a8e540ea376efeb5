"""What is known of a step while placements are propagated through it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from wavecast.errors import InvalidInput
from wavecast.parallel.sharding.indexing import MOVES
from wavecast.parallel.sharding.outcomes import GROUPED, JOINS
from wavecast.parallel.sharding.placements import (
    REPLICATE,
    Partial,
    Placement,
    Placements,
    Shard,
    ShardLayout,
    even,
)
from wavecast.parallel.sharding.rules import dims_of
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
    found = {
        v: (value.gradient_of, False) for v, value in enumerate(trace.values) if value.gradient_of
    }
    for call in reversed(trace.calls):
        if call.phase is not Phase.BACKWARD or not call.writes or call.writes[0] not in found:
            continue
        base = call.op.base
        if base in SUMS or base in CASTS or base in MOVES:
            name, transposed = found[call.writes[0]]
            for value in call.reads:
                found.setdefault(value, (name, transposed ^ (base == "aten.t")))
    return found


def _to_experts(trace: Trace) -> set[int]:
    """The values from which a grouped matmul follows, with pointwise ops and views between."""
    found: set[int] = set()
    if not any(call.op.base == GROUPED for call in trace):
        return found
    for call in reversed(trace.calls):
        if call.op.base == GROUPED:
            found.update(call.reads[:2])
        elif found.intersection(call.writes) and not _chooses(call.op):
            found.update(call.reads)
    return found


def _chooses(op: Op) -> bool:
    if op.base in MOVES or op.base in JOINS:
        return False
    dims = dims_of(op)
    return dims is None or dims.rows or bool(dims.factors) or bool(dims.whole)
