"""Partial sums: which ops work on them as they are, and where they are reduced."""

from __future__ import annotations

from wavecast.parallel.sharding.indexing import MOVES
from wavecast.parallel.sharding.outcomes import JOINS, is_new
from wavecast.parallel.sharding.placements import (
    PARTIAL,
    REPLICATE,
    Partial,
    Placements,
    Shard,
)
from wavecast.parallel.sharding.rules import dims_of
from wavecast.parallel.sharding.state import CASTS, SUMS, Exchange, PlacementState, kind_of
from wavecast.traces.step import Call, Op, TensorSpec


class PartialSums(PlacementState):
    """The part of the propagation that deals with partial sums."""

    def _reduce_inputs(self, position: int, call: Call, given: Placements) -> Placements:
        """The placements of what a call reads, once partial sums were reduced if need be."""
        if not any(isinstance(p, Partial) for p in given) or self._passes(position, call, given):
            return given
        for value in call.reads:
            if isinstance(self.placed.get(value), Partial):
                self._reduce(position, value)
        return tuple(self.placed.get(value, REPLICATE) for value in call.reads)

    def _passes(self, position: int, call: Call, given: Placements) -> bool:
        """Whether an op works on partial sums as they are."""
        if not self.policy.reduces:
            return True
        op = call.op
        partial = [isinstance(p, Partial) for p in given]
        forward = self._is_forward(position, call)
        routed = any(isinstance(p, Partial) and p.routed for p in given)
        if op.base in SUMS and self.policy.joint and not forward and not routed:
            return True  # the rest of a gradient is summed with it
        if any(isinstance(p, Shard) for p in given):
            return False
        all_partial = all(partial[i] or not t.numel for i, t in enumerate(op.inputs))
        if op.base in MOVES or (op.base in JOINS and all_partial) or is_new(op):
            return True
        leads = call.writes and call.writes[0] in self._destinations
        if leads and (op.base in CASTS or op.base in SUMS):
            return True
        if routed:
            rows = [isinstance(p, Partial) and p.routed for p in given]
            return rows == partial and self._passes_rows(op, partial)
        return op.base in CASTS and not forward

    def _passes_rows(self, op: Op, partial: list[bool]) -> bool:
        """Whether rows in the order of experts stay partial: while they do not get more."""
        dims = dims_of(op)
        size = max(t.numel for t, p in zip(op.inputs, partial, strict=True) if p)
        if dims is None or op.outputs[0].numel > size:
            return op.base in CASTS
        if op.base in CASTS:
            return True
        if op.base.removesuffix("_") in ("aten.add", "aten.sub"):
            return all(partial)
        return dims.linear and sum(partial) == 1 and not (op.base == "aten.div" and partial[-1])

    def _reduce(self, position: int, value: int) -> None:
        """Sum a partial value over the ranks, where it was written."""
        spec = self.trace.values[value].spec
        maker_at = self._producer.get(value, position - 1)
        maker = self.trace.calls[maker_at]
        target = self._tokens(spec)
        memory = self.trace.values[value].allocation
        if isinstance(target, Shard):
            self._replace(maker_at + 1, "reduce_scatter", value, target, maker)
            return
        self._exchange(maker_at + 1, "all_reduce", value, target, maker)
        # In place: all views of the memory show the sum.
        for other in self._partial_in.pop(memory, {value}) | {value}:
            if isinstance(self.placed.get(other), Partial):
                self._set(other, REPLICATE)

    def _finish_gradients(self, end: int) -> None:
        """Sum the gradients of replicated weights that each rank has for its own tokens only."""
        if not self.policy.reduces:
            return
        by_dtype: dict[str, list[int]] = {}
        last = self.trace.calls[end - 1]
        for value, placement in list(self.placed.items()):
            known = self.trace.values[value]
            if not known.gradient_of:
                continue
            kept = self.parameters.get(known.gradient_of, REPLICATE)
            if known.gradient_of in self.policy.elsewhere:
                self._set(value, REPLICATE)
            elif kind_of(placement) == "tokens" and kept == REPLICATE:
                # One row a token, as a table of positions.
                self._replace(end, "all_gather", value, REPLICATE, Call(last.op, last.phase))
            elif isinstance(placement, Partial) and kept == REPLICATE:
                by_dtype.setdefault(known.spec.dtype, []).append(value)
                self._set(value, REPLICATE)
        for dtype, values in by_dtype.items():
            spec = TensorSpec((sum(self.trace.values[v].spec.numel for v in values),), dtype)
            self.exchanges.append(
                Exchange(
                    *(end, "all_reduce", values[0], PARTIAL, REPLICATE, Call(last.op, last.phase)),
                    *(spec, tuple(values)),
                )
            )

    def _sum_norms(self) -> None:
        """Sum the norm of all gradients over the ranks, as clipping needs it."""
        call = self.trace.calls[self._norms_end - 1]
        spec = TensorSpec((1,), "float32")
        self.exchanges.append(
            Exchange(self._norms_end, "rows", call.reads[0], PARTIAL, REPLICATE, call, spec)
        )
