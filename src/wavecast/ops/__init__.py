"""The cost of each op from its shapes: its kind, FLOPs, memory traffic and arithmetic unit."""

from wavecast.ops.costs import (
    Totals,
    Unit,
    cost_of,
    executed_flops,
    fallbacks,
    has_shapes,
    is_depthwise,
    is_readable,
    kernels,
    kind,
    launches,
    totals,
    unit,
)
from wavecast.ops.pointwise import copies_pinned
from wavecast.ops.registry import Cost, Kind, cost

__all__ = [
    "Cost",
    "Kind",
    "Totals",
    "Unit",
    "copies_pinned",
    "cost",
    "cost_of",
    "executed_flops",
    "fallbacks",
    "has_shapes",
    "is_depthwise",
    "is_readable",
    "kernels",
    "kind",
    "launches",
    "totals",
    "unit",
]
