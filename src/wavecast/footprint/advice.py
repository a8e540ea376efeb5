"""What would make a step smaller, each computed from its trace or from another one.

Lifetimes are edited as the change would have them, and played through the allocator again:
checkpointing drops what a block keeps and makes it again, an 8-bit optimizer stores its state in
bytes, a fused one has no temporaries. Half the batch, or autocast, is traced anew.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from wavecast import ops
from wavecast.footprint.memory import Memory, memory
from wavecast.traces.step import Allocation, Phase, Role, Trace

_QUANTIZED_FROM_BYTES = 4096 * 4
"""bitsandbytes keeps the state of smaller tensors in float32."""
_BLOCK = 256
"""Values that share a scale (Dettmers et al., "8-bit optimizers via block-wise quantization",
ICLR 2022, as bitsandbytes has it)."""
_NUMBERED = re.compile(r"^(.*?\.\d+)(\.|$)")
_ROOT = re.compile(r"^([^.#]+)(#\d+)?")


@dataclass(frozen=True)
class Advice:
    """A change, and what it would leave."""

    name: str
    how: str
    """What it costs, and how it was computed."""
    before: Memory
    after: Memory

    @property
    def saved_bytes(self) -> int:
        """Of what is reserved."""
        return self.before.reserved_bytes - self.after.reserved_bytes


def advise(
    found: Memory, retraced: Mapping[str, Callable[[], Trace | None]] | None = None
) -> tuple[Advice, ...]:
    """What would save memory, the most first; what would not is left out.

    Args:
        found: the memory of the step as it is.
        retraced: other steps that do the same, by what they change: each is traced, unless it
            cannot be, and is None.
    """
    bare = _without_predicted(found)
    others = ((name, "traced", make()) for name, make in (retraced or {}).items())
    tries = [*_edited(bare), *((n, how, trace) for n, how, trace in others if trace is not None)]
    advice = [Advice(name, how, found, memory(trace, found.device)) for name, how, trace in tries]
    growing = memory(bare, found.device, expandable_segments=True)
    advice.append(
        Advice("expandable segments", "PYTORCH_ALLOC_CONF=expandable_segments:True", found, growing)
    )
    return tuple(sorted((a for a in advice if a.saved_bytes > 0), key=lambda a: -a.saved_bytes))


def _without_predicted(found: Memory) -> Trace:
    """The trace as it came; workspaces are predicted again for what is changed."""
    if found.trace.measurement is not None:
        return found.trace
    kept = tuple(a for a in found.trace.allocations if a.role is not Role.WORKSPACE)
    return replace(found.trace, allocations=kept)


def _edited(trace: Trace) -> Iterable[tuple[str, str, Trace]]:
    checkpointed, blocks, share = checkpoint_blocks(trace)
    if blocks:
        how = f"{blocks} blocks run forward twice: {share:.0%} more FLOPs"
        yield "checkpointing", how, checkpointed
    yield "8-bit optimizer", "state in bytes, with a scale for every 256", quantize_state(trace)
    yield "fused optimizer", "fused=True: no temporaries in its step", fuse_optimizer(trace)


def checkpoint_blocks(trace: Trace) -> tuple[Trace, int, float]:
    """The step with each repeated block checkpointed; how many there are; the FLOPs it adds.

    What a block keeps for the backward pass is dropped when its forward pass ends, but for its
    output, and made again when its backward pass begins.
    """
    blocks = _blocks(trace)
    spans = _spans(trace, blocks)
    if len(spans) < 2:
        return trace, 0, 0.0
    edited: list[Allocation] = []
    kept: dict[str, list[Allocation]] = defaultdict(list)
    for each in trace.allocations:
        block = _maker(each, trace, blocks)
        if block in spans and _crosses(each, spans[block]):
            kept[block].append(each)
        else:
            edited.append(each)
    for block, group in kept.items():
        left, again = spans[block]
        output = max(group, key=lambda each: each.born or 0)
        edited.append(output)
        for each in group:
            if each is not output:
                edited.append(replace(each, freed=left))
                edited.append(replace(each, born=again))
    return replace(trace, allocations=tuple(edited)), len(kept), _share(trace, blocks, set(kept))


def _share(trace: Trace, blocks: Sequence[str], chosen: set[str]) -> float:
    """FLOPs of the forward passes of some blocks, of all."""
    whole = again = 0.0
    for call, block in zip(trace, blocks, strict=True):
        flops = ops.executed_flops(call.op) or 0.0
        whole += flops
        if call.phase is Phase.FORWARD and block in chosen:
            again += flops
    return again / whole if whole else 0.0


def _blocks(trace: Trace) -> list[str]:
    """Of each call, the block that it belongs to: the outermost of several modules alike.

    These are numbered, as a ModuleList or Sequential has them, or roots of the same class.
    """
    roots = {call.module.split(".")[0] for call in trace}
    several = {match[1] for root in roots if (match := _ROOT.match(root)) and match[2]}

    def block(module: str) -> str:
        root = _ROOT.match(module)
        if root and root[1] in several:
            return module.split(".")[0]
        numbered = _NUMBERED.match(module)
        return numbered[1] if numbered else ""

    known = {call.module: "" for call in trace}
    known = {module: block(module) for module in known}
    return [known[call.module] for call in trace]


def _spans(trace: Trace, blocks: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Of each block: where its forward pass ends, and its backward pass begins."""
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


def _maker(each: Allocation, trace: Trace, blocks: Sequence[str]) -> str:
    """The block whose forward pass made it; none: empty."""
    if each.role is not Role.INTERMEDIATE or each.born is None or each.born >= len(trace):
        return ""
    return blocks[each.born] if trace.calls[each.born].phase is Phase.FORWARD else ""


def _crosses(each: Allocation, span: tuple[int, int]) -> bool:
    return each.freed is None or each.freed > max(span)


def quantize_state(trace: Trace) -> Trace:
    """The step with an optimizer that keeps its state in bytes."""

    def smaller(each: Allocation) -> Allocation:
        if each.role is not Role.OPTIMIZER_STATE or each.nbytes < _QUANTIZED_FROM_BYTES:
            return each
        values = each.nbytes // 4
        return replace(each, nbytes=values + 4 * -(-values // _BLOCK))

    return replace(trace, allocations=tuple(map(smaller, trace.allocations)))


def fuse_optimizer(trace: Trace) -> Trace:
    """The step with an optimizer that updates all tensors at once, in place."""

    def temporary(each: Allocation) -> bool:
        if each.role is not Role.INTERMEDIATE or each.born is None or each.born >= len(trace):
            return False
        return trace.calls[each.born].phase is Phase.OPTIMIZER and each.freed is not None

    kept = tuple(each for each in trace.allocations if not temporary(each))
    return replace(trace, allocations=kept)
