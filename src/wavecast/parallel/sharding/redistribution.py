"""Shards that are gathered, sliced, or sent to experts and back."""

from __future__ import annotations

from wavecast.errors import InvalidInput
from wavecast.parallel.sharding.indexing import MOVES
from wavecast.parallel.sharding.outcomes import GROUPED, is_new, outcome_of
from wavecast.parallel.sharding.partial_sums import PartialSums
from wavecast.parallel.sharding.placements import REPLICATE, Partial, Placement, Placements, Shard
from wavecast.parallel.sharding.state import CASTS, kind_of
from wavecast.traces.step import Call, Phase

MATMULS = ("aten.mm", "aten.addmm")


class Redistribution(PartialSums):
    """The part of the propagation that deals with shards."""

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
