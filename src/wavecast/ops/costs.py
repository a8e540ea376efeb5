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
from enum import StrEnum
from functools import reduce
from operator import add

from wavecast.files import shipped_toml
from wavecast.ops import (  # noqa: F401  (importing them registers their formulas)
    attention,
    convolution,
    fused,
    indexing,
    matmul,
    pointwise,
)
from wavecast.ops.matmul import ADDING
from wavecast.ops.registry import (
    Cost,
    Kind,
    counter_of,
    formula_of,
    has_possible_tensors,
    is_possible_work,
    kind_of,
    reading,
)
from wavecast.traces.step import Op, Phase, Trace


def kind(op: Op) -> Kind | None:
    """The kind of an op; None when its name is not registered."""
    return kind_of(op.name)


def cost_of(op: Op) -> Cost | None:
    """The FLOPs and bytes of one run of an op; None without a formula that can read its shapes."""
    formula = formula_of(op.name)
    if formula is None or not has_shapes(op):
        return None
    cost = reading(formula, None, op)
    if cost is None or not all(map(is_possible_work, cost.amounts)):
        return None
    return cost


def has_shapes(op: Op) -> bool:
    """Whether an op's shapes are known and possible: a profiler may record only its name."""
    if not (op.inputs or op.outputs):
        return kind(op) in (Kind.VIEW, Kind.SYNC)
    return has_possible_tensors(op)


def executed_flops(op: Op) -> int | None:
    """The FLOPs that a GPU executes in one run of an op; None when there is no formula.

    They differ from `Cost.flops` in two cases: attention kernels skip what a causal mask or a
    window hides, and torch's counter multiplies the weight gradient of grouped convolutions by the
    number of groups.
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
    """The least number of kernels that one run of an op launches (`ops/costs.py`)."""
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


# The number of kernels that an op launches, mostly one.


COUNTED: Mapping[str, int] = shipped_toml("models/kernel_counts.toml")["kernels"]
"""The kernel counts of ops that launch more than one; the file says how they were counted."""
SORTING = 20
"""The kernel count of ops that sort their indices before they add to the rows."""
SORTING_FEW, CHECKING = 13, 7
"""That of ops that sort few indices, and how many of these check that indices are inside."""
UNSORTED_LOOKUPS = 3072
"""Up to this many indices, the gradient of an embedding does not sort them (Embedding.cu)."""

ONE_TILE = 2048
"""Up to this many indices, one kernel sorts those of an embedding bag. 33 kernels were measured
with 4,096 and 8,192 indices, 13 with 2,048."""


def kernel_count(op: Op) -> int:
    """The least number of kernels of an op, if it launches any.

    For recurrent layers cuDNN launches two kernels per time step, layer and direction, in each pass
    (1033 for 128 steps of a bidirectional LSTM of two layers).
    """
    if kind_of(op.name) is Kind.RNN:
        return 2 * matmul.cell_steps(op)
    if "index_put" in op.base:
        return _index_put_kernels(op) if op.attr("accumulate", False) else 1
    if op.base == "aten.embedding_dense_backward" and index_count(op) > UNSORTED_LOOKUPS:
        return SORTING
    if "embedding_bag" in op.base and op.base.endswith("backward") and index_count(op) > ONE_TILE:
        return COUNTED.get(op.base, 1) + SORTING
    if op.attr("training") is False:
        return 1
    if op.base == "aten.im2col" and len(op.inputs[0].shape) == 4:  # one for each image (Im2Col.cu)
        return max(op.inputs[0].shape[0], 1)
    # With channels last, one kernel more was measured.
    more = "batch_norm" in op.base and "cudnn" not in op.base and _channels_last(op)
    return COUNTED.get(op.base, 1) + more


def _index_put_kernels(op: Op) -> int:
    """The kernels that check, sort and add the places of an `index_put`.

    Nine more check each further tensor of indices; unsafe ones are not checked.
    """
    indices = max(len(op.inputs) - 2, 1)
    checked = 0 if op.attr("unsafe", False) else CHECKING
    sorting = SORTING if index_count(op) > ONE_TILE else SORTING_FEW
    return sorting - CHECKING + checked + (indices - 1) * (checked + 2)


def _channels_last(op: Op) -> bool:
    tensors = [t for t in (*op.inputs, *op.outputs) if t.device != "cpu"]
    return bool(tensors) and max(tensors, key=lambda t: t.numel).channels_last


def index_count(op: Op) -> int:
    """The number of indices of an op."""
    return max((t.numel for t in op.inputs if "int" in t.dtype), default=0)


# The arithmetic unit of a GPU that an op is meant for.


class Unit(StrEnum):
    """An arithmetic unit of a GPU: CUDA cores or tensor cores, with a precision."""

    FP64 = "fp64"
    FP32 = "fp32"
    FP16 = "fp16"
    TF32_TENSOR = "tf32_tensor"
    FP16_TENSOR = "fp16_tensor"
    BF16_TENSOR = "bf16_tensor"
    FP8_TENSOR = "fp8_tensor"
    INT8_TENSOR = "int8_tensor"


_TENSOR_KINDS = {Kind.MATMUL, Kind.CONVOLUTION, Kind.ATTENTION, Kind.RNN}
_TENSOR_UNITS = {
    "float16": Unit.FP16_TENSOR,
    "bfloat16": Unit.BF16_TENSOR,
    "float8_e4m3fn": Unit.FP8_TENSOR,
    "float8_e5m2": Unit.FP8_TENSOR,
    "int8": Unit.INT8_TENSOR,
}
_FALLBACKS = {
    Unit.FP16: (Unit.FP32,),
    Unit.TF32_TENSOR: (Unit.FP32,),
    Unit.FP16_TENSOR: (Unit.FP16, Unit.FP32),
    Unit.BF16_TENSOR: (Unit.FP32,),
}


def unit(op: Op) -> Unit:
    """The unit that an op's FLOPs are meant for, by its kind, data type and float32 precision.

    Ops that are no matmul, and depthwise convolutions, compute half precision in float32. The type
    of what a matmul adds does not count.
    """
    tensors = op.inputs or op.outputs
    factors = tensors[1:] if op.base in ADDING and len(tensors) > 2 else tensors
    dtype = factors[0].dtype if factors else "float32"
    if dtype in ("float64", "complex128"):
        return Unit.FP64
    if kind(op) not in _TENSOR_KINDS:
        return Unit.FP32
    if is_depthwise(op):
        return Unit.FP32
    if op.attr("precision") == "tf32":
        return Unit.TF32_TENSOR
    return _TENSOR_UNITS.get(dtype, Unit.FP32)


def fallbacks(unit: Unit) -> tuple[Unit, ...]:
    """The units that a GPU without this one uses instead, in order; empty if it cannot."""
    return _FALLBACKS.get(unit, ())
