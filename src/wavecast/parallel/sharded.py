"""Sharded data parallelism: ZeRO stages 1 and 2, and FSDP (stage 3).

Stages 1 and 2 reduce each bucket of gradients to the rank that owns it, update that rank's share of
the weights, and gather the updated weights (Rajbhandari et al., "ZeRO", SC 2020, section 5).
FSDP keeps a share of the weights only. It gathers the weights of a block before its forward and its
backward pass, one block ahead, and reduces its gradients afterwards, each on a stream of its own
(`torch.distributed.fsdp.fully_shard` applied to each repeated block and to the whole model).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count, zip_longest

from wavecast.ops.fused import shared_attrs
from wavecast.parallel.experts import Holders
from wavecast.parallel.gradients import (
    COMPUTE,
    GATHERS,
    OFFLOAD,
    REDUCTIONS,
    Gradient,
    all_gather,
    all_reduce,
    clips,
    flat,
    framework_buckets,
    gradients,
    kernel,
    reduce_scatter,
    reduced_as,
    shard_of,
    trained,
    updated_parameters,
    wait,
)
from wavecast.parallel.strategy import Parallel, RankAxis
from wavecast.traces.editing import Edit, Inserted, Time
from wavecast.traces.graphs import has_graphs
from wavecast.traces.recomputed import block_finder
from wavecast.traces.step import Allocation, Call, Op, Phase, Role, TensorSpec, Trace


def with_sharded_optimizer(trace: Trace, strategy: Parallel, end: int) -> Trace:
    """A micro-batch of ZeRO stage 1 or 2: reduce-scatter, a share of the optimizer, all-gather."""
    holders, replica = Holders.of(trace, strategy, "shard"), strategy.axes["replica"]
    if holders.alone:
        return trace
    edit, stage = Edit(trace), strategy.shard
    for shard, members in holders.grouped(gradients(trace)):
        others = replica if shard == holders.dense else RankAxis(1, 1)
        filled = framework_buckets(members, strategy)
        for bucket, following in zip_longest(filled, filled[1:]):
            last = bucket[-1]
            whole = reduced_as(bucket, strategy)
            edit.insert(last.ready + 1, _reductions(whole, shard, others, last.module))
            freed = following[-1].ready if following else end
            _allocate_bucket(edit, bucket, strategy, freed)
    edit.insert(end, [wait(COMPUTE, REDUCTIONS, Phase.BACKWARD)])
    _share_optimizer(edit, holders)
    edit.insert(len(trace), [wait(GATHERS, COMPUTE, Phase.OPTIMIZER)])
    for shard, nbytes in _weights_by_axis(trace, holders).items():
        share = shard_of(flat(nbytes, weight_dtype(trace)), shard)
        edit.insert(len(trace), [all_gather(share, shard, GATHERS, Phase.OPTIMIZER)])
    edit.insert(len(trace), [wait(COMPUTE, GATHERS, Phase.OPTIMIZER)])
    numbers = count()
    edit.change_memory(
        lambda a: _sharded_memory(a, holders.axis_of(next(numbers)).size, gradients_too=stage >= 2)
    )
    return edit.trace()


def _allocate_bucket(
    edit: Edit, bucket: Sequence[Gradient], strategy: Parallel, freed: int
) -> None:
    """The memory of a bucket beside its gradients.

    Stage 1 keeps its buckets from step to step, as DDP does, unless gradients lie in them anyway.
    Stage 2 keeps shares only: a bucket is free for others once the following one is full.
    """
    apart = [gradient for gradient in bucket if not gradient.in_place]
    if strategy.shard == 2:
        whole = reduced_as(bucket, strategy)
        edit.allocate(whole.nbytes, Role.INTERMEDIATE, bucket[0].ready, freed)
        for gradient_apart in apart:
            edit.allocate(
                gradient_apart.nbytes,
                Role.INTERMEDIATE,
                gradient_apart.ready,
                gradient_apart.ready + 1,
            )
    elif apart:
        edit.allocate(reduced_as(apart, strategy).nbytes, Role.GRADIENT)


def _weights_by_axis(trace: Trace, holders: Holders) -> dict[RankAxis, int]:
    """The bytes of the weights that are trained by the ranks that share them."""
    nbytes: dict[RankAxis, int] = defaultdict(int)
    for number in sorted(trained(trace)):
        axis = holders.axis_of(number)
        if axis.size > 1:
            nbytes[axis] += trace.allocations[number].nbytes
    return nbytes


def _reductions(whole: TensorSpec, shard: RankAxis, replica: RankAxis, module: str) -> list[Call]:
    calls = [
        wait(REDUCTIONS, COMPUTE, Phase.BACKWARD, module),
        reduce_scatter(whole, shard, REDUCTIONS, Phase.BACKWARD, module),
    ]
    if replica.size > 1:  # HSDP: the same shard in other groups
        share = shard_of(whole, shard)
        calls.append(all_reduce(share, replica, REDUCTIONS, Phase.BACKWARD, module))
    return calls


@dataclass(frozen=True)
class _Unit:
    """Weights that are gathered together, and where they are used."""

    name: str
    nbytes: int
    """The bytes of its weights in float32."""
    trained_bytes: int
    """Those of the weights that have gradients."""
    forward: tuple[int, int]
    """Where its forward pass begins and ends."""
    backward: tuple[int, int]
    shard: RankAxis
    """The ranks that share its weights."""


def with_sharded_weights(trace: Trace, strategy: Parallel, end: int) -> Trace:
    """A micro-batch of FSDP. Without `no_sync`, each one reduces its gradients."""
    holders, replica = Holders.of(trace, strategy, "shard"), strategy.axes["replica"]
    if holders.alone:
        return trace
    edit = Edit(trace)
    units = _units(trace, end, holders)
    dtype = gathered_dtype(trace)
    # A unit's reduction is issued when its backward pass ends, before the next unit's gather.
    kind = "bfloat16" if strategy.reduce_in_16_bits else "float32"
    reduced = [unit for unit in units if unit.trained_bytes]
    reductions = []
    for unit in reduced:
        whole = flat(_in(unit.trained_bytes, kind), kind)
        copy = kernel("aten.copy_", whole, whole, Phase.BACKWARD, unit.name)
        others = replica if unit.shard == holders.dense else RankAxis(1, 1)
        calls = [copy, *_reductions(whole, unit.shard, others, unit.name)]
        reductions.append(edit.insert(unit.backward[1], calls))
    edit.insert(end, [wait(COMPUTE, REDUCTIONS, Phase.BACKWARD)])
    done: dict[_Unit, Time] = {unit: unit.backward[1] for unit in units}
    done |= {unit: places[0] for unit, places in zip(reduced, reductions, strict=True)}
    _share_optimizer(edit, holders)
    numbers = count()
    edit.change_memory(
        lambda a: _sharded_memory(
            a, holders.axis_of(next(numbers)).size, gradients_too=True, weights_too=True
        )
    )
    _gather_forward(edit, done, dtype, strategy.reshard)
    if strategy.reshard:
        order = sorted(done, key=lambda unit: unit.backward[0])
        for previous, unit in zip([None, *order], order, strict=False):
            if unit.name:
                gathered, _, copied = _gather(edit, unit, previous, dtype, Phase.BACKWARD)
                nbytes = _in(unit.nbytes, dtype)
                after = copied._replace(order=copied.order + 1)  # before the next one is gathered
                edit.allocate(nbytes, Role.INTERMEDIATE, gathered, after)
                edit.allocate(nbytes, Role.PARAMETER, copied, done[unit])
    if dtype != "float32":  # what is gathered takes the place of autocast's copies
        edit.change_memory(lambda a: None if a.role is Role.WEIGHT_COPY else a)
    _hold_gradients(edit, dict(zip(reduced, reductions, strict=True)), holders, kind, end)
    return edit.trace()


def _in(nbytes: int, dtype: str) -> int:
    """The bytes of float32 weights in another dtype."""
    return nbytes if dtype == "float32" else nbytes // 2


def _gather_forward(edit: Edit, done: Mapping[_Unit, Time], dtype: str, reshard: bool) -> None:
    """Gather units, in order of use, in the forward pass. The root's weights stay gathered.

    What a gather fills is kept until the next unit has its weights (`_fsdp_param_group.py`).
    """
    units = list(done)
    for previous, unit, following in zip([None, *units], units, [*units[1:], None], strict=False):
        _, there, copied = _gather(edit, unit, previous, dtype, Phase.FORWARD)
        nbytes = _in(unit.nbytes, dtype)
        until = unit.forward[1] if following is None else following.forward[0]
        edit.allocate(nbytes, Role.INTERMEDIATE, there, until)
        freed = unit.forward[1] if reshard and unit.name else done[unit]
        edit.allocate(nbytes, Role.PARAMETER, copied, freed)


def _gather(
    edit: Edit, unit: _Unit, previous: _Unit | None, dtype: str, phase: Phase
) -> tuple[Inserted, Inserted, Inserted]:
    """Gather a unit's weights while the previous unit computes, and wait before its own pass.

    Returns:
        The gather, the wait for it, and the copy to the weights.
    """
    begin = (unit.forward if phase is Phase.FORWARD else unit.backward)[0]
    ahead = begin
    if previous is not None:
        ahead = min((previous.forward if phase is Phase.FORWARD else previous.backward)[0], begin)
    whole = flat(_in(unit.nbytes, dtype), dtype)
    share = shard_of(whole, unit.shard)
    copy_in = kernel("aten.copy_", share, share, phase, unit.name)
    gather = all_gather(share, unit.shard, GATHERS, phase, unit.name)
    _, gathered = edit.insert(ahead, [replace(copy_in, stream=GATHERS), gather])
    copy_out = kernel("aten.split_with_sizes_copy", whole, whole, phase, unit.name)
    there, copied = edit.insert(begin, [wait(COMPUTE, GATHERS, phase, unit.name), copy_out])
    return gathered, there, copied


def _hold_gradients(
    edit: Edit, reduced: Mapping[_Unit, list[Inserted]], holders: Holders, kind: str, end: int
) -> None:
    """The memory of gradients: whole until their unit's are reduced, then a share.

    They are copied to what is reduced, in its own type, which is freed when the next unit has its
    own.
    """
    units, reductions = list(reduced), list(reduced.values())
    order = sorted(range(len(units)), key=lambda index: units[index].backward[1])
    freed: list[int | Inserted] = [*(reductions[index][0] for index in order[1:]), end]
    for place, until in zip(order, freed, strict=False):
        nbytes = _in(units[place].trained_bytes, kind)
        edit.allocate(nbytes, Role.INTERMEDIATE, reductions[place][0], until)
    block_of = block_finder(edit.before)
    of_unit = {(unit.name, unit.shard): index for index, unit in enumerate(units)}
    narrow = gathered_dtype(edit.before) != "float32" and not _stored_narrow(edit.before)
    for number, gradient in enumerate(edit.before.allocations):
        index = of_unit.get((block_of(gradient.module), holders.axis_of(number)))
        born = gradient.born
        if gradient.role is not Role.GRADIENT or born is None or index is None:
            continue
        if born < units[index].backward[1]:
            _, reducing, scatter = reductions[index][:3]
            if narrow:  # what autocast casts to float32 stays as it is
                edit.allocate(gradient.nbytes // 2, Role.INTERMEDIATE, born + 1, reducing)
            else:
                edit.allocate(gradient.nbytes, Role.INTERMEDIATE, born, reducing)
            edit.set_lifetime(number, scatter, gradient.freed)


def _units(trace: Trace, end: int, holders: Holders) -> list[_Unit]:
    """The repeated blocks with their weights, and the rest of the model, in order of use.

    The experts of a block are gathered among other ranks than the rest of it.
    """
    block_of = block_finder(trace)
    nbytes: dict[tuple[str, RankAxis], int] = defaultdict(int)
    reduced: dict[tuple[str, RankAxis], int] = defaultdict(int)
    wider, with_gradients = 2 if _stored_narrow(trace) else 1, trained(trace)
    for number, allocation in enumerate(trace.allocations):
        axis = holders.axis_of(number)
        if allocation.role is Role.PARAMETER and axis.size > 1:
            unit = block_of(allocation.module), axis
            nbytes[unit] += allocation.nbytes * wider
            reduced[unit] += allocation.nbytes * wider * (number in with_gradients)
    spans: dict[tuple[str, Phase], list[int]] = defaultdict(list)
    for position, call in enumerate(trace.calls[:end]):
        phase = Phase.BACKWARD if call.phase is Phase.BACKWARD else Phase.FORWARD
        spans[block_of(call.module), phase].append(position)
    turn = min(
        (s for (_, phase), p in spans.items() if phase is Phase.BACKWARD for s in p), default=end
    )
    units = []
    for (name, axis), weights in nbytes.items():
        forward = [p for p in spans.get((name, Phase.FORWARD), ()) if p < turn]
        backward = spans.get((name, Phase.BACKWARD), [])
        both = weights, reduced[name, axis]
        if not name:  # the root: first to come, last to go; a loss outside of it goes before
            own = (p for p in range(turn, end) if trace.calls[p].module)
            units.append(_Unit("", *both, (0, turn), (next(own, turn), end), axis))
        elif forward and backward:
            ahead, back = (forward[0], forward[-1] + 1), (backward[0], backward[-1] + 1)
            units.append(_Unit(name, *both, ahead, back, axis))
    return sorted(units, key=lambda unit: (unit.forward[0], bool(unit.name)))


def gathered_units(trace: Trace, end: int) -> dict[str, tuple[int, int]]:
    """The bytes in float32 of the weights of each FSDP unit, and of those with gradients.

    The root's name is "". Experts are not counted: other ranks share them.
    """
    apart = Holders.of(trace, Parallel(data=2, expert=2), "shard")
    return {unit.name: (unit.nbytes, unit.trained_bytes) for unit in _units(trace, end, apart)}


def _sharded_memory(
    allocation: Allocation, shards: int, gradients_too: bool, weights_too: bool = False
) -> Allocation:
    """The share of one rank in states, gradients and weights."""
    shared = {Role.OPTIMIZER_STATE}
    if gradients_too:
        shared.add(Role.GRADIENT)
    if weights_too:
        shared.add(Role.PARAMETER)
    # Counters of a few bytes are kept whole.
    if allocation.role not in shared or allocation.nbytes <= 8:
        return allocation
    share, old = max(allocation.nbytes // shards, 1), allocation
    return Allocation(share, old.born, old.freed, old.role, old.module)


def _share_optimizer(edit: Edit, holders: Holders) -> None:
    """Let the optimizer's ops work on one rank's share of each tensor, in as much memory."""
    owners, on_shares = updated_parameters(edit.before), set()
    for position, call in enumerate(edit.before):
        if call.phase is not Phase.OPTIMIZER and not clips(call):
            continue
        every = (holders.dense.size,)
        inputs = tuple(holders.axis(owners[value]).size for value in call.reads) or every
        outputs = tuple(holders.axis(owners[value]).size for value in call.writes) or every
        same = set(inputs + outputs) == set(every)
        edit.replace_op(
            position, _shared(call.op, every, every) if same else _shared(call.op, inputs, outputs)
        )
        on_shares.add(position)
    owner = {value.allocation: owners[n] for n, value in enumerate(edit.before.values)}
    for number, memory in enumerate(edit.before.allocations):
        if memory.role is Role.INTERMEDIATE and memory.born in on_shares and memory.nbytes > 8:
            edit.resize(number, -(-memory.nbytes // holders.axis(owner.get(number, "")).size))


@lru_cache(maxsize=4096)  # equal ops stay one object, which is compared at once
def _shared(op: Op, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Op:
    """An op on one rank's share of tensors, each of which so many ranks share."""
    taken = tuple(map(_share, op.inputs, _each(inputs, len(op.inputs))))
    results = tuple(map(_share, op.outputs, _each(outputs, len(op.outputs))))
    whole, own = (sum(t.nbytes for t in tensors) for tensors in (op.outputs, results))
    return Op(op.name, taken, results, shared_attrs(op, own / max(whole, 1)))


def _each(shards: tuple[int, ...], tensors: int) -> tuple[int, ...]:
    return shards * tensors if len(shards) == 1 else shards


@lru_cache(maxsize=65536)
def _share(tensor: TensorSpec, shards: int) -> TensorSpec:
    if shards == 1 or tensor.numel < shards:
        return tensor
    rows = tensor.shape[0]
    if rows >= shards and tensor.strides is None:
        shape = (-(-rows // shards), *tensor.shape[1:])
        return TensorSpec(shape, tensor.dtype, None, tensor.device)
    return TensorSpec((-(-tensor.numel // shards),), tensor.dtype, None, tensor.device)


def weight_dtype(trace: Trace) -> str:
    """The dtype in which weights are stored: that of most of the optimizer's elements."""
    counts: dict[str, int] = defaultdict(int)
    for call in trace:
        if call.phase is Phase.OPTIMIZER:
            for tensor in call.op.inputs:
                counts[tensor.dtype] += tensor.numel
    return max(counts, key=lambda dtype: counts[dtype]) if counts else "float32"


def _stored_narrow(trace: Trace) -> bool:
    """Whether weights are stored in 16 bits: products use them so, and no copies are made.

    Compiled code makes copies in fused kernels, in which they are not told from other results. What
    the optimizer updates then tells.
    """
    copies = any(a.role is Role.WEIGHT_COPY for a in trace.allocations)
    if has_graphs(trace):
        copies = weight_dtype(trace) == "float32"
    return gathered_dtype(trace) != "float32" and not copies


def gathered_dtype(trace: Trace) -> str:
    """The data type of the matmuls, in which FSDP's mixed precision gathers weights."""
    counts: dict[str, int] = defaultdict(int)
    for call in trace:
        if call.phase is Phase.FORWARD and call.op.base in (
            "aten.addmm",
            "aten.mm",
            "aten.convolution",
        ):
            for tensor in call.op.inputs:
                counts[tensor.dtype] += math.prod(tensor.shape)
    dtype = max(counts, key=lambda d: counts[d]) if counts else "float32"
    return dtype if dtype in ("bfloat16", "float16") else "float32"


# Optimizer states in the host's memory, as ZeRO-Offload keeps them.
#
# Optimizer states and float32 masters leave the GPU (Ren et al., "ZeRO-Offload: Democratizing
# Billion-Scale Model Training", USENIX ATC 2021, section 4). Gradients are copied to pinned memory
# of the host as soon as they are reduced, beside the rest of the backward pass; FSDP's
# `CPUOffloadPolicy` does so too. The host then updates its share of the weights, and they are
# copied back. The paper hides that copy behind the update (section 5.1); DeepSpeed's code has this
# switched off, so here the GPU waits for both. Gradients of several micro-batches are added up on
# the GPU.


UPDATE = "host.optimizer"
"""The op in which the host updates weights. Its inputs are all that it reads and writes."""
_MASTER_BYTES = 4
"""The bytes of an element of the float32 weights that the host updates."""


@dataclass(frozen=True)
class HostUpdate:
    """What the host of a rank holds and moves in one optimizer step."""

    held_bytes: int
    """Optimizer states and float32 weights."""
    down_bytes: int
    """The rank's share of the gradients."""
    up_bytes: int
    """Its share of the weights."""

    @staticmethod
    def of(trace: Trace, strategy: Parallel) -> HostUpdate:
        """The update of a rank's share."""
        holders = Holders.of(trace, strategy, "shard")
        dtypes = {value.parameter: value.spec.dtype for value in trace.values if value.parameter}
        elements = down = up = 0
        for gradient in gradients(trace):
            whole = flat(gradient.nbytes, gradient.dtype)
            share = shard_of(whole, holders.axis(gradient.parameter))
            dtype = dtypes.get(gradient.parameter, gradient.dtype)
            elements, down = elements + share.numel, down + share.nbytes
            up += TensorSpec(share.shape, dtype).nbytes
        states = sum(
            -(-memory.nbytes // holders.axis_of(number).size)
            for number, memory in enumerate(trace.allocations)
            if memory.role is Role.OPTIMIZER_STATE
        )
        narrow = up < _MASTER_BYTES * elements
        has_masters = narrow and weight_dtype(trace) == "float32"
        masters = 0 if has_masters else _MASTER_BYTES * elements
        return HostUpdate(states + masters, down, up)

    def call(self, ranks: int) -> Call:
        """The host's work: it reads and writes all that it holds, and reads the gradients."""
        traffic = TensorSpec((2 * self.held_bytes + self.down_bytes,), "uint8", device="cpu")
        op = Op(UPDATE, (traffic,), (), (("ranks", ranks),))
        return Call(op, Phase.OPTIMIZER, stream=OFFLOAD)


def with_offloaded_optimizer(last: Trace, strategy: Parallel, update: HostUpdate) -> Trace:
    """The last micro-batch of a rank, whose host updates the weights."""
    edit = Edit(last)
    for position, tensor in _reduced(last):
        ready = wait(OFFLOAD, REDUCTIONS, Phase.BACKWARD)
        edit.insert(position, [ready, _copy(tensor, "cuda", Phase.BACKWARD)])
    for bucket in framework_buckets(_never_reduced(last, strategy), strategy):
        tensor = flat(sum(gradient.nbytes for gradient in bucket), bucket[0].dtype)
        ready = wait(OFFLOAD, COMPUTE, Phase.BACKWARD)
        edit.insert(bucket[-1].ready + 1, [ready, _copy(tensor, "cuda", Phase.BACKWARD)])
    updating = [at for at, call in enumerate(last) if _updates(call)]
    edit.remove(updating)
    weights = TensorSpec((update.up_bytes,), "uint8")
    begin = wait(OFFLOAD, COMPUTE, Phase.OPTIMIZER)
    done = replace(wait(COMPUTE, OFFLOAD, Phase.OPTIMIZER), syncs=True)
    ahead = updating[0] if updating else len(last)
    copied = _copy(weights, "cpu", Phase.OPTIMIZER)
    edit.insert(ahead, [begin, update.call(strategy.gpus), copied, done])
    edit.change_memory(lambda memory: None if memory.role is Role.OPTIMIZER_STATE else memory)
    return edit.trace()


def _updates(call: Call) -> bool:
    """Whether a call is the optimizer's own work, which the host does instead."""
    if call.phase is not Phase.OPTIMIZER or call.op.name.startswith("nccl."):
        return False
    return call.op.name != "cuda.stream_wait"


def _reduced(trace: Trace) -> Iterator[tuple[int, TensorSpec]]:
    """Where a share of the gradients is final, and what it is."""
    for position, call in enumerate(trace):
        if call.op.name == "nccl.reduce_scatter" and call.stream == REDUCTIONS:
            after = trace.calls[position + 1] if position + 1 < len(trace) else call
            grouped = after.op.name == "nccl.all_reduce" and after.stream == REDUCTIONS
            yield position + (2 if grouped else 1), call.op.outputs[0]


def _never_reduced(trace: Trace, strategy: Parallel) -> list[Gradient]:
    """The gradients that one rank has alone."""
    holders = Holders.of(trace, strategy, "shard")
    return [gradient for gradient in gradients(trace) if holders.axis(gradient.parameter).size == 1]


def _copy(tensor: TensorSpec, source: str, phase: Phase) -> Call:
    """A copy between the GPU and pinned memory of the host."""
    there = {"cuda": "cpu", "cpu": "cuda"}[source]
    before, after = (replace(tensor, device=place) for place in (source, there))
    return Call(Op("aten._to_copy", (before,), (after,)), phase, stream=OFFLOAD)
