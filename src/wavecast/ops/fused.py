"""The cost of compiled code: fused kernels of Inductor and XLA, and the host's work around them.

The work of a fused kernel does not follow from its tensors alone. Attributes of the op describe it:
`points`, `reduction` (the length of its sums), `read_bytes`, `write_bytes` and `arithmetic`
(operations for each point and each term of a sum).
"""

from __future__ import annotations

from wavecast.ops.registry import Cost, Kind, cost, integer
from wavecast.traces.graphs import CALL, GRAPH_LAUNCH, GUARDS, XLA_CALL
from wavecast.traces.step import Op, Scalar

FUSED = (
    "inductor.pointwise",
    "inductor.reduction",
    "inductor.persistent_reduction",
    "inductor.foreach",
)
"""Kernels that Inductor writes in Triton."""
XLA_LOOP, XLA_REDUCTION, XLA_ROWS = "xla.loop", "xla.reduction", "xla.rows"
XLA_TRANSPOSE, XLA_SCATTER = "xla.transpose", "xla.scatter"
XLA_FUSED = (XLA_LOOP, XLA_REDUCTION, XLA_ROWS, XLA_TRANSPOSE, XLA_SCATTER)
"""Kernels that XLA writes: one point of the result after the other; sums; sums of rows that are
held in registers (Triton); tiles that are turned; additions at looked-up places."""
TEMPLATE = "inductor.template"
"""A matmul or convolution in Triton, which `mode="max-autotune"` may choose."""
HOST_CALLS = (GUARDS, CALL, GRAPH_LAUNCH, XLA_CALL)
"""The host's work around compiled code."""


_AMOUNTS = (
    *("points", "read_bytes", "write_bytes", "strided_bytes", "indirect_bytes"),
    *("again_bytes", "atomic_bytes", "colliding_bytes"),
)
"""Attributes that grow with the tensors of a fused kernel."""


def shared_attrs(op: Op, share: float) -> tuple[tuple[str, Scalar], ...]:
    """The attributes of an op on a share of its elements: those of a fused kernel are smaller."""
    if op.name not in (*FUSED, *XLA_FUSED) or share == 1:
        return op.attrs
    return tuple(
        (name, max(int(value * share), 1))
        if name in _AMOUNTS and isinstance(value, int) and value
        else (name, value)
        for name, value in op.attrs
    )


@cost(*FUSED, *XLA_FUSED, kind=Kind.FUSED)
def _fused(op: Op) -> Cost:
    work = integer(op, "points") * max(integer(op, "reduction", 1), 1)
    arithmetic = op.attr("arithmetic", 0)
    flops = int(work * arithmetic) if isinstance(arithmetic, int | float) else 0
    return Cost(flops, integer(op, "read_bytes"), integer(op, "write_bytes"))


@cost(TEMPLATE, kind=Kind.MATMUL)
def _triton_template(op: Op) -> Cost:
    flops = 2 * integer(op, "points") * max(integer(op, "reduction", 1), 1)
    return Cost(flops, integer(op, "read_bytes"), integer(op, "write_bytes"))


@cost(*HOST_CALLS, kind=Kind.VIEW)
def _on_host(op: Op) -> Cost:
    return Cost()
