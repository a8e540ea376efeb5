"""Data parallelism as DistributedDataParallel does it: buckets of gradients, reduced on the way.

Each gradient is copied into its bucket when it is ready. A full bucket is reduced on a stream of
its own, beside the rest of the backward pass. At the end of the backward pass the compute stream
waits for all reductions, and the gradients are copied back (torch's `c10d/reducer.cpp`).
"""

from __future__ import annotations

from wavecast.parallel.editing import COMPUTE, REDUCTIONS, Edit, flat, kernel, wait
from wavecast.parallel.exchanges import all_reduce
from wavecast.parallel.gradients import buckets, gradients
from wavecast.parallel.strategy import Parallel
from wavecast.traces.step import Phase, Role, Trace


def with_reduction(trace: Trace, strategy: Parallel, end: int) -> Trace:
    """A micro-batch whose gradients are reduced over the data axis.

    Args:
        trace: forward pass, backward pass and optimizer of one micro-batch.
        strategy: how the step is spread.
        end: the position where the backward pass ends.
    """
    axis = strategy.axes["data"]
    if axis.size == 1:
        return trace
    edit = Edit(trace)
    ready = gradients(trace)
    for bucket in buckets(ready, strategy.bucket_bytes):
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
    edit.insert(end, [wait(COMPUTE, REDUCTIONS, Phase.BACKWARD)])
    for gradient in ready:
        tensor = flat(gradient.nbytes, "float32")
        edit.insert(end, [kernel("aten.copy_", tensor, tensor, Phase.BACKWARD, gradient.module)])
    return edit.made()
