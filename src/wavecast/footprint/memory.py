"""The memory of a training step: how much, of what kind, whose, and when.

From the lifetimes in a trace, what libraries take for themselves on a GPU, and torch's allocator
replayed. `wavecast.memory` is the entry.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from wavecast.errors import InvalidInput
from wavecast.footprint.kinds import KINDS, KindFinder, KindTimeline
from wavecast.footprint.replay import replay
from wavecast.footprint.workspaces.estimate import with_workspaces
from wavecast.hardware.contexts import context_bytes
from wavecast.hardware.device import Device
from wavecast.hardware.devices import device
from wavecast.traces.step import Allocation, Call, Role, Trace


@dataclass(frozen=True, slots=True)
class Held:
    """Tensors alike that are held at the peak: of one kind and module, made by one op."""

    kind: str
    module: str
    op: str
    """What made them; empty: they were there before the step."""
    count: int
    nbytes: int
    """Of all of them."""


@dataclass(frozen=True)
class Memory:
    """What one training step needs on a GPU."""

    trace: Trace
    """With workspaces, where they are known."""
    device: Device | None
    peak_bytes: int
    """The most that is allocated at once, as torch counts it (`max_memory_allocated`)."""
    reserved_bytes: int
    """What the allocator takes from the GPU for it (`max_memory_reserved`)."""
    context_bytes: int | None
    """What the process takes beside: CUDA's context and loaded libraries. None: not known."""

    @property
    def process_bytes(self) -> int | None:
        """All of it, as nvidia-smi shows a process."""
        return None if self.context_bytes is None else self.reserved_bytes + self.context_bytes

    @property
    def needed_bytes(self) -> int:
        """What the process needs of the GPU; without the context where that is not known."""
        return self.process_bytes or self.reserved_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the GPU holds it. None: no GPU was named."""
        if self.device is None:
            return None
        return self.needed_bytes <= self.device.memory_bytes

    @cached_property
    def by_kind(self) -> Mapping[str, int | None]:
        """At the peak, bytes of each of `KINDS`. None: nobody knows the workspaces."""
        found: dict[str, int | None] = dict.fromkeys(KINDS, 0)
        for each, kind in self._at_peak:
            found[kind] = (found[kind] or 0) + each.nbytes
        known = any(each.role is Role.WORKSPACE for each in self.trace.allocations)
        if not known and (self.device is None or self.device.compute_capability is None):
            found["workspace"] = None
        return found

    @cached_property
    def peak_call(self) -> int:
        """The position of the call during which the most is allocated."""
        totals = KindTimeline(self.trace).totals
        return max(range(len(totals)), key=totals.__getitem__, default=0)

    def by_module(self, depth: int = 2) -> Mapping[str, int]:
        """At the peak, bytes by module, `depth` names deep, the largest first."""
        found: Counter[str] = Counter()
        for each, _ in self._at_peak:
            path = module_of(each, self.trace).split(".")[:depth]
            found[".".join(path) or "(no module)"] += each.nbytes
        return dict(found.most_common())

    def held(self) -> tuple[Held, ...]:
        """What is held at the peak, the largest group of like tensors first."""
        groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for each, kind in self._at_peak:
            op = "" if each.born is None else self.trace.calls[each.born].op.base
            groups[kind, module_of(each, self.trace), op].append(each.nbytes)
        found = (
            Held(kind, module, op, len(sizes), sum(sizes))
            for (kind, module, op), sizes in groups.items()
        )
        return tuple(sorted(found, key=lambda held: -held.nbytes))

    @cached_property
    def _at_peak(self) -> tuple[tuple[Allocation, str], ...]:
        kinds = KindFinder(self.trace)
        time = self.peak_call
        return tuple(
            (each, kinds.of(each))
            for each in self.trace.allocations
            if (each.born is None or each.born <= time)
            and (each.freed is None or each.freed > time)
        )


def memory(
    trace: Trace, gpu: Device | str | None = None, *, expandable_segments: bool = False
) -> Memory:
    """The memory of one training step.

    Args:
        trace: traced without a GPU, or measured on one.
        gpu: where it should run; it decides what libraries take for themselves, and whether the
            step fits. None: workspaces are left out, unless they were measured.
        expandable_segments: as torch's allocator has it with `expandable_segments:True`.
    """
    if not trace.allocations:
        raise InvalidInput(
            "the trace has no memory in it, as profiler files have none; trace the step itself"
        )
    target = device(gpu) if isinstance(gpu, str) else gpu
    whole = trace if target is None else with_workspaces(trace, target)
    counted = replay(whole, expandable=expandable_segments)
    return Memory(
        trace=whole,
        device=target,
        peak_bytes=counted.allocated_bytes,
        reserved_bytes=counted.reserved_bytes,
        context_bytes=None if target is None else context_bytes(whole, target),
    )


def of_measured(
    trace: Trace, gpu: Device | None, peak_bytes: int, reserved_bytes: int, device_bytes: int
) -> Memory:
    """The memory of a step that ran: its lifetimes, and what the allocator itself said.

    Args:
        trace: with workspaces, of the real allocator.
        gpu: where it ran.
        peak_bytes: the most that was allocated.
        reserved_bytes: the most that was reserved.
        device_bytes: what the GPU had in use, of this process alone.
    """
    beside = max(0, device_bytes - reserved_bytes)
    return Memory(trace, gpu, peak_bytes, reserved_bytes, beside)


def module_of(each: Allocation, trace: Trace) -> str:
    """Whose memory it is: the module that made it, or owns it."""
    if each.module or each.born is None or each.born >= len(trace):
        return each.module
    call: Call = trace.calls[each.born]
    return call.module
