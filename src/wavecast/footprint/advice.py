"""Advice on how to make a step need less memory, with the bytes that each change saves.

Checkpointing, an 8-bit optimizer and a fused optimizer are computed from the trace (`edits`) and
replayed through the allocator. Half the batch, or autocast, needs another trace. From the trace of
half a batch, `accumulation` computes the step that accumulates the gradients of two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from wavecast.footprint.edits import checkpoint_blocks, fuse_optimizer, quantize_state
from wavecast.footprint.memory import Memory, unlimited_memory
from wavecast.traces.step import Role, Trace

SEGMENTS = "PYTORCH_ALLOC_CONF=expandable_segments:True"
"""How to let the allocator's segments grow."""


@dataclass(frozen=True)
class Advice:
    """One change to a step, and its memory before and after."""

    name: str
    """The change: "checkpointing"."""
    how: str
    """The price of the change, or how to make it."""
    before: Memory
    after: Memory

    @property
    def saved_bytes(self) -> int:
        """The bytes that the change saves of the memory that the allocator reserves."""
        return self.before.reserved_bytes - self.after.reserved_bytes


def advise(
    before: Memory,
    retraced: Mapping[str, Callable[[], Trace | None]] | None = None,
    *,
    expandable_segments: bool = False,
) -> tuple[Advice, ...]:
    """Changes that would save memory, the largest saving first.

    Savings are those of a GPU with room for everything that torch caches.

    Args:
        before: the memory of the step as it is.
        retraced: for changes that need another trace, a function that traces the changed step, by
            the name of the change. It returns None if the step cannot be changed so.
        expandable_segments: whether torch's allocator is already set to `expandable_segments:True`.
    """
    bare, gpu = _without_predicted_workspaces(before), before.device

    def memory(trace: Trace, expandable: bool = expandable_segments) -> Memory:
        return unlimited_memory(trace, gpu, expandable_segments=expandable)

    before = memory(bare)
    changes = list(edited(bare))
    for name, trace_again in (retraced or {}).items():
        changed = trace_again()
        if changed is not None:
            changes.append((name, "traced", changed))
    advice = [Advice(name, how, before, memory(changed)) for name, how, changed in changes]
    advice.append(Advice("expandable segments", SEGMENTS, before, memory(bare, True)))
    return best_first(advice)


def best_first(advice: Iterable[Advice]) -> tuple[Advice, ...]:
    """The changes that save something, the largest saving first."""
    return tuple(sorted((a for a in advice if a.saved_bytes > 0), key=lambda a: -a.saved_bytes))


def _without_predicted_workspaces(before: Memory) -> Trace:
    """The trace without predicted workspaces, so that they are predicted again for each change."""
    if before.trace.measurement is not None:
        return before.trace
    kept = tuple(a for a in before.trace.allocations if a.role is not Role.WORKSPACE)
    return replace(before.trace, allocations=kept)


def edited(trace: Trace, fewest_blocks: int = 2) -> Iterable[tuple[str, str, Trace]]:
    """Name, price and trace of each change that can be computed from the trace.

    Args:
        trace: the step, or what one rank runs of it.
        fewest_blocks: with fewer repeated blocks, checkpointing is no advice.
    """
    checkpointed = checkpoint_blocks(trace, fewest_blocks)
    if checkpointed.blocks:
        price = (
            f"{checkpointed.blocks} blocks run forward twice: "
            f"{checkpointed.extra_flops:.0%} more FLOPs"
        )
        yield "checkpointing", price, checkpointed.trace
    yield "8-bit optimizer", "one byte per value, and a scale for every 256", quantize_state(trace)
    yield "fused optimizer", "fused=True: no temporaries in its step", fuse_optimizer(trace)
