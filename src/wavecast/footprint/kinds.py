"""The kinds of GPU memory, and how much there is of each kind during a step."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import accumulate

from wavecast.traces.step import Allocation, Op, Phase, Role, Trace

KINDS = (
    *("weights", "gradients", "optimizer state", "activations", "inputs"),
    *("workspace", "temporary", "weight copies"),
)
"""The kinds of memory. "activations" are tensors that the forward pass keeps for the backward.

"weight copies" are weights in half precision, which autocast makes in each step: their size does
not depend on the batch."""

TBD_KINDS: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights",),
    "weight gradients": ("gradients",),
    "feature maps": ("activations", "inputs"),
    "workspace": ("workspace",),
    "dynamic": ("optimizer state", "temporary", "weight copies"),
}
"""TBD's five kinds (Zhu et al., IISWC 2018, section III-D3), and which of `KINDS` each holds.

Weight copies are dynamic, which the paper defines as what is allocated during the iterations."""

_ROLES = {
    Role.PARAMETER: "weights",
    Role.BUFFER: "weights",
    Role.GRADIENT: "gradients",
    Role.OPTIMIZER_STATE: "optimizer state",
    Role.INPUT: "inputs",
    Role.WORKSPACE: "workspace",
    Role.WEIGHT_COPY: "weight copies",
}

_HALF = ("float16", "bfloat16")


class KindFinder:
    """Finds the kind of each allocation of a step.

    Memory that a forward pass allocates and that still lives when the next backward pass begins is
    an activation. Other memory that is allocated during the step is temporary.
    """

    def __init__(self, trace: Trace) -> None:
        self._backward = [i for i, call in enumerate(trace) if call.phase is Phase.BACKWARD]
        self._forward = [call.phase is Phase.FORWARD for call in trace]
        self._copying = weight_copy_calls(trace)

    def of(self, allocation: Allocation) -> str:
        """The kind of an allocation, one of `KINDS`."""
        kind = _ROLES.get(allocation.role)
        if kind is not None:
            return kind
        born = allocation.born or 0
        if allocation.born in self._copying:
            return "weight copies"
        if born >= len(self._forward) or not self._forward[born]:
            return "temporary"
        following = bisect.bisect_left(self._backward, born)
        if following == len(self._backward):
            return "temporary"
        crosses = allocation.freed is None or allocation.freed > self._backward[following]
        return "activations" if crosses else "temporary"


class KindTimeline:
    """Bytes of each kind during each call of a step."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @cached_property
    def by_kind(self) -> Mapping[str, tuple[int, ...]]:
        """Bytes during each call, by kind."""
        length = max(1, len(self.trace))
        finder = KindFinder(self.trace)
        changes = {kind: [0] * (length + 1) for kind in KINDS}
        for allocation in self.trace.allocations:
            change = changes[finder.of(allocation)]
            change[min(allocation.born or 0, length)] += allocation.nbytes
            if allocation.freed is not None:
                change[min(allocation.freed, length)] -= allocation.nbytes
        return {kind: tuple(accumulate(change[:length])) for kind, change in changes.items()}

    @cached_property
    def totals(self) -> tuple[int, ...]:
        """Bytes during each call, of all kinds together."""
        return tuple(map(sum, zip(*self.by_kind.values(), strict=True)))


def peak_bytes(allocations: Iterable[Allocation]) -> int:
    """The largest sum of these allocations at any time of the step, in bytes."""
    changes: dict[int, int] = {}
    for allocation in allocations:
        born = -1 if allocation.born is None else allocation.born
        changes[born] = changes.get(born, 0) + allocation.nbytes
        if allocation.freed is not None:
            changes[allocation.freed] = changes.get(allocation.freed, 0) - allocation.nbytes
    return max(accumulate(changes[time] for time in sorted(changes)), default=0)


def peak_by_tbd_kind(trace: Trace) -> dict[str, int | None]:
    """The peak of each of TBD's kinds during the step, in bytes; None when unknown.

    Measured traces contain the workspace; `with_workspaces` adds it to others.
    """
    if not trace.allocations:
        return dict.fromkeys(TBD_KINDS)
    finder = KindFinder(trace)
    by_kind: dict[str, list[Allocation]] = {kind: [] for kind in KINDS}
    for allocation in trace.allocations:
        by_kind[finder.of(allocation)].append(allocation)
    peaks: dict[str, int | None] = {
        name: peak_bytes(allocation for kind in kinds for allocation in by_kind[kind])
        for name, kinds in TBD_KINDS.items()
    }
    return peaks if by_kind["workspace"] else peaks | {"workspace": None}


def weight_copy_calls(trace: Trace) -> frozenset[int]:
    """The positions of the calls that allocate copies of weights; none if the copies have a role.

    The recorder gives copies `Role.WEIGHT_COPY`. In older traces they are found by what autocast
    does: it casts a weight to half precision in the forward pass, and its gradient of the same
    shape back to float32 in the backward pass. A table of embeddings that is also the last layer
    has no such gradient, but the lookup shows its shape. cuDNN's recurrent layers get one flat copy
    that has half of the bytes of their flat weights.
    """
    if trace.values or any(a.role is Role.WEIGHT_COPY for a in trace.allocations):
        return frozenset()
    flat = {a.nbytes for a in trace.allocations if a.role is Role.PARAMETER}
    shapes = set(_gradient_shapes(trace))
    lookups = (call.op for call in trace if call.op.base == "aten.embedding")
    shapes |= {table.shape for op in lookups for table in op.inputs[:1]}
    return frozenset(
        position
        for position, call in enumerate(trace)
        if call.phase is Phase.FORWARD
        and (
            (_casts(call.op, ("float32",), _HALF) and call.op.inputs[0].shape in shapes)
            or _is_flat_copy(call.op, flat)
        )
    )


def _gradient_shapes(trace: Trace) -> Iterator[tuple[int, ...]]:
    """The shapes of the weights whose gradients are cast from half precision."""
    gradients = {a.born for a in trace.allocations if a.role is Role.GRADIENT}
    for position in gradients - {None}:
        if position is not None and position < len(trace):
            op = trace.calls[position].op
            if _casts(op, _HALF, ("float32",)):
                yield op.outputs[0].shape


def _casts(op: Op, before: tuple[str, ...], after: tuple[str, ...]) -> bool:
    if op.base != "aten._to_copy" or not op.inputs or not op.outputs:
        return False
    return op.inputs[0].dtype in before and op.outputs[0].dtype in after


def _is_flat_copy(op: Op, weights_bytes: set[int]) -> bool:
    if op.base != "aten.zeros" or not op.outputs:
        return False
    copy = op.outputs[0]
    return len(copy.shape) == 1 and copy.dtype in _HALF and 2 * copy.nbytes in weights_bytes
