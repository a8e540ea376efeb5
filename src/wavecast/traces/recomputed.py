"""The calls of a backward pass that compute activations again (activation checkpointing)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from wavecast.traces.step import Call, Phase


def recomputed(calls: Sequence[Call]) -> set[int]:
    """The positions of the backward calls that repeat the forward pass of their module.

    A module counts only if all its forward calls come back, in the same order.
    """
    forward: dict[str, list[int]] = defaultdict(list)
    for position, call in enumerate(calls):
        if call.phase is Phase.FORWARD:
            forward[call.module].append(position)
    repeated: dict[str, list[int]] = defaultdict(list)
    for position, call in enumerate(calls):
        own = forward.get(call.module)
        if call.phase is Phase.BACKWARD and own:
            done = len(repeated[call.module])
            if done < len(own) and calls[own[done]].op == call.op:
                repeated[call.module].append(position)
    whole = (places for name, places in repeated.items() if len(places) == len(forward[name]))
    return {position for places in whole for position in places}


def as_issued(calls: Sequence[Call]) -> list[Call]:
    """The calls with the phase in which the host issues them: Python issues recomputed ones."""
    again = recomputed(calls)
    return [
        replace(call, phase=Phase.FORWARD) if position in again else call
        for position, call in enumerate(calls)
    ]
