"""Calls of a backward pass that compute activations again."""

from __future__ import annotations

from wavecast.traces.recomputed import recomputed
from wavecast.traces.step import Call, Op, Phase, TensorSpec

T = TensorSpec((4, 4), "float32")


def _call(name: str, phase: Phase, module: str) -> Call:
    return Call(Op(name, (T,), (T,)), phase, module)


def test_a_module_counts_if_all_its_forward_calls_come_back_in_order() -> None:
    calls = [
        _call("aten.mm", Phase.FORWARD, "a"),
        _call("aten.gelu", Phase.FORWARD, "a"),
        _call("aten.mm", Phase.FORWARD, "b"),
        _call("aten.relu", Phase.FORWARD, "b"),
        _call("aten.mm", Phase.BACKWARD, "b"),  # equal by chance
        _call("aten.mm", Phase.BACKWARD, "a"),
        _call("aten.gelu", Phase.BACKWARD, "a"),
        _call("aten.mm", Phase.BACKWARD, "a"),
    ]
    assert recomputed(calls) == {5, 6}


def test_an_equal_op_of_a_gradient_is_not_computed_again() -> None:
    product = _call("aten.mul.Tensor", Phase.FORWARD, "a")
    gradient = _call("aten.mul.Tensor", Phase.BACKWARD, "a")
    assert recomputed([product, _call("aten.mm", Phase.BACKWARD, "b"), gradient]) == set()
    gelu = _call("aten.gelu", Phase.FORWARD, "a")
    again = _call("aten.gelu", Phase.BACKWARD, "a")
    after = _call("aten.gelu_backward", Phase.BACKWARD, "a")
    assert recomputed([gelu, _call("aten.mm", Phase.BACKWARD, "b"), again, after]) == {2}
