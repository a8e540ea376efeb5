"""Optimizer states in the host's memory, as ZeRO-Offload keeps them.

Optimizer states and float32 masters leave the GPU (Ren et al., "ZeRO-Offload: Democratizing
Billion-Scale Model Training", USENIX ATC 2021, section 4). Gradients are copied to pinned memory of
the host as soon as they are reduced, beside the rest of the backward pass; FSDP's
`CPUOffloadPolicy` does so too. The host then updates its share of the weights, and they are copied
back. The paper hides that copy behind the update (section 5.1); DeepSpeed's code has this switched
off, so here the GPU waits for both. Gradients of several micro-batches are added up on the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from wavecast.parallel.exchanges import COMPUTE, OFFLOAD, REDUCTIONS, flat, shard_of, wait
from wavecast.parallel.experts import Holders
from wavecast.parallel.gradients import Gradient, framework_buckets, gradients
from wavecast.parallel.sharded import weight_dtype
from wavecast.parallel.strategy import Parallel
from wavecast.traces.editing import Edit
from wavecast.traces.step import Call, Op, Phase, Role, TensorSpec, Trace

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
        """The update of a rank's share.

        Args:
            trace: one micro-batch of the rank, before anything is sharded among data-parallel
                ranks.
            strategy: how the step is spread.
        """
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
    """The last micro-batch of a rank, whose host updates the weights.

    Args:
        last: the micro-batch with its reductions and the optimizer of its share.
        strategy: how the step is spread.
        update: what the host does.
    """
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
    return [one for one in gradients(trace) if holders.axis(one.parameter).size == 1]


def _copy(tensor: TensorSpec, source: str, phase: Phase) -> Call:
    """A copy between the GPU and pinned memory of the host."""
    there = {"cuda": "cpu", "cpu": "cuda"}[source]
    before, after = (replace(tensor, device=place) for place in (source, there))
    return Call(Op("aten._to_copy", (before,), (after,)), phase, stream=OFFLOAD)
