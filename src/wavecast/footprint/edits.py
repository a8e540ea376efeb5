"""Traces of steps that were changed to use less memory, made from the trace of the step as it is.

Only the lifetimes and sizes of allocations are edited: checkpointing frees the activations of a
block and recomputes them, an 8-bit optimizer stores one byte per value, and a fused optimizer has
no temporaries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from wavecast import ops
from wavecast.traces.blocks import blocks_of
from wavecast.traces.editing import Edit
from wavecast.traces.step import Allocation, Phase, Role, Trace
from wavecast.traces.values import without_values

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
