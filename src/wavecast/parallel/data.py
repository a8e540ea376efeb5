"""Data parallelism as DistributedDataParallel does it: buckets of gradients, reduced on the way.

Each gradient is copied into its bucket when it is ready. A full bucket is reduced on a stream of
its own, beside the rest of the backward pass. At the end of the backward pass the compute stream
waits for all reductions, and the gradients are copied back (torch's `c10d/reducer.cpp`). Compiled
graphs are cut at buckets.

Gradients in one buffer (`Parallel.has_one_buffer`) are reduced when the backward pass has ended.
One kernel fills the buffer and one empties it, as in Apex (`flatten`, `multi_tensor_scale`).

Sums that the framework keeps in its buffers (`Gradient.in_place`) are reduced where they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from wavecast.ops.fused import HOST_CALLS
from wavecast.parallel.compiled_graphs import cut_graphs
from wavecast.parallel.editing import COMPUTE, REDUCTIONS, flat, kernel, wait
from wavecast.parallel.exchanges import all_reduce
from wavecast.parallel.expert_ranks import Holders
from wavecast.parallel.gradients import Gradient, framework_buckets, gradients, reduced_as
from wavecast.parallel.strategy import Parallel, RankAxis
from wavecast.traces.editing import Edit
from wavecast.traces.graphs import has_graphs
from wavecast.traces.step import Phase, Role, Trace


def with_reduction(trace: Trace, strategy: Parallel, end: int) -> Trace:
    """A micro-batch whose gradients are reduced over the data axis.

    Args:
        trace: forward pass, backward pass and optimizer of one micro-batch.
        strategy: how the step is spread.
        end: the position where the backward pass ends.
    """
    holders = Holders.of(trace, strategy, "data")
    if holders.alone:
        return trace
    edit = Edit(trace)
    ready = gradients(trace)
    if strategy.has_one_buffer:
        for axis, members in holders.grouped(ready):
            _reduce_buffer(edit, members, axis, strategy, end)
        return edit.trace()
    for axis, members in holders.grouped(ready):
        for bucket in framework_buckets(members, strategy):
            _reduce(edit, bucket, axis, strategy)
    edit.insert(end, [wait(COMPUTE, REDUCTIONS, Phase.BACKWARD)])
    reduced = [gradient for gradient in ready if holders.axis(gradient.parameter).size > 1]
    for gradient in _apart(reduced):
        own, sent = flat(gradient.nbytes, gradient.dtype), reduced_as([gradient], strategy)
        edit.insert(end, [kernel("aten.copy_", sent, own, Phase.BACKWARD, gradient.module)])
    return edit.trace()


def cut_at_buckets(trace: Trace, strategy: Parallel) -> Trace:
    """The step with compiled graphs cut as Dynamo's DDPOptimizer cuts them: one for each bucket.

    The graph of the forward pass is cut where that of the backward pass is: before the module whose
    gradient completes a bucket.
    """
    holders = Holders.of(trace, strategy, "data")
    if holders.alone or strategy.has_one_buffer or not has_graphs(trace):
        return trace
    first_use: dict[str, int] = {}
    for position, call in enumerate(trace):
        if call.phase is Phase.FORWARD and call.op.name not in HOST_CALLS:
            first_use.setdefault(call.module, position)
    cuts = []
    for _, members in holders.grouped(gradients(trace, inside_graphs=True)):
        for bucket in framework_buckets(members, strategy):
            last = bucket[-1]
            cuts += [last.ready + 1, first_use.get(last.module, 0)]
    return cut_graphs(trace, cuts)


def _reduce_buffer(
    edit: Edit, members: Sequence[Gradient], axis: RankAxis, strategy: Parallel, end: int
) -> None:
    """Reduce gradients that lie in one buffer after the backward pass."""
    copied = reduced_as(_apart(members), strategy)
    copies = [kernel("aten.copy_", copied, copied, Phase.BACKWARD, "")] if copied.numel else []
    there = wait(REDUCTIONS, COMPUTE, Phase.BACKWARD)
    reduction = all_reduce(reduced_as(members, strategy), axis, REDUCTIONS, Phase.BACKWARD)
    back = wait(COMPUTE, REDUCTIONS, Phase.BACKWARD)
    edit.insert(end, [*copies, there, reduction, back, *copies])
    if copies:
        edit.allocate(copied.nbytes, Role.GRADIENT)


def _reduce(edit: Edit, bucket: Sequence[Gradient], axis: RankAxis, strategy: Parallel) -> None:
    """Copy gradients into a bucket when they are ready, and reduce it when it is full.

    Sums that are kept in place lie in their bucket, which one kernel divides by the ranks.
    """
    apart, last = _apart(bucket), bucket[-1]
    for gradient in apart:
        own, sent = flat(gradient.nbytes, gradient.dtype), reduced_as([gradient], strategy)
        copy = kernel("aten.mul.Tensor", own, sent, Phase.BACKWARD, gradient.module)
        edit.insert(gradient.ready + 1, [copy])
    if apart:
        edit.allocate(reduced_as(apart, strategy).nbytes, Role.GRADIENT)
    in_place = reduced_as([gradient for gradient in bucket if gradient.in_place], strategy)
    if in_place.numel:
        scaling = kernel("aten.mul_.Tensor", in_place, in_place, Phase.BACKWARD, last.module)
        edit.insert(last.ready + 1, [scaling])
    whole = reduced_as(bucket, strategy)
    reduction = all_reduce(whole, axis, REDUCTIONS, Phase.BACKWARD, last.module)
    waiting = wait(REDUCTIONS, COMPUTE, Phase.BACKWARD, last.module)
    edit.insert(last.ready + 1, [waiting, reduction])


def _apart(members: Sequence[Gradient]) -> list[Gradient]:
    """The gradients that do not lie in the buffer that is reduced."""
    return [gradient for gradient in members if not gradient.in_place]
