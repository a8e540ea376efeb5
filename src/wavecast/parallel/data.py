"""Data parallelism as DistributedDataParallel does it: buckets of gradients, reduced on the way.

Each gradient is copied into its bucket when it is ready. A full bucket is reduced on a stream of
its own, beside the rest of the backward pass. At the end of the backward pass the compute stream
waits for all reductions, and the gradients are copied back (torch's `c10d/reducer.cpp`).
"""

from __future__ import annotations

from collections.abc import Sequence

from wavecast.parallel.editing import COMPUTE, REDUCTIONS, Edit, flat, kernel, wait
from wavecast.parallel.exchanges import all_reduce
from wavecast.parallel.expert_ranks import Holders
from wavecast.parallel.gradients import Gradient, buckets, gradients
from wavecast.parallel.strategy import Parallel, RankAxis
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
    for axis, members in holders.grouped(ready):
        for bucket in buckets(members, strategy.bucket_bytes):
            _reduce(edit, bucket, axis)
    edit.insert(end, [wait(COMPUTE, REDUCTIONS, Phase.BACKWARD)])
    reduced = [gradient for gradient in ready if holders.axis(gradient.module).size > 1]
    for gradient in reduced:
        tensor = flat(gradient.nbytes, "float32")
        edit.insert(end, [kernel("aten.copy_", tensor, tensor, Phase.BACKWARD, gradient.module)])
    return edit.made()


def _reduce(edit: Edit, bucket: Sequence[Gradient], axis: RankAxis) -> None:
    """Copy gradients into a bucket when they are ready, and reduce it when it is full."""
    for gradient in bucket:
        tensor = flat(gradient.nbytes, "float32")
        copy = kernel("aten.mul.Tensor", tensor, tensor, Phase.BACKWARD, gradient.module)
        edit.insert(gradient.ready + 1, [copy])
    last = bucket[-1]
    whole = flat(sum(g.nbytes for g in bucket), "float32")
    reduction = all_reduce(whole, axis, REDUCTIONS, Phase.BACKWARD, last.module)
    waiting = wait(REDUCTIONS, COMPUTE, Phase.BACKWARD, last.module)
    edit.insert(last.ready + 1, [waiting, reduction])
    edit.allocate(whole.nbytes, Role.GRADIENT)
