"""The cost of each op from its shapes: its kind, FLOPs, memory traffic and arithmetic unit.

Conventions:
    A multiply-add is two FLOPs.
    `Cost.flops` equals `torch.utils.flop_counter` wherever that has a formula, even where torch
    counts what no GPU computes; `executed_flops` is what the GPU does.
    Bytes are the least that must move: each tensor once per kernel that needs it, a broadcast
    dimension once, only rows that are fetched. Tensors of the host do not count.
    An op without a formula has no cost; nothing is guessed.

The formulas are in the other files of this folder, one for each family of ops.
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
    indexing,
    matmul,
    movement,
    normalization,
    optimizer,
    pointwise,
    rnn,
    spatial,
)
from wavecast.ops.kernel_counts import counted
from wavecast.ops.registry import Cost, Kind, counter_of, formula_of, kind_of
from wavecast.traces.step import Op, Phase, Trace


def kind(op: Op) -> Kind | None:
    """The kind of an op, or None when its name is not known."""
    return kind_of(op.name)


def cost_of(op: Op) -> Cost | None:
    """FLOPs and bytes of one run of an op, or None when there is no formula or no shape for it."""
    formula = formula_of(op.name)
    return formula(op) if formula and has_shapes(op) else None


def has_shapes(op: Op) -> bool:
    """Whether an op says what it works on; a profiler may tell no more than its name."""
    return bool(op.inputs or op.outputs) or kind(op) in (Kind.VIEW, Kind.SYNC)


def executed_flops(op: Op) -> int | None:
    """The FLOPs that a GPU executes, or None when there is no formula.

    They differ from `Cost.flops` for attention, where kernels skip what a causal mask or a
    window hides, and for the weight gradient of grouped convolutions, where torch's counter
    forgets the groups.
    """
    counter = counter_of(op.name)
    if counter and has_shapes(op):
        return counter(op)
    costs = cost_of(op)
    return None if costs is None else costs.flops


def launches(op: Op) -> bool:
    """Whether the GPU has something to run: not for views, waiting, or tensors without elements."""
    if kind(op) in (Kind.VIEW, Kind.SYNC):
        return False
    return any(t.device != "cpu" and t.numel for t in (*op.inputs, *op.outputs))


def kernels(op: Op) -> int:
    """How many kernels one run of an op launches, at least (`ops/kernel_counts.py`)."""
    return counted(op) if launches(op) else 0


def is_depthwise(op: Op) -> bool:
    """Whether an op is a convolution of each channel by itself."""
    return kind(op) is Kind.CONVOLUTION and has_shapes(op) and convolution.depthwise(op)


@dataclass(frozen=True)
class Totals:
    """What a step costs, by phase and by kind, and what of it is not known."""

    by_phase: Mapping[Phase, Cost]
    by_kind: Mapping[Kind, Cost]
    executed_flops: int
    """The FLOPs that the GPU does; torch's count of them is in the costs."""
    kernels: int
    """Calls that give the GPU something to run."""
    unknown: Mapping[str, int]
    """Calls of ops for which there is no formula, by the op's name."""

    @property
    def cost(self) -> Cost:
        """The whole step."""
        return reduce(add, self.by_phase.values(), Cost())


def totals(trace: Trace) -> Totals:
    """The costs of all calls of a step."""
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
        each, sort = cost_of(op), kind(op)
        if each is None or sort is None:
            unknown[op.name] = unknown.get(op.name, 0) + times
            continue
        executed += (executed_flops(op) or 0) * times
        by_phase[phase] = by_phase.get(phase, Cost()) + each * times
        by_kind[sort] = by_kind.get(sort, Cost()) + each * times
    return Totals(by_phase, by_kind, executed, kernels, unknown)
