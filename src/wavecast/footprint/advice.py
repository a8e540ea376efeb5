"""Advice on how to make a step need less memory, with the bytes that each change saves.

Checkpointing, an 8-bit optimizer and a fused optimizer are computed from the trace (`edits`) and
replayed through the allocator. Half the batch, or autocast, needs another trace. From the trace of
half a batch, `accumulation` computes the step that accumulates the gradients of two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from wavecast import ops
from wavecast.footprint.memory import Memory, fullest_trace, unlimited_memory
from wavecast.hardware.devices import Device
from wavecast.parallel.ranks import ParallelStep
from wavecast.parallel.spreading import exchanging_ranks, spread
from wavecast.parallel.strategy import Parallel
from wavecast.predictors.retargeting import retarget
from wavecast.traces.editing import Edit, without_values
from wavecast.traces.recomputed import blocks_of
from wavecast.traces.step import Allocation, Phase, Role, Trace

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


# Traces of steps that were changed to use less memory, made from the trace of the step as it is.
#
# Only the lifetimes and sizes of allocations are edited: checkpointing frees the activations of a
# block and recomputes them, an 8-bit optimizer stores one byte per value, and a fused optimizer
# has no temporaries.


_QUANTIZED_FROM_BYTES = 4096 * 4
"""bitsandbytes keeps the optimizer state of smaller tensors in float32."""
_VALUES_PER_SCALE = 256
"""Quantized values that share one scale (Dettmers et al., "8-bit optimizers via block-wise
quantization", ICLR 2022, as implemented in bitsandbytes)."""
_MADE_IN_A_STEP = (Role.INTERMEDIATE, Role.WEIGHT_COPY)


@dataclass(frozen=True)
class Checkpointed:
    """A step in which repeated blocks are checkpointed."""

    trace: Trace
    blocks: int
    """How many blocks are checkpointed; 0 if the step has no repeated blocks."""
    extra_flops: float
    """The FLOPs of running them forward again, divided by the FLOPs of the whole step."""


def checkpoint_blocks(trace: Trace, fewest: int = 2) -> Checkpointed:
    """The step with each repeated block checkpointed, if it has at least the `fewest`.

    The activations that a block keeps for its backward pass are freed when its forward pass ends,
    except for its output. They are recomputed when its backward pass begins.
    """
    blocks = blocks_of(trace)
    spans = _spans(trace, blocks)
    if len(spans) < fewest:
        return Checkpointed(trace, 0, 0.0)
    kept: dict[str, dict[int, Allocation]] = defaultdict(dict)
    for number, allocation in enumerate(trace.allocations):
        block = _maker(allocation, trace, blocks)
        if block in spans and _crosses(allocation, spans[block]):
            kept[block][number] = allocation
    edit = Edit(without_values(trace))
    for block, activations in kept.items():
        forward_end, backward_begin = spans[block]
        output = max(activations, key=lambda number: activations[number].born or 0)
        for number, old in activations.items():
            if number != output:
                edit.set_lifetime(number, old.born, forward_end)
                edit.allocate(old.nbytes, old.role, backward_begin, old.freed, old.module)
    share = _forward_share(trace, blocks, set(kept))
    return Checkpointed(edit.trace(), len(kept), share)


def _forward_share(trace: Trace, blocks: Sequence[str], chosen: set[str]) -> float:
    """The FLOPs of the chosen blocks' forward passes, divided by those of the whole step."""
    total = forward = 0.0
    for call, block in zip(trace, blocks, strict=True):
        flops = ops.executed_flops(call.op) or 0.0
        total += flops
        if call.phase is Phase.FORWARD and block in chosen:
            forward += flops
    return forward / total if total else 0.0


def _spans(trace: Trace, blocks: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The position where each block's forward pass ends, and where its backward pass begins."""
    forward: dict[str, int] = {}
    backward: dict[str, int] = {}
    for position, (call, block) in enumerate(zip(trace, blocks, strict=True)):
        if call.phase is Phase.FORWARD:
            forward[block] = position + 1
        elif call.phase is Phase.BACKWARD:
            backward.setdefault(block, position)
    return {
        block: (end, backward[block])
        for block, end in forward.items()
        if block and backward.get(block, 0) >= end
    }


def _maker(allocation: Allocation, trace: Trace, blocks: Sequence[str]) -> str:
    """The block whose forward pass made an allocation; empty if none did."""
    born = allocation.born
    if allocation.role not in _MADE_IN_A_STEP or born is None or born >= len(trace):
        return ""
    return blocks[born] if trace.calls[born].phase is Phase.FORWARD else ""


def _crosses(allocation: Allocation, span: tuple[int, int]) -> bool:
    """Whether an allocation lives until the block's backward pass has begun."""
    return allocation.freed is None or allocation.freed > max(span)


def quantize_state(trace: Trace) -> Trace:
    """The step with an optimizer that stores its state in 8 bits."""

    def smaller(allocation: Allocation) -> Allocation:
        if allocation.role is not Role.OPTIMIZER_STATE or allocation.nbytes < _QUANTIZED_FROM_BYTES:
            return allocation
        values = allocation.nbytes // 4
        return replace(allocation, nbytes=values + 4 * -(-values // _VALUES_PER_SCALE))

    edit = Edit(trace)
    edit.change_memory(smaller)
    return edit.trace()


def fuse_optimizer(trace: Trace) -> Trace:
    """The step with an optimizer that updates all tensors in place, without temporaries."""

    def is_temporary(allocation: Allocation) -> bool:
        born = allocation.born
        if allocation.role not in _MADE_IN_A_STEP or born is None or born >= len(trace):
            return False
        return trace.calls[born].phase is Phase.OPTIMIZER and allocation.freed is not None

    edit = Edit(trace)
    edit.free(number for number, a in enumerate(trace.allocations) if is_temporary(a))
    return edit.trace()


# Advice on how to make a rank of a parallel step need less memory.
#
# The changes for one GPU (`advice`) are applied to the trace of each rank, since a pipeline also
# holds the activations of other micro-batches. Strategies that shard more over the same GPUs are
# tried, too.


Retraced = Mapping[str, tuple[Callable[[], Trace | None], int]]
"""By the name of a change, a function that traces the changed micro-batch, and how many times as
many micro-batches it needs. The function returns None if the step cannot be changed so."""


def advise_ranks(
    trace: Trace,
    strategy: Parallel,
    gpu: Device | None,
    retraced: Retraced | None = None,
    *,
    expandable_segments: bool = False,
) -> tuple[Advice, ...]:
    """Changes that would save memory on the fullest rank, the largest saving first.

    Raises:
        InvalidInput: the step cannot be spread that way.
    """
    chosen = trace if gpu is None else retarget(trace, gpu)[0]
    step = spread(chosen, strategy)

    def memory(changed: ParallelStep, expandable: bool = expandable_segments) -> Memory:
        return unlimited_memory(fullest_trace(changed), gpu, expandable_segments=expandable)

    before = memory(step)
    advice = [
        Advice(name, how, before, memory(changed)) for name, how, changed in _changed_ranks(step)
    ]
    if not exchanging_ranks(chosen):
        advice += [
            Advice(name, how, before, memory(spread(chosen, other)))
            for name, how, other in _other_strategies(strategy)
        ]
    for name, (trace_again, times) in (retraced or {}).items():
        smaller = trace_again()
        if smaller is not None:
            more = replace(strategy, microbatches=strategy.microbatches * times)
            advice.append(Advice(name, "traced", before, memory(spread(smaller, more))))
    advice.append(Advice("expandable segments", SEGMENTS, before, memory(step, True)))
    return best_first(advice)


def _changed_ranks(step: ParallelStep) -> Iterator[tuple[str, str, ParallelStep]]:
    """Name, price and step of each change that can be computed from what the ranks run."""
    # One trace for each part of the model, in the same order for every change.
    parts = [[list(edited(part.last, 1)) for part in group.parts] for group in step.groups]
    prices: dict[str, str] = {}
    for group_changes in parts:
        for part_changes in group_changes:
            for name, price, _ in part_changes:
                prices.setdefault(name, price)
    for name, price in prices.items():
        groups = []
        for group, group_changes in zip(step.groups, parts, strict=True):
            changes = []
            for part, part_changes in zip(group.parts, group_changes, strict=True):
                changed = next((t for n, _, t in part_changes if n == name), part.last)
                changes.append(replace(part, last=changed))
            groups.append(replace(group, parts=tuple(changes)))
        yield name, price, replace(step, groups=tuple(groups))


def _other_strategies(strategy: Parallel) -> Iterator[tuple[str, str, Parallel]]:
    """Strategies for the same GPUs that shard more of the memory over them."""
    shared = {1: "the optimizer's states", 2: "gradients too", 3: "weights too (FSDP)"}
    if strategy.data > 1:
        for stage in range(strategy.shard + 1, 4):
            how = f"the ranks of the data axis share {shared[stage]}"
            yield f"shard={stage}", how, replace(strategy, shard=stage)
    if strategy.shard_group not in (None, strategy.data):
        whole = replace(strategy, shard_group=None)
        yield "no shard_group", "all ranks of the data axis share one copy", whole
    if strategy.shard == 3 and not strategy.reshard:
        yield "reshard", "weights are freed after the forward pass", replace(strategy, reshard=True)
    if strategy.tensor > 1 and not strategy.sequence:
        how = "the tensor ranks also shard the activations between their matmuls"
        yield "sequence", how, replace(strategy, sequence=True)
    if strategy.pipeline > 1 and strategy.schedule == "gpipe":
        how = "fewer micro-batches are in flight"
        yield "schedule=1f1b", how, replace(strategy, schedule="1f1b")
