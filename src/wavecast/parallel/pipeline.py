"""Pipeline parallelism: the model cut into stages, and activations sent between them."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from wavecast.errors import InvalidInput
from wavecast.ops.fused import FUSED, shared_attrs
from wavecast.parallel.gradients import parameters, updated_parameters, with_parts_of_graphs
from wavecast.traces.editing import Edit, living, with_op
from wavecast.traces.recomputed import block_finder
from wavecast.traces.step import Call, Op, Phase, TensorSpec, Trace, Value


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

    Raises:
        InvalidInput: the model has fewer blocks than parts.
    """
    block_of = block_finder(trace)
    forward = (call.module for call in trace if call.phase is Phase.FORWARD)
    order = [block for block in dict.fromkeys(map(block_of, forward)) if block]
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
    """The calls and the memory of each part of a model, with its share of the optimizer."""
    owners = cut_at.owners[:end]
    weights = parameters(trace)
    owned = [cut_at.parts.get(weight.module, 0) for weight in weights]
    memory = memory_by_part(trace, cut_at, owners, parts)
    traces = []
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
        traces.append(with_own_values(edit.trace()))
    return traces


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


def memory_by_part(trace: Trace, cut_at: Cut, owners: Sequence[int], parts: int) -> list[list[int]]:
    """The positions of each part's allocations. What one computes and another reads, both have.

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


# The time of a pipeline: stages that pass micro-batches to each other.
#
# Each stage works through its list of passes in order. A pass starts when the stage is free and
# what it needs from its neighbour has arrived.


FORWARD, BACKWARD, WEIGHTS = "forward", "backward", "weights"


class PipelinePass(NamedTuple):
    """One pass of a micro-batch through one part of the model."""

    kind: str
    """`FORWARD`, `BACKWARD`, or `WEIGHTS`: the part of the backward pass nobody waits for."""
    part: int
    """The part of the model, from 0. Stage s has the parts s, s + stages, ..."""
    microbatch: int


@dataclass(frozen=True)
class PartTimes:
    """The times of one micro-batch in one part of the model, in seconds."""

    forward_s: float
    backward_s: float
    weights_s: float = 0.0
    """How much of `backward_s` computes gradients of weights, which nobody waits for."""
    transfer_s: float = 0.0
    """The time to send its activations to the next part, and gradients back."""


@dataclass(frozen=True)
class Played:
    """A played schedule."""

    seconds: float
    """From the first pass to the end of the last one."""
    busy_s: tuple[float, ...]
    """How long each stage worked."""
    ends_s: tuple[float, ...]
    """When each stage has ended its last pass."""


Orders = tuple[tuple[PipelinePass, ...], ...]
"""The passes of each stage, in order."""


@lru_cache(maxsize=8)  # time and memory need the same one, and so do strategies that shard more
def order_of(schedule: str, stages: int, parts: int, microbatches: int) -> Orders:
    """The passes of each stage, in order.

    Args:
        schedule: "gpipe", "1f1b" (interleaved if there are more parts than stages) or
            "zero-bubble" (ZB-H1 of Qi et al., "Zero Bubble Pipeline Parallelism", 2023).
        stages: how many stages there are.
        parts: how many parts the model has: a multiple of `stages`.
        microbatches: how many micro-batches run.
    """
    if parts > stages:
        return tuple(
            tuple(_interleaved(stage, stages, parts, microbatches)) for stage in range(stages)
        )
    if schedule == "gpipe":
        warm = [microbatches] * stages
    else:
        warm = [min(stages - stage, microbatches) for stage in range(stages)]
    orders = []
    for stage in range(stages):
        passes = [PipelinePass(FORWARD, stage, m) for m in range(warm[stage])]
        for m in range(microbatches):
            passes.append(PipelinePass(BACKWARD, stage, m))
            if m + warm[stage] < microbatches:
                passes.append(PipelinePass(FORWARD, stage, m + warm[stage]))
        later = _with_weights(passes, stage) if schedule == "zero-bubble" else passes
        orders.append(tuple(later))
    return tuple(orders)


def in_flight(orders: Sequence[Sequence[PipelinePass]]) -> tuple[int, ...]:
    """The most micro-batches whose activations each stage holds at once, over all its parts."""
    change = dict.fromkeys((FORWARD, BACKWARD, WEIGHTS), 0)
    change |= {FORWARD: 1, WEIGHTS if _splits(orders) else BACKWARD: -1}
    return tuple(max(accumulate(change[item.kind] for item in order)) for order in orders)


def _splits(orders: Sequence[Sequence[PipelinePass]]) -> bool:
    """Whether gradients of weights have passes of their own."""
    return any(item.kind == WEIGHTS for order in orders for item in order)


def _with_weights(passes: list[PipelinePass], stage: int) -> list[PipelinePass]:
    """The passes with gradients of weights computed later, in the gaps at the end.

    As in ZB-H1, stage s puts them off by s passes, so that memory does not grow.
    """
    result: list[PipelinePass] = []
    waiting: list[PipelinePass] = []
    for item in passes:
        result.append(item)
        if item.kind == BACKWARD:
            waiting.append(PipelinePass(WEIGHTS, item.part, item.microbatch))
            if len(waiting) > stage:
                result.append(waiting.pop(0))
    return [*result, *waiting]


def _interleaved(stage: int, stages: int, parts: int, microbatches: int) -> list[PipelinePass]:
    """The interleaved schedule (Narayanan et al., SC 2021, section 2.2), as Megatron orders it."""
    chunks = parts // stages
    total = microbatches * chunks
    if microbatches % stages:
        raise InvalidInput(
            f"the interleaved schedule needs microbatches that are a multiple of the {stages} "
            f"stages, not {microbatches}"
        )

    def at(index: int, forward: bool) -> PipelinePass:
        group, inside = divmod(index, stages * chunks)
        chunk = inside // stages
        if not forward:
            chunk = chunks - 1 - chunk
        microbatch = group * stages + inside % stages
        return PipelinePass(FORWARD if forward else BACKWARD, chunk * stages + stage, microbatch)

    warm = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
    passes = [at(index, True) for index in range(warm)]
    for index in range(total - warm):
        passes.append(at(index + warm, True))
        passes.append(at(index, False))
    passes += [at(index, False) for index in range(total - warm, total)]
    return passes


def play_schedule(orders: Sequence[Sequence[PipelinePass]], times: Sequence[PartTimes]) -> Played:
    """The time of a schedule.

    Raises:
        InvalidInput: the passes wait for each other in a circle.
    """
    stages, last = len(orders), len(times) - 1
    ready: dict[tuple[str, int, int], float] = {}
    free_s, busy_s, at = [0.0] * stages, [0.0] * stages, [0] * stages
    splits = _splits(orders)
    moving = True
    while moving:
        moving = False
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                item = order[at[stage]]
                needed_s = _needed(item, ready, last, times)
                if needed_s is None:
                    break
                seconds = _seconds(item, times[item.part], splits)
                free_s[stage] = max(free_s[stage], needed_s) + seconds
                busy_s[stage] += seconds
                ready[item] = free_s[stage]
                at[stage] += 1
                moving = True
    if any(at[stage] < len(order) for stage, order in enumerate(orders)):
        raise InvalidInput("the passes of this schedule wait for each other; use another schedule")
    return Played(max(free_s), tuple(busy_s), tuple(free_s))


def _needed(
    item: PipelinePass,
    ready: dict[tuple[str, int, int], float],
    last: int,
    times: Sequence[PartTimes],
) -> float | None:
    """When what a pass needs has arrived; None if it is not known yet."""
    if item.kind == WEIGHTS:
        return ready.get((BACKWARD, item.part, item.microbatch))
    if item.kind == FORWARD:
        if item.part == 0:
            return 0.0
        sent_s = ready.get((FORWARD, item.part - 1, item.microbatch))
        return None if sent_s is None else sent_s + times[item.part - 1].transfer_s
    own_s = ready.get((FORWARD, item.part, item.microbatch))
    if item.part == last or own_s is None:
        return own_s
    sent_s = ready.get((BACKWARD, item.part + 1, item.microbatch))
    return None if sent_s is None else max(own_s, sent_s + times[item.part].transfer_s)


def _seconds(item: PipelinePass, times: PartTimes, splits: bool) -> float:
    if item.kind == FORWARD:
        return times.forward_s
    if item.kind == WEIGHTS:
        return times.weights_s
    return times.backward_s - (times.weights_s if splits else 0.0)


# Parts of a trace: some of its calls, with their values and memory.


def cut(trace: Trace, positions: Iterable[int], allocations: Iterable[int] = ()) -> Trace:
    """The trace of some of the calls, in order, with some of the memory and what is in it."""
    # Not by an Edit, which looks at the whole trace: a search cuts thousands of small parts.
    order, memory = sorted(positions), list(allocations)
    last = max(len(order) - 1, 0)
    whole = replace(
        trace,
        calls=tuple(trace.calls[position] for position in order),
        allocations=tuple(
            living(
                allocation,
                None if allocation.born is None else min(bisect_left(order, allocation.born), last),
                None if allocation.freed is None else bisect_left(order, allocation.freed),
            )
            for allocation in (trace.allocations[number] for number in memory)
        ),
    )
    return with_own_values(whole, {number: index for index, number in enumerate(memory)})


def with_own_values(trace: Trace, memory: Mapping[int, int] | None = None) -> Trace:
    """The trace with those values only that its calls use, that are in its memory, or their bases.

    Args:
        trace: the trace.
        memory: the new numbers of the allocations that are kept. None if they keep theirs.
    """
    if memory is None:
        memory = {number: number for number in range(len(trace.allocations))}
    values = trace.values
    own = {value for call in trace for value in call.reads + call.writes}
    own.update(number for number, value in enumerate(values) if value.allocation in memory)
    for number in list(own):
        base = values[number].view_of
        while base is not None and base not in own:
            own.add(base)
            base = values[base].view_of
    numbers = {old: new for new, old in enumerate(sorted(own))}
    calls = (
        with_op(call, call.op, _renumbered(call.reads, numbers), _renumbered(call.writes, numbers))
        for call in trace
    )
    kept = (
        Value(
            value.spec,
            None if value.allocation is None else memory.get(value.allocation),
            None if value.view_of is None else numbers[value.view_of],
            value.parameter,
            value.gradient_of,
        )
        for value in (values[number] for number in numbers)
    )
    return replace(trace, calls=tuple(calls), values=tuple(kept))


def _renumbered(values: tuple[int, ...], numbers: Mapping[int, int]) -> tuple[int, ...]:
    return tuple([numbers[value] for value in values])
