"""Propagation of placements along the values of a step, on one axis of ranks.

Each call gets the placements of what it reads, and its outcome says which of them must be
redistributed first: partial sums are reduced, shards are gathered, replicas are sliced. As in
Megatron and DTensor, a layer by rows reduces its own output, and the gradient of what layers by
columns read is reduced when it is complete.
"""

from __future__ import annotations

from wavecast.errors import InvalidInput
from wavecast.parallel.sharding.placements import (
    MOVES,
    PARTIAL,
    REPLICATE,
    Partial,
    Placement,
    Placements,
    Shard,
    even,
)
from wavecast.parallel.sharding.rules import dims_of
from wavecast.parallel.sharding.state import (
    CASTS,
    GROUPED,
    JOINS,
    SUMS,
    Exchange,
    OpPlacements,
    PlacementState,
    Unshardable,
    is_new,
    kind_of,
    outcome_of,
)
from wavecast.traces.step import CONTRADICTIONS, Call, Op, Phase, TensorSpec, contradiction

MATMULS = ("aten.mm", "aten.addmm")
_GRADIENTS = ("aten.embedding_dense_backward", "aten.mm", "aten.sum", GROUPED)
_LISTS = ("aten._foreach_", "aten._fused_ada", "aten._fused_sgd", "aten._amp_")


class Propagation(PlacementState):
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
        goal = self._goal_of(call)
        untouched = goal is None and self._copy_of.keys().isdisjoint(call.reads)
        if untouched and all(p is REPLICATE for p in given):
            self._write(position, call, (REPLICATE,) * len(call.writes))
        elif call.op.base.startswith(_LISTS) or self._is_norm(call):
            self._follow_list(position, call, given)
        else:
            self._shard(position, call, given, goal)

    def _shard(self, position: int, call: Call, given: Placements, goal: Shard | None) -> None:
        """Redistribute what a call needs otherwise, and place what it writes."""
        given = self._reduce_inputs(position, call, given)
        if self.policy.sequence and call.op.base in MATMULS:
            given = self._read_gathered(position, call, given)
        if any(kind_of(p) == "routed" for p in given):
            given = self._bring_back(position, call, given)
        outcome = self._outcome(call, given, goal)
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

    def _outcome(self, call: Call, given: Placements, goal: Shard | None) -> OpPlacements:
        try:
            return outcome_of(call.op, given, goal)
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

    def _goal_of(self, call: Call) -> Shard | None:
        """The placement of the parameter whose gradient a call computes."""
        if call.phase is not Phase.BACKWARD or call.op.base not in _GRADIENTS:
            return None
        name, transposed = self._destinations.get(call.writes[0], ("", False))
        shard = self.parameters.get(name)
        rank = len(call.op.outputs[0].shape)
        if not isinstance(shard, Shard):
            return None
        dim = rank - 1 - shard.dim if transposed else shard.dim
        dim += call.op.base == "aten.sum" and rank == 2  # a bias, before it is flat
        fits = dim < rank and call.op.outputs[0].shape[dim] == shard.layout.size
        return Shard(dim, shard.layout) if fits else None

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

    # Partial sums: which ops work on them as they are, and where they are reduced.

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

    # Shards that are gathered, sliced, or sent to experts and back.

    def _redistribute(
        self, position: int, call: Call, index: int, now: Placement, needed: Placement
    ) -> None:
        value = call.reads[index]
        if isinstance(needed, Partial):
            return  # the rest of a sum, which its other terms wait for
        if kind_of(now) == "routed" or kind_of(needed) == "routed":
            self._send(position, call, index, needed)
        elif isinstance(now, Shard) and (
            needed == REPLICATE or kind_of(now) == "tokens" != kind_of(needed)
        ):
            self._gather(position, call, index)
        elif now == REPLICATE and isinstance(needed, Shard):
            self._slice(call, value, needed)
        elif needed != now and not _is_close(now, needed):
            self._refuse(call, "its inputs are sharded along different dimensions")

    def _slice(self, call: Call, value: int, needed: Shard) -> None:
        """Read a part of a replica. A new tensor is created as this part."""
        weight = self._weights.get(value, "")
        if weight and needed.layout.kind == "features":
            self._refuse(call, f"it needs a shard of {weight}, which the plan leaves replicated")
        maker_at = self._producer.get(value)
        maker = None if maker_at is None else self.trace.calls[maker_at]
        if maker is None or maker_at is None or len(maker.writes) != 1:
            return
        created = not maker.op.inputs or is_new(maker.op)
        if created and value not in self._read and value not in self.placed:
            inputs, _ = self.calls.get(maker_at, ((REPLICATE,) * len(maker.reads), ()))
            self.calls[maker_at] = inputs, (needed,)
            self.first[value] = needed
            self._set(value, needed)

    def _gather(self, position: int, call: Call, index: int) -> None:
        """Gather what a call reads: as it was before casts and views of the same layer."""
        value = call.reads[index]
        if self.policy.axis == "context":
            if call.op.base not in MOVES:
                raise InvalidInput(
                    f"{call.module} attends with matmuls of its own, which context="
                    f"{self.policy.ranks} cannot shard; use scaled_dot_product_attention, with a "
                    "kernel that the GPU has for its dtype and shapes"
                )
            return  # the rank that has the token goes on with it
        # Each layer gathers the gradient of its own output, and layers share what they read.
        scope = "" if self._is_forward(position, call) else call.module
        known = self._gathered.get(value, {}).get(scope)
        if known is None:
            root, at, chain = self._root(position, call, value)
            known = self._gathered.get(root, {}).get(scope)
            if known is None:
                known = self._exchange(at, "all_gather", root, REPLICATE, self.trace.calls[at])
                self._gathered.setdefault(root, {})[scope] = known
            self._regather(chain, known)
            if chain:
                self._gathered.setdefault(value, {})[scope] = -1
                return
        if known >= 0:
            self.copies[position, index] = known

    def _read_gathered(self, position: int, call: Call, given: Placements) -> Placements:
        """Let a matmul read what was gathered for another one, as an adapter beside a layer."""
        for index, placement in enumerate(given):
            if kind_of(placement) == "tokens" and call.phase is Phase.FORWARD:
                root, _, _ = self._root(position, call, call.reads[index])
                if "" in self._gathered.get(root, {}):
                    self._gather(position, call, index)
                    given = (*given[:index], REPLICATE, *given[index + 1 :])
        return given

    def _root(self, position: int, call: Call, value: int) -> tuple[int, int, list[int]]:
        """The value before casts and views, the first of those calls, and all of them."""
        chain: list[int] = []
        at = position
        while (maker_at := self._producer.get(value, at)) < at:
            maker = self.trace.calls[maker_at]
            same = maker.phase is call.phase and (
                maker.op.base in MOVES or (maker.op.base in CASTS and maker.module == call.module)
            )
            source = maker.reads[0] if len(maker.reads) == 1 else -1
            if not same or not isinstance(self.placed.get(source), Shard):
                break
            if value in self._copy_of:
                break
            chain.append(maker_at)
            value, at = source, maker_at
        return value, at, chain

    def _regather(self, chain: list[int], exchange: int) -> None:
        """Let casts and views of a value work on its gathered copy."""
        for number, maker_at in enumerate(reversed(chain)):
            maker = self.trace.calls[maker_at]
            if number == 0:
                self.copies[maker_at, 0] = exchange
            self.calls[maker_at] = (REPLICATE,), (REPLICATE,) * len(maker.writes)
            for value in maker.writes:
                if self._first_at.get(value) == maker_at:
                    self.first[value] = REPLICATE
                self._set(value, REPLICATE)

    def _gather_output(self, position: int, call: Call) -> None:
        """Gather the output of a layer at once, if the plan says so: behind the view of it."""
        if not self.policy.gathered or call.phase is not Phase.FORWARD:
            return
        at = call
        if call.op.base in MOVES and position:
            at = self.trace.calls[position - 1]
        elif call.op.base in MATMULS and self._is_viewed(position, call):
            return
        if at.op.base not in MATMULS or call.writes[0] not in self.placed:
            return
        if at is not call and at.writes[0] not in call.reads:
            return
        if any(self._weights.get(value, "") in self.policy.gathered for value in at.reads):
            self._replace(position + 1, "all_gather", call.writes[0], REPLICATE, call)

    def _is_viewed(self, position: int, call: Call) -> bool:
        following = self.trace.calls[position + 1] if position + 1 < len(self.trace) else None
        return (
            following is not None
            and following.op.base in MOVES
            and call.writes[0] in following.reads
        )

    def _bring_back(self, position: int, call: Call, given: Placements) -> Placements:
        """Send rows back from their experts, unless a further matmul of the experts follows."""
        op = call.op
        if op.base == GROUPED or op.base in MOVES or call.writes[0] in self._to_experts:
            return given
        for index, placement in enumerate(given):
            if isinstance(placement, Shard) and placement.layout.kind == "routed":
                self._send(position, call, index, REPLICATE)
        return tuple(self.placed.get(value, REPLICATE) for value in call.reads)

    def _send(self, position: int, call: Call, index: int, needed: Placement) -> None:
        """Send rows to the ranks of their experts, or back."""
        value = call.reads[index]
        if call.op.base != GROUPED and needed != REPLICATE:
            return  # what is known of the rows is known where they are
        chain: list[int] = []
        at = position
        while needed != REPLICATE and (maker_at := self._producer.get(value, at)) < at:
            maker = self.trace.calls[maker_at]
            if maker.op.base not in MOVES or maker.phase is not call.phase:
                break
            chain.append(maker_at)
            value, at = maker.reads[0], maker_at
        if isinstance(needed, Shard):
            needed = Shard(0, needed.layout)
        if self.placed.get(value, REPLICATE) != needed:
            self._replace(at, "all_to_all", value, needed, call)
        for maker_at in reversed(chain):
            maker = self.trace.calls[maker_at]
            outcome = outcome_of(maker.op, (self.placed[maker.reads[0]],))
            copy = self._copy_of.get(maker.reads[0])
            if copy is not None:
                self.copies[maker_at, 0] = copy
            self.calls[maker_at] = outcome.inputs, outcome.outputs
            self.first[maker.writes[0]] = outcome.outputs[0]
            self._set(maker.writes[0], outcome.outputs[0])


def _is_close(now: Placement, needed: Placement) -> bool:
    """Whether two shards differ in their layout only, as labels shifted by a token."""
    return isinstance(now, Shard) and isinstance(needed, Shard) and now.dim == needed.dim


def _of_state(spec: TensorSpec, shard: Shard) -> Placement | None:
    """The placement of an optimizer state, or a gradient, of a sharded parameter."""
    size = shard.layout.size
    if shard.dim < len(spec.shape) and spec.shape[shard.dim] == size:
        return shard
    if len(spec.shape) == 1 and spec.shape[0] >= size and not spec.shape[0] % size:
        return Shard(0, even(spec.shape[0], int(shard.layout.ranks.max()) + 1, "features"))
    return None
