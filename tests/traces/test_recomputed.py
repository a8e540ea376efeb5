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


def test_gradients_of_views_that_cancel_are_not_computed_again() -> None:
    rows, columns = TensorSpec((4, 6), "float32"), TensorSpec((6, 4), "float32")
    flat = TensorSpec((24,), "float32")
    there = [Op("aten.t", (rows,), (columns,)), Op("aten.view", (columns,), (flat,))]
    back = [Op("aten.view", (flat,), (columns,)), Op("aten.t", (columns,), (rows,))]
    inner = Op("aten.convolution", (flat,), (flat,))
    gradient = Op("aten.convolution_backward", (flat,), (flat,))

    def calls(phase: Phase, middle: Op) -> list[Call]:
        within = Call(middle, phase, "a.inner")
        return [
            *(Call(op, phase, "a") for op in there),
            within,
            *(Call(o, phase, "a") for o in back),
        ]

    once = calls(Phase.FORWARD, inner)
    # The backward pass reshapes the gradient as the forward pass did the activation.
    assert recomputed([*once, *calls(Phase.BACKWARD, gradient)]) == set()
    twice = [*once, *calls(Phase.BACKWARD, inner), *calls(Phase.BACKWARD, gradient)]
    assert recomputed(twice) == {5, 6, 7, 8, 9}
