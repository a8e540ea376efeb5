"""Propagation of placements along the values of a step, on one axis of ranks.

Each call gets the placements of what it reads, and its outcome says which of them must be
redistributed first: partial sums are reduced, shards are gathered, replicas are sliced. As in
Megatron and DTensor, a layer by rows reduces its own output, and the gradient of what layers by
columns read is reduced when it is complete.
"""

from __future__ import annotations

from wavecast.parallel.sharding.indexing import MOVES
from wavecast.parallel.sharding.outcomes import GROUPED, OpPlacements, Unshardable, outcome_of
from wavecast.parallel.sharding.placements import (
    PARTIAL,
    REPLICATE,
    Partial,
    Placement,
    Placements,
    Shard,
    even,
)
from wavecast.parallel.sharding.redistribution import MATMULS, Redistribution
from wavecast.parallel.sharding.state import CASTS, Exchange, kind_of
from wavecast.traces.contradictions import CONTRADICTIONS, contradiction
from wavecast.traces.step import Call, Phase, TensorSpec

_GRADIENTS = ("aten.embedding_dense_backward", "aten.mm", "aten.sum", GROUPED)
_LISTS = ("aten._foreach_", "aten._fused_ada", "aten._fused_sgd", "aten._amp_")


class Propagation(Redistribution):
    """The placements of a step on one axis of ranks, from those of its parameters and inputs."""

    def run(self) -> Propagation:
        """Propagate through all calls.

        Raises:
            InvalidInput: an op cannot be sharded so. Says which, where and why.
        """
        backward = [i for i, c in enumerate(self.trace) if c.phase is Phase.BACKWARD]
        end = backward[-1] + 1 if backward else len(self.trace)
        for position, call in enumerate(self.trace):
            if position == end:
                self._finish_gradients(end)
            try:
                self._follow(position, call)
            except CONTRADICTIONS as error:
                raise contradiction("sharding", call, error) from error
            self._read.update(call.reads)
            self._read.difference_update(call.writes)
            for value in call.writes:
                self._producer[value] = position
        if self._norms_end and self.policy.reduces:
            self._sum_norms()
        return self

    def _start(self, value: int) -> None:
        """The placement of a value that existed before the step."""
        if value in self._producer or value in self.first:
            return
        known = self.trace.values[value]
        name = known.parameter or known.gradient_of
        if not name:
            return
        self._weights[value] = name if known.parameter else ""
        placement = self.parameters.get(name)
        if isinstance(placement, Shard):
            placement = _of_state(known.spec, placement)
            if placement is not None:
                self._set(value, placement)
                self.first[value] = placement

    def _follow(self, position: int, call: Call) -> None:
        for value in call.reads:
            if value not in self._producer:
                self._start(value)
        self._begin_tokens(position, call)
        given = tuple(self.placed.get(value, REPLICATE) for value in call.reads)
        if any(v in self.values and v not in self._producer for v in call.writes):
            outputs = tuple(self.values.get(v, REPLICATE) for v in call.writes)
            self._record(position, call, given, outputs)
            return
        wanted = self._wanted_by(call)
        untouched = wanted is None and self._copy_of.keys().isdisjoint(call.reads)
        if untouched and all(p is REPLICATE for p in given):
            self._write(position, call, (REPLICATE,) * len(call.writes))
        elif call.op.base.startswith(_LISTS) or self._is_norm(call):
            self._follow_list(position, call, given)
        else:
            self._shard(position, call, given, wanted)

    def _shard(self, position: int, call: Call, given: Placements, wanted: Shard | None) -> None:
        """Redistribute what a call needs otherwise, and place what it writes."""
        given = self._reduce_inputs(position, call, given)
        if self.policy.sequence and call.op.base in MATMULS:
            given = self._read_gathered(position, call, given)
        if any(kind_of(p) == "routed" for p in given):
            given = self._bring_back(position, call, given)
        outcome = self._outcome(call, given, wanted)
        for index, (now, needed) in enumerate(zip(given, outcome.inputs, strict=True)):
            if now != needed:
                self._redistribute(position, call, index, now, needed)
        outputs = outcome.outputs
        if not self.policy.reduces:
            outputs = tuple(REPLICATE if isinstance(p, Partial) else p for p in outputs)
        self._record(position, call, outcome.inputs, outputs)
        if outcome.rows is not None:
            rows = Exchange(
                position + 1, "rows", call.reads[0], PARTIAL, REPLICATE, call, outcome.rows
            )
            self.exchanges += [rows] * outcome.reductions
        self._gather_output(position, call)

    def _outcome(self, call: Call, given: Placements, wanted: Shard | None) -> OpPlacements:
        try:
            return outcome_of(call.op, given, wanted)
        except Unshardable as error:
            self._refuse(call, str(error))

    def _record(self, position: int, call: Call, inputs: Placements, outputs: Placements) -> None:
        for index, value in enumerate(call.reads):
            copy = self._copy_of.get(value)
            if copy is not None and (position, index) not in self.copies:
                self.copies[position, index] = copy
        self.calls[position] = inputs, outputs
        self._write(position, call, outputs)

    def _write(self, position: int, call: Call, outputs: Placements) -> None:
        base = call.op.base
        name = ""
        if (base in MOVES or base in CASTS) and call.reads:
            name = self._weights.get(call.reads[0], "")
        for value, placement in zip(call.writes, outputs, strict=True):
            rank = len(self.trace.values[value].spec.shape)
            if isinstance(placement, Shard) and placement.dim >= rank:
                self._refuse(call, f"what it writes has {rank} dimensions")
            if value not in call.reads:
                self._copy_of.pop(value, None)
                self._weights.pop(value, None)
                if name:
                    self._weights[value] = name
            if value not in self.first:
                self.first[value] = placement
                self._first_at[value] = position
            self._set(value, placement)
            self._gathered.pop(value, None)
            if isinstance(placement, Shard) and placement.layout.kind == "tokens":
                self._token_rows[placement.layout.size] = placement.layout

    def _begin_tokens(self, position: int, call: Call) -> None:
        for value in self.begins.get(position, ()):
            if value in call.reads and value not in self.placed:
                spec = self.trace.values[value].spec
                self.placed[value] = self._tokens(spec)

    def _wanted_by(self, call: Call) -> Shard | None:
        """The placement of the parameter whose gradient a call computes."""
        if call.phase is not Phase.BACKWARD or call.op.base not in _GRADIENTS:
            return None
        name, transposed = self._destinations.get(call.writes[0], ("", False))
        wanted = self.parameters.get(name)
        rank = len(call.op.outputs[0].shape)
        if not isinstance(wanted, Shard):
            return None
        dim = rank - 1 - wanted.dim if transposed else wanted.dim
        dim += call.op.base == "aten.sum" and rank == 2  # a bias, before it is flat
        fits = dim < rank and call.op.outputs[0].shape[dim] == wanted.layout.size
        return Shard(dim, wanted.layout) if fits else None

    def _is_norm(self, call: Call) -> bool:
        """Whether a call outside of the passes reduces a gradient to a number."""
        passes = (Phase.FORWARD, Phase.BACKWARD)
        return call.phase not in passes and all(not t.shape for t in call.op.outputs)

    def _follow_list(self, position: int, call: Call, given: Placements) -> None:
        """Ops on lists: each output is like the input that it overwrites or follows."""
        inputs = dict(zip(call.reads, given, strict=True))
        outputs: list[Placement] = []
        for index, value in enumerate(call.writes):
            if value in inputs:
                outputs.append(inputs[value])
            elif not call.op.outputs[index].shape:
                outputs.append(REPLICATE)
                self._norms_end = position + 1
            else:
                outputs.append(given[index] if index < len(given) else REPLICATE)
        self._record(position, call, given, tuple(outputs))


def _of_state(spec: TensorSpec, shard: Shard) -> Placement | None:
    """The placement of an optimizer state, or a gradient, of a sharded parameter."""
    size = shard.layout.size
    if shard.dim < len(spec.shape) and spec.shape[shard.dim] == size:
        return shard
    if len(spec.shape) == 1 and spec.shape[0] >= size and not spec.shape[0] % size:
        return Shard(0, even(spec.shape[0], int(shard.layout.ranks.max()) + 1, "features"))
    return None
