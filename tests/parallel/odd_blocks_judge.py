"""Compares the rank that `spread` computes with the trace of parallel code for the same plan.

The collectives must be the same: kind, bytes that the rank gives, and order. The ops of each phase
must be the same: name, local shapes and types, and groups of a convolution. Their order is not
compared. Only these ops are ignored:

1. Views, and copies that keep the type (`clone`, `copy_`, `contiguous`). They depend on strides.
2. `cat` into what a collective reads, and of the pieces that one wrote. DTensor moves the sharded
   dimension to the front and back.
3. The division of a row-wise layer's bias by the number of ranks. DTensor adds a share on each.
4. For a table sharded by vocabulary, the masks of its lookup. For logits sharded by vocabulary,
   the ops of the loss, which DTensor writes in single ops. The collectives of both count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from wavecast import ops
from wavecast.parallel.spreading import spread
from wavecast.parallel.strategy import Parallel
from wavecast.traces.step import Call, Phase, Trace

Collective = tuple[str, int]
"""The kind, and the bytes that one rank gives."""
LocalOp = tuple[str, str, tuple[Any, ...], tuple[Any, ...], Any]
"""The phase, the name, the shapes and types that it reads and writes, and its groups."""

_COPIES = ("aten.clone", "aten.copy_", "aten.contiguous")
_MARKS = (ops.Kind.VIEW, ops.Kind.SYNC, ops.Kind.COLLECTIVE)
_LOOKUPS = ("aten.embedding", "aten.embedding_dense_backward")


@dataclass(frozen=True)
class Comparison:
    """What one rank does by our propagation, and by the reference."""

    collectives: list[Collective]
    expected_collectives: list[Collective]
    extra: Counter[LocalOp]
    """Ops that only our rank runs."""
    missing: Counter[LocalOp]
    """Ops that only the reference runs."""

    @property
    def difference(self) -> str | None:
        """The first difference, in words. None if there is none."""
        pairs = zip_longest(self.collectives, self.expected_collectives)
        for index, (ours, theirs) in enumerate(pairs):
            if ours != theirs:
                return (
                    f"collective {index} is {_shown(ours)}, the reference has {_shown(theirs)} "
                    f"({len(self.collectives)} and {len(self.expected_collectives)} in all)"
                )
        if not self.extra and not self.missing:
            return None
        return (
            f"{self.extra.total()} ops are extra and {self.missing.total()} are missing: "
            f"{self._first_op()}"
        )

    def _first_op(self) -> str:
        for ours in self.extra:
            for theirs in self.missing:
                if ours[:2] == theirs[:2] and len(ours[2]) == len(theirs[2]):
                    return f"{' '.join(ours[:2])} has {_unlike(ours, theirs)}"
        difference = next(iter(self.extra or self.missing))
        what = "extra" if self.extra else "missing"
        return f"{' '.join(difference[:2])} {difference[2][:4]} is {what}"


def compare(trace: Trace, strategy: Parallel, reference: Trace) -> Comparison:
    """Spread a step of one GPU, and compare its rank with a traced rank.

    Raises:
        InvalidInput: the step cannot be spread this way.
    """
    return compare_ranks(spread(trace, strategy).groups[0].parts[0].last, strategy, reference)


def compare_ranks(rank: Trace, strategy: Parallel, reference: Trace) -> Comparison:
    """Compare what a rank runs with what a rank of the reference runs."""
    plan = strategy.tensor_plan or {}
    ours, theirs = (Counter(local_ops(each, plan, strategy.tensor)) for each in (rank, reference))
    return Comparison(collectives(rank), collectives(reference), ours - theirs, theirs - ours)


def collectives(trace: Trace) -> list[Collective]:
    """The collectives of a rank, in order."""
    return [
        (call.op.name.removeprefix("nccl."), sum(tensor.nbytes for tensor in call.op.inputs))
        for call in trace
        if call.op.name.startswith("nccl.")
    ]


def local_ops(trace: Trace, plan: Mapping[str, str], ranks: int) -> Iterator[LocalOp]:
    """The ops of a rank that count."""
    exchanged = _exchanged(trace)
    tables = [path for path, style in plan.items() if style == "embedding_rowwise"]
    for call in trace:
        name = call.op.base
        if ops.kind(call.op) in _MARKS or (name in _COPIES and _keeps_type(call)):
            continue
        if name == "aten.cat" and exchanged & {_root(trace, v) for v in call.reads + call.writes}:
            continue
        if name == "aten.div" and call.op.attr("other") == ranks and _is_vector(call):
            continue
        if name not in _LOOKUPS and any(call.module.endswith(f".{path}") for path in tables):
            continue
        if plan.get("output") == "colwise" and _is_loss(call):
            continue
        read, written = (
            tuple((tensor.shape, tensor.dtype) for tensor in tensors)
            for tensors in (call.op.inputs, call.op.outputs)
        )
        yield call.phase.value, name, read, written, call.op.attr("groups")


def _exchanged(trace: Trace) -> set[int]:
    """What all-gathers write and other collectives read, as the values that were not views."""
    exchanged = set()
    for call in trace:
        if call.op.name.startswith("nccl."):
            values = call.writes if call.op.name == "nccl.all_gather" else call.reads
            exchanged |= {_root(trace, value) for value in values}
    return exchanged


def _root(trace: Trace, value: int) -> int:
    while (source := trace.values[value].view_of) is not None:
        value = source
    return value


def _keeps_type(call: Call) -> bool:
    return len({tensor.dtype for tensor in (*call.op.inputs, *call.op.outputs)}) == 1


def _is_vector(call: Call) -> bool:
    return len(call.op.outputs[0].shape) == 1


def _is_loss(call: Call) -> bool:
    return not call.module and call.phase in (Phase.FORWARD, Phase.BACKWARD)


def _unlike(ours: LocalOp, theirs: LocalOp) -> str:
    """The first tensor, or the groups, in which two ops differ."""
    for kind, at in (("input", 2), ("output", 3)):
        for index, (own, reference) in enumerate(zip(ours[at], theirs[at], strict=False)):
            if own != reference:
                return f"{kind} {index} of {own}, the reference of {reference}"
    return f"groups {ours[4]}, the reference {theirs[4]}"


def _shown(collective: Collective | None) -> str:
    return "none" if collective is None else f"{collective[0]} of {collective[1]:,} bytes"
