"""Pipeline parallelism: the model cut into stages, and activations sent between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wavecast.errors import InvalidInput
from wavecast.ops.fused import FUSED, shared_attrs
from wavecast.parallel.compiled_graphs import with_parts_of_graphs
from wavecast.parallel.gradients import parameters, updated_parameters
from wavecast.traces.blocks import block_finder
from wavecast.traces.cutting import cut, with_own_values
from wavecast.traces.editing import Edit
from wavecast.traces.step import Call, Op, Phase, TensorSpec, Trace


@dataclass(frozen=True)
class Cut:
    """Where a model is cut into parts."""

    parts: dict[str, int]
    """The part that owns the weights of each module: the first that uses them."""
    owners: tuple[int, ...]
    """The part that runs each call. Those of the optimizer are run by all."""
    boundary: TensorSpec
    """The tensor that one part sends to the next."""
    notes: tuple[str, ...]


def cut_model(trace: Trace, parts: int, seconds: Callable[[Call], float]) -> Cut:
    """Cut a model between its repeated blocks, so that the slowest part is as fast as possible.

    What comes before the first block goes with it, and what follows the last block with that.

    Args:
        trace: one micro-batch.
        parts: the number of parts.
        seconds: the time of a call.

    Raises:
        InvalidInput: the model has fewer blocks than parts.
    """
    block_of = block_finder(trace)
    order = _blocks_in_order(trace, block_of)
    if len(order) < parts:
        raise InvalidInput(
            f"the model cannot be cut into {parts} parts: it has {len(order)} repeated blocks; "
            f"use at most {max(len(order), 1)} (pipeline x virtual)"
        )
    places = _places(trace, block_of, order)
    times: dict[str, float] = defaultdict(float)
    for call, block in zip(trace, places, strict=True):
        if call.phase is not Phase.OPTIMIZER:
            times[block] += seconds(call)
    bounds = _balanced([times[block] for block in order], parts)
    part_of_block = {}
    for part, (begin, end) in enumerate(bounds):
        for block in order[begin:end]:
            part_of_block[block] = part
    owners = tuple(part_of_block[block] for block in places)
    modules: dict[str, int] = {}
    for call, part in zip(trace, owners, strict=True):
        if call.phase is not Phase.OPTIMIZER:
            modules.setdefault(call.module, part)
    boundary = _boundary(trace, block_of, order)
    sizes = ", ".join(str(end - begin) for begin, end in bounds)
    note = f"the model was cut into {parts} parts of {sizes} blocks, at equal predicted time"
    return Cut(modules, owners, boundary, (note,))


def _places(trace: Trace, block_of: Callable[[str], str], order: Sequence[str]) -> list[str]:
    """The block that each call goes with: its own, or that which ran before it.

    A module outside of the blocks may run before and after them, as one that looks words up and
    multiplies with the same table at the end. So it is the order of the calls that counts.
    """
    known, current = set(order), order[0]
    places = []
    for call in trace:
        block = block_of(call.module)
        if block in known and call.phase is not Phase.OPTIMIZER:
            current = block
        places.append(current)
    return places


def _blocks_in_order(trace: Trace, block_of: Callable[[str], str]) -> list[str]:
    """The blocks in the order of their forward passes."""
    forward = (call.module for call in trace if call.phase is Phase.FORWARD)
    return [block for block in dict.fromkeys(map(block_of, forward)) if block]


def _balanced(times: Sequence[float], parts: int) -> list[tuple[int, int]]:
    """The cuts of a row of blocks into parts whose largest sum is smallest."""
    count = len(times)
    sums = [0.0]
    for time in times:
        sums.append(sums[-1] + time)
    best = [[0.0] * (count + 1) for _ in range(parts + 1)]
    choice = [[0] * (count + 1) for _ in range(parts + 1)]
    for end in range(1, count + 1):
        best[1][end] = sums[end]
    for part in range(2, parts + 1):
        for end in range(part, count + 1):
            options = (
                (max(best[part - 1][middle], sums[end] - sums[middle]), middle)
                for middle in range(part - 1, end)
            )
            best[part][end], choice[part][end] = min(options)
    bounds = []
    end = count
    for part in range(parts, 0, -1):
        begin = choice[part][end] if part > 1 else 0
        bounds.append((begin, end))
        end = begin
    return bounds[::-1]


def _boundary(trace: Trace, block_of: Callable[[str], str], order: Sequence[str]) -> TensorSpec:
    """The tensor between two blocks: the last output of the first block's forward pass."""
    result = None
    for call in trace:
        if call.phase is Phase.FORWARD and block_of(call.module) == order[0] and call.op.outputs:
            result = call.op.outputs[0]
    return result or TensorSpec((1,), "float32")


def part_traces(trace: Trace, cut_at: Cut, parts: int, end: int) -> list[Trace]:
    """The calls and the memory of each part of a model, with its share of the optimizer.

    Args:
        trace: one micro-batch and the optimizer.
        cut_at: where the model is cut.
        parts: the number of parts.
        end: the position where the backward pass ends.
    """
    owners = cut_at.owners[:end]
    weights = parameters(trace)
    owned = [cut_at.parts.get(weight.module, 0) for weight in weights]
    memory = _memory_by_part(trace, cut_at, owners, parts)
    made = []
    for part in range(parts):
        positions = [p for p, owner in enumerate(owners) if owner == part]
        positions += range(end, len(trace))
        mine = [index for index, owner in enumerate(owned) if owner == part]
        share = sum(weights[i].nbytes for i in mine) / max(sum(w.nbytes for w in weights), 1)
        whole = with_parts_of_graphs(cut(trace, positions, memory[part]), trace)
        first = len(positions) - (len(trace) - end)
        edit = Edit(whole)
        for position in range(first, len(positions)):
            op = whole.calls[position].op
            edit.replace_op(position, _owned(op, len(weights), mine, share))
        made.append(with_own_values(edit.trace()))
    return made


def _owned(op: Op, count: int, mine: Sequence[int], share: float) -> Op:
    """An op of the optimizer on the weights of one part only.

    An op on lists has one list of all weights after the other. Other ops are made smaller.
    """

    def kept(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        if op.name not in FUSED and len(tensors) >= count > 0 and len(tensors) % count == 0:
            return tuple(tensors[k + i] for k in range(0, len(tensors), count) for i in mine)
        return tuple(
            TensorSpec((max(int(t.numel * share), 1),), t.dtype, None, t.device)
            if t.numel > 1
            else t
            for t in tensors
        )

    return Op(op.name, kept(op.inputs), kept(op.outputs), shared_attrs(op, share))


def _memory_by_part(
    trace: Trace, cut_at: Cut, owners: Sequence[int], parts: int
) -> list[list[int]]:
    """The allocations of each part. What one part computes and another reads, both have.

    Gradients of the step before go where equal new ones are.
    """
    memory: list[list[int]] = [[] for _ in range(parts)]
    before: list[int] = []
    homes: dict[int, list[int]] = defaultdict(list)
    readers, updating = _readers(trace, owners), _updating_parts(trace, cut_at)
    for number, allocation in enumerate(trace.allocations):
        own = {0}
        if allocation.module:
            own = {cut_at.parts.get(allocation.module, 0)}
        elif allocation.born is not None and allocation.born < len(owners):
            own = {owners[allocation.born], *readers[number]}
        elif allocation.born is not None:
            own = {updating.get(number, 0)}
        elif allocation.freed is not None:
            before.append(number)
            continue
        for part in own:
            memory[part].append(number)
            if allocation.born is not None and allocation.freed is None:
                homes[allocation.nbytes].append(part)
    for number in before:
        equal = homes[trace.allocations[number].nbytes]
        memory[equal.pop(0) if equal else 0].append(number)
    return memory


def _readers(trace: Trace, owners: Sequence[int]) -> dict[int, set[int]]:
    """The parts whose calls read each allocation."""
    readers: dict[int, set[int]] = defaultdict(set)
    for call, part in zip(trace, owners, strict=False):
        for value in call.reads:
            number = trace.values[value].allocation
            if number is not None:
                readers[number].add(part)
    return readers


def _updating_parts(trace: Trace, cut_at: Cut) -> dict[int, int]:
    """The part that owns the weights to which the content of each allocation belongs."""
    held = [(value.allocation, value.parameter) for value in trace.values]
    modules = {
        name: trace.allocations[number].module
        for number, name in held
        if name and number is not None
    }
    return {
        value.allocation: cut_at.parts.get(modules.get(name, ""), 0)
        for value, name in zip(trace.values, updated_parameters(trace), strict=True)
        if name and value.allocation is not None
    }
