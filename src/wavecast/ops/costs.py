"""The cost of each op from its shapes: its kind, FLOPs, memory traffic and arithmetic unit.

Conventions:
    A multiply-add is two FLOPs.
    `Cost.flops` equals `torch.utils.flop_counter` wherever that has a formula, even where torch
    counts FLOPs that no GPU executes; `executed_flops` counts those that are executed.
    Bytes are the least that must move: each tensor once per kernel that needs it, a broadcast
    dimension once, and of a lookup table only the rows that are read. Tensors in host memory do
    not count.
    An op without a formula has no cost; nothing is guessed.

The formulas are in the other modules of this folder, one module for each family of ops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add

from wavecast.ops import (  # noqa: F401  (importing them registers their formulas)
    attention,
    collective,
    convolution,
    detection,
    fused,
    indexing,
    matmul,
    movement,
    normalization,
    optimizer,
    pointwise,
    quantization,
    rnn,
    sparse,
    spatial,
)
from wavecast.ops.kernel_counts import kernel_count
from wavecast.ops.reading import has_possible_tensors, is_possible_work, reading
from wavecast.ops.registry import Cost, Kind, counter_of, formula_of, kind_of
from wavecast.traces.step import Op, Phase, Trace


def kind(op: Op) -> Kind | None:
    """The kind of an op; None when its name is not registered."""
    return kind_of(op.name)


def cost_of(op: Op) -> Cost | None:
    """The FLOPs and bytes of one run of an op.

    None without a formula, without shapes, and where the formula cannot read the op.
    """
    formula = formula_of(op.name)
    if formula is None or not has_shapes(op):
        return None
    cost = reading(formula, None, op)
    if cost is None or not all(map(is_possible_work, cost.amounts)):
        return None
    return cost


def has_shapes(op: Op) -> bool:
    """Whether the shapes of an op are known, and such that its tensors could exist.

    A profiler may have recorded its name only. A hand-made trace may hold any shape.
    """
    if not (op.inputs or op.outputs):
        return kind(op) in (Kind.VIEW, Kind.SYNC)
    return has_possible_tensors(op)


def executed_flops(op: Op) -> int | None:
    """The FLOPs that a GPU executes in one run of an op; None when there is no formula.

    They differ from `Cost.flops` in two cases. Attention kernels skip the pairs that a causal mask
    or a window hides. For the weight gradient of grouped convolutions, torch's counter multiplies
    by the number of groups.
    """
    counter = counter_of(op.name)
    if counter and has_shapes(op):
        flops = reading(counter, None, op)
        return flops if flops is not None and is_possible_work(flops) else None
    costs = cost_of(op)
    return None if costs is None else costs.flops


def is_readable(op: Op) -> bool:
    """Whether the formulas of an op can read its tensors. True also if there are none."""
    if formula_of(op.name) is None or not (op.inputs or op.outputs):
        return True
    return cost_of(op) is not None and executed_flops(op) is not None


def launches(op: Op) -> bool:
    """Whether an op runs a kernel: not for views, synchronisations and tensors without elements."""
    if kind(op) in (Kind.VIEW, Kind.SYNC):
        return False
    return reading(_has_elements, True, op)


def _has_elements(op: Op) -> bool:
    return any(t.device != "cpu" and t.numel for t in (*op.inputs, *op.outputs))


def kernels(op: Op) -> int:
    """The least number of kernels that one run of an op launches (`ops/kernel_counts.py`)."""
    if not launches(op):
        return 0
    count = reading(kernel_count, 1, op)
    return count if is_possible_work(count) else 1


def is_depthwise(op: Op) -> bool:
    """Whether an op is a convolution that convolves each channel separately."""
    if kind(op) is not Kind.CONVOLUTION or not has_shapes(op):
        return False
    return reading(convolution.depthwise, False, op)


@dataclass(frozen=True)
class Totals:
    """The cost of a step by phase and by kind, and the ops whose cost is unknown."""

    by_phase: Mapping[Phase, Cost]
    by_kind: Mapping[Kind, Cost]
    executed_flops: int
    """The FLOPs that the GPU executes; the costs have torch's count."""
    kernels: int
    """The number of calls that run a kernel."""
    unknown: Mapping[str, int]
    """The number of calls of each op without a formula, by op name."""

    @property
    def cost(self) -> Cost:
        """The cost of the whole step."""
        return reduce(add, self.by_phase.values(), Cost())


def totals(trace: Trace) -> Totals:
    """The cost of a step: the sum over its calls."""
    calls: dict[tuple[Op, Phase], int] = {}
    for call in trace:
        key = call.op, call.phase
        calls[key] = calls.get(key, 0) + 1
    by_phase: dict[Phase, Cost] = {}
    by_kind: dict[Kind, Cost] = {}
    unknown: dict[str, int] = {}
    executed = kernels = 0
    for (op, phase), times in calls.items():
        kernels += times * launches(op)
        op_cost, op_kind = cost_of(op), kind(op)
        if op_cost is None or op_kind is None:
            unknown[op.name] = unknown.get(op.name, 0) + times
            continue
        executed += (executed_flops(op) or 0) * times
        by_phase[phase] = by_phase.get(phase, Cost()) + op_cost * times
        by_kind[op_kind] = by_kind.get(op_kind, Cost()) + op_cost * times
    return Totals(by_phase, by_kind, executed, kernels, unknown)
