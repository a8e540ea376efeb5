"""The calls of a backward pass that compute activations again (activation checkpointing)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import pairwise

from wavecast.traces.step import Call, Phase, Trace

_LOSS_GRADIENT = "aten.ones_like"
_NEAR = 5
"""Calls of one block are at most this far apart: a few of them may not be recognised."""


def recomputed(calls: Sequence[Call]) -> set[int]:
    """The positions of the backward calls that repeat the forward pass of their module.

    Forward calls come back in the same order, and read no gradients. Recomputation ends with the
    last tensor that is needed, so the last calls of a module may be missing. One of those that come
    back must then come beside a call that it came beside in the forward pass.

    Where no values were recorded, all calls of a module must come back, since a gradient may run an
    equal op by chance; and one of them must have a gradient that is an op of its own, or come
    beside such a call. Neighbours that may be the gradients of other neighbours do not count: a
    module that reshapes its input and, at its end, shapes it back has a backward pass of just the
    same calls.
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
            expected = calls[own[done]].op if done < len(own) else None
            if (
                expected is not None
                and expected.name == call.op.name
                and expected == call.op
                and not gradients.are_read_by(call)
            ):
                repeated[call.module].append(position)
                first[position] = own[done]
                continue
        if call.phase is Phase.BACKWARD:
            gradients.add(call)
    whole = {name for name, places in repeated.items() if len(places) == len(forward[name])}
    derived = {c.op.name.partition("_backward")[0] for c in calls if "_backward" in c.op.name}
    pairs = _neighbours(first)
    if pairs and not gradients.are_known:
        pairs -= _by_chance(pairs, calls, derived)
    beside = {at for position in pairs for at in (position, position + 1)}
    in_order = {name for name, places in repeated.items() if not beside.isdisjoint(places)}
    if gradients.are_known:
        return {p for name in whole | in_order for p in repeated[name]}
    apart = {name for name in whole if any(calls[p].op.base in derived for p in repeated[name])}
    return {p for name in whole & in_order | apart for p in repeated[name]}


def blocks(positions: Iterable[int]) -> list[list[int]]:
    """The blocks that are computed again one by one, from the positions of their calls.

    Between two of them are the gradients of the first.

    >>> blocks([7, 8, 10, 40, 41])
    [[7, 8, 10], [40, 41]]
    """
    groups: list[list[int]] = []
    for position in sorted(positions):
        if groups and position - groups[-1][-1] <= _NEAR:
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups


def _neighbours(first: dict[int, int]) -> set[int]:
    """The repeated calls whose next call came next in the forward pass, too."""
    return {position for position, at in first.items() if first.get(position + 1) == at + 1}


def _by_chance(pairs: set[int], calls: Sequence[Call], derived: set[str]) -> set[int]:
    """The pairs of neighbours that may be the gradients of another pair of the forward pass.

    A backward pass runs the gradients of a pair in reverse. Unless it is an op of its own
    (`derived`), the gradient of an op reads the output's shape and writes the input's.
    """
    gradients = {
        (_kind(second, reverse=True), _kind(first, reverse=True))
        for first, second in pairwise(calls)
        if first.phase is second.phase is Phase.FORWARD
        and derived.isdisjoint((first.op.base, second.op.base))
    }
    return {p for p in pairs if (_kind(calls[p]), _kind(calls[p + 1])) in gradients}


def _kind(call: Call, reverse: bool = False) -> tuple[object, ...]:
    """The module, op and shapes of a call; in reverse, those that its gradient may have."""
    read, written = frozenset(call.op.inputs), frozenset(call.op.outputs)
    return call.module, call.op.base, *((written, read) if reverse else (read, written))


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


# The repeated blocks of a model, found in the modules of a trace.


_NUMBERED = re.compile(r"^(.*?\.\d+)(\.|$)")
_ROOT = re.compile(r"^([^.#]+)(#\d+)?")


def blocks_of(trace: Trace) -> list[str]:
    """The block that each call belongs to; empty if none."""
    block_of = block_finder(trace)
    return [block_of(call.module) for call in trace]


def block_finder(trace: Trace) -> Callable[[str], str]:
    """A function that gives the block of a module; empty if it is in none.

    A block is the outermost of several similar modules: one that is numbered, as in a ModuleList or
    Sequential, or one of several root modules of the same class. A numbered layer without layers
    inside, as in a stem of a convolution and a norm, is one only if there are no larger ones.
    """
    modules = {call.module for call in trace}
    roots = {module.split(".")[0] for module in modules}
    composed = {match[1] for module in modules if (match := _NUMBERED.match(module)) and match[2]}
    repeated = {match[1] for root in roots if (match := _ROOT.match(root)) and match[2]}

    @cache
    def block_of(module: str) -> str:
        root = _ROOT.match(module)
        if root and root[1] in repeated:
            return module.split(".")[0]
        numbered = _NUMBERED.match(module)
        if numbered is None or (composed and numbered[1] not in composed):
            return ""
        return numbered[1]

    return block_of
