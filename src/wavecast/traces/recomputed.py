"""The calls of a backward pass that compute activations again (activation checkpointing)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from wavecast.traces.step import Call, Phase

_LOSS_GRADIENT = "aten.ones_like"


def recomputed(calls: Sequence[Call]) -> set[int]:
    """The positions of the backward calls that repeat the forward pass of their module.

    Forward calls come back in the same order, and read no gradients. Recomputation ends with the
    last tensor that is needed, so the last calls of a module may be missing. One of those that come
    back must then come beside a call that it came beside in the forward pass.

    Where no values were recorded, all calls of a module must come back, since a gradient may run an
    equal op by chance; and one of them must have a gradient that is an op of its own, or come
    beside such a call.
    """
    forward: dict[str, list[int]] = defaultdict(list)
    for position, call in enumerate(calls):
        if call.phase is Phase.FORWARD:
            forward[call.module].append(position)
    repeated: dict[str, list[int]] = defaultdict(list)
    first: dict[int, int] = {}
    gradients = _Gradients(calls)
    for position, call in enumerate(calls):
        own = forward.get(call.module)
        if call.phase is Phase.BACKWARD and own:
            done = len(repeated[call.module])
            wanted = calls[own[done]].op if done < len(own) else None
            if (
                wanted is not None
                and wanted.name == call.op.name
                and wanted == call.op
                and not gradients.are_read_by(call)
            ):
                repeated[call.module].append(position)
                first[position] = own[done]
                continue
        if call.phase is Phase.BACKWARD:
            gradients.add(call)
    whole = {name for name, places in repeated.items() if len(places) == len(forward[name])}
    in_order = {
        name for name, places in repeated.items() if any(_in_order(p, first) for p in places)
    }
    if gradients.are_known:
        return {p for name in whole | in_order for p in repeated[name]}
    derived = {c.op.name.partition("_backward")[0] for c in calls if "_backward" in c.op.name}
    apart = {name for name in whole if any(calls[p].op.base in derived for p in repeated[name])}
    return {p for name in whole & in_order | apart for p in repeated[name]}


def _in_order(position: int, first: dict[int, int]) -> bool:
    """Whether a neighbour of a repeated call was its neighbour in the forward pass, too."""
    at = first[position]
    return first.get(position - 1) == at - 1 or first.get(position + 1) == at + 1


class _Gradients:
    """The values that a backward pass computes from the gradient of the loss."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.are_known = any(call.reads for call in calls)
        self._known: set[int] = set()
        self._forward = {
            value
            for call in calls
            if call.phase is Phase.FORWARD
            for value in (*call.reads, *call.writes)
        }

    def are_read_by(self, call: Call) -> bool:
        return not self._known.isdisjoint(call.reads)

    def add(self, call: Call) -> None:
        """Note what a call computes from gradients; the first call makes that of the loss."""
        if not self._known or call.op.base == _LOSS_GRADIENT or self.are_read_by(call):
            self._known.update(value for value in call.writes if value not in self._forward)
