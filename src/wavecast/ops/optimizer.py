"""The cost of optimizers: foreach ops on lists of tensors, and fused ops with a whole update."""

from __future__ import annotations

from wavecast.ops.registry import ALL, NONE, Cost, Kind, aten, cost, read, streaming, written
from wavecast.traces.step import Op

_FOREACH = {
    1: """
        abs add ceil clamp_max clamp_min floor frac maximum minimum mul neg round sign sub trunc
        max
    """,
    4: "addcdiv addcmul div lerp norm powsum reciprocal rsqrt sqrt",
    10: """
        acos asin atan cos cosh erf erfc exp expm1 log log10 log1p log2 pow sigmoid sin sinh tan
        tanh
    """,
    40: "lgamma",
}


def _foreach(names: str, flops: int = 0, reads: slice = ALL) -> None:
    """Register `_foreach` ops, whose first list has one tensor for each output."""

    def formula(op: Op) -> Cost:
        elements = sum(t.numel for t in op.inputs[: len(op.outputs)]) if flops else 0
        return Cost(flops * elements, read(op.inputs[reads]), written(op.outputs))

    cost(*(f"aten._foreach_{name}" for name in names.split()), kind=Kind.OPTIMIZER)(formula)


for _flops, _names in _FOREACH.items():
    _foreach(_names, _flops)
_foreach("clone")
_foreach("zero", reads=NONE)


@cost("aten._foreach_copy", kind=Kind.OPTIMIZER)
def _foreach_copy(op: Op) -> Cost:
    return Cost(0, read(op.inputs[len(op.inputs) // 2 :]), written(op.outputs))


streaming(Kind.OPTIMIZER, "_amp_update_scale", flops=1)


@cost("aten._amp_foreach_non_finite_check_and_unscale", kind=Kind.OPTIMIZER)
def _unscale(op: Op) -> Cost:
    """Every gradient is checked and multiplied by 1 / scale."""
    return Cost(2 * sum(t.numel for t in op.inputs), read(op.inputs), written(op.outputs))


def _parameters(op: Op, lists: int) -> int:
    """The number of parameters, when the inputs are `lists` lists of tensors and a few more."""
    shapes = [t.shape for t in op.inputs]
    most = len(shapes) // lists
    counts = range(most, max(0, most - 2), -1)
    return next((n for n in counts if shapes[:n] == shapes[n : 2 * n]), most)


def _fused(op: Op, states: int, steps: bool, flops: int) -> Cost:
    """Parameters and states are read and written; gradients are read, and written if unscaled."""
    lists = 2 + states + steps
    count = _parameters(op, lists)
    updated = [*op.inputs[:count], *op.inputs[2 * count : (2 + states) * count]]
    after = len(op.inputs) - lists * count - ("tensor_lr" in op.name)
    unscaled = op.inputs[count : 2 * count] if after == 2 else ()
    elements = sum(t.numel for t in op.inputs[:count])
    return Cost(flops * elements, read(op.inputs), written((*updated, *unscaled)))


@cost(*aten("_fused_adam _fused_adamw"), kind=Kind.OPTIMIZER)
def _fused_adam(op: Op) -> Cost:
    return _fused(op, states=3 if op.attr("amsgrad", False) else 2, steps=True, flops=16)


@cost("aten._fused_sgd", kind=Kind.OPTIMIZER)
def _fused_sgd(op: Op) -> Cost:
    return _fused(op, states=1 if op.attr("momentum", 0.0) else 0, steps=False, flops=6)


@cost("aten._fused_adagrad", kind=Kind.OPTIMIZER)
def _fused_adagrad(op: Op) -> Cost:
    return _fused(op, states=1, steps=True, flops=8)


# The cost of collectives for one GPU: the traffic of its memory.


@cost("nccl.*", "c10d.*", "_c10d_functional.*", "c10d_functional.*", kind=Kind.COLLECTIVE)
def _collective(op: Op) -> Cost:
    """The traffic between GPUs depends on their number and is not counted here."""
    return Cost(0, read(op.inputs), written(op.outputs))
