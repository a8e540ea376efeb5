"""What GPU memory is for: one taxonomy, and how much there is of each kind during a step."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import accumulate

from wavecast.traces.step import Allocation, Phase, Role, Trace

KINDS = (
    *("weights", "gradients", "optimizer state", "activations", "inputs"),
    *("workspace", "temporary"),
)
"""What memory is for. "activations" are what a forward pass keeps for a backward pass."""

TBD_KINDS: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights",),
    "weight gradients": ("gradients",),
    "feature maps": ("activations", "inputs"),
    "workspace": ("workspace",),
    "dynamic": ("optimizer state", "temporary"),
}
"""TBD's five kinds (Zhu et al., IISWC 2018, section III-D3), and which of `KINDS` each holds."""

_ROLES = {
    Role.PARAMETER: "weights",
    Role.BUFFER: "weights",
    Role.GRADIENT: "gradients",
    Role.OPTIMIZER_STATE: "optimizer state",
    Role.INPUT: "inputs",
    Role.WORKSPACE: "workspace",
}


class KindFinder:
    """Tells what each allocation of a step is for.

    Memory that a forward pass allocates and that is still held when the next backward pass begins
    is an activation. What else comes and goes is temporary.
    """

    def __init__(self, trace: Trace) -> None:
        self._backward = [i for i, call in enumerate(trace) if call.phase is Phase.BACKWARD]
        self._forward = [call.phase is Phase.FORWARD for call in trace]

    def of(self, allocation: Allocation) -> str:
        """One of `KINDS`."""
        known = _ROLES.get(allocation.role)
        if known is not None:
            return known
        born = allocation.born or 0
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
        for each in self.trace.allocations:
            change = changes[finder.of(each)]
            change[min(each.born or 0, length)] += each.nbytes
            if each.freed is not None:
                change[min(each.freed, length)] -= each.nbytes
        return {kind: tuple(accumulate(change[:length])) for kind, change in changes.items()}

    @cached_property
    def totals(self) -> tuple[int, ...]:
        """Bytes during each call, of all kinds together."""
        return tuple(map(sum, zip(*self.by_kind.values(), strict=True)))


def peak_bytes(allocations: Iterable[Allocation]) -> int:
    """The most memory that these allocations take together at any time of the step."""
    changes: dict[int, int] = {}
    for each in allocations:
        born = -1 if each.born is None else each.born
        changes[born] = changes.get(born, 0) + each.nbytes
        if each.freed is not None:
            changes[each.freed] = changes.get(each.freed, 0) - each.nbytes
    return max(accumulate(changes[time] for time in sorted(changes)), default=0)


def peak_by_tbd_kind(trace: Trace) -> dict[str, int | None]:
    """The most that each of TBD's kinds takes at any time of the step.

    None: not recorded. The workspace is recorded in measured traces, and added to traced ones by
    `with_workspaces`.
    """
    if not trace.allocations:
        return dict.fromkeys(TBD_KINDS)
    finder = KindFinder(trace)
    by_kind: dict[str, list[Allocation]] = {kind: [] for kind in KINDS}
    for each in trace.allocations:
        by_kind[finder.of(each)].append(each)
    peaks: dict[str, int | None] = {
        name: peak_bytes(each for kind in kinds for each in by_kind[kind])
        for name, kinds in TBD_KINDS.items()
    }
    return peaks if by_kind["workspace"] else peaks | {"workspace": None}
