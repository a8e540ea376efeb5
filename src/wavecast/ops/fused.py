"""The cost of what torch.compile runs: fused kernels of Inductor, and the host's work around them.

What a fused kernel reads, writes and computes cannot be told from its tensors alone. Attributes of
the op say it: `points`, `reduction` (the length of its sums), `read_bytes`, `write_bytes` and
`arithmetic` (operations for each point and each term of a sum).
"""

from __future__ import annotations

from wavecast.ops.registry import Cost, Kind, cost, integer
from wavecast.traces.step import Op

FUSED = (
    "inductor.pointwise",
    "inductor.reduction",
    "inductor.persistent_reduction",
    "inductor.foreach",
)
"""Kernels that Inductor writes in Triton."""
TEMPLATE = "inductor.template"
"""A product or convolution in Triton, which `mode="max-autotune"` may choose."""
GUARDS, CALL, GRAPH_LAUNCH = "dynamo.guards", "inductor.call", "cuda.graph_launch"
HOST_CALLS = (GUARDS, CALL, GRAPH_LAUNCH)
"""The host's work: checking whether compiled code may run, calling it, launching a CUDA graph. The
attribute `calls` of the last two says how many of the following calls the graph contains, and
`inputs` of a call how many tensors it is given."""


@cost(*FUSED, kind=Kind.FUSED)
def _fused(op: Op) -> Cost:
    work = integer(op, "points") * max(integer(op, "reduction", 1), 1)
    arithmetic = op.attr("arithmetic", 0)
    flops = int(work * arithmetic) if isinstance(arithmetic, int | float) else 0
    return Cost(flops, integer(op, "read_bytes"), integer(op, "write_bytes"))


@cost(TEMPLATE, kind=Kind.MATMUL)
def _template(op: Op) -> Cost:
    flops = 2 * integer(op, "points") * max(integer(op, "reduction", 1), 1)
    return Cost(flops, integer(op, "read_bytes"), integer(op, "write_bytes"))


@cost(*HOST_CALLS, kind=Kind.VIEW)
def _on_host(op: Op) -> Cost:
    return Cost()
