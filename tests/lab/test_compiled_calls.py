"""Which kernels of a measured compiled step also stand in a trace."""

from __future__ import annotations

from typing import Any

import pytest

from lab.measured.compiled import key_of, library_key, ran, traced
from lab.score.compiled_calls import agreement, kind_of
from wavecast.traces.step import Call, Op, Phase, TensorSpec, Trace

FIGURES = {"points": 64, "reduction": 1, "read_bytes": 256, "write_bytes": 256}
X, W = TensorSpec((8, 16), "float32"), TensorSpec((16, 32), "float32")
OUT = TensorSpec((8, 32), "float32")
FUSED = Op("inductor.pointwise", (X,), (X,), tuple(FIGURES.items()))
PRODUCT = Op("aten.mm", (X, W), (OUT,))


def kernel(name: str, us: float, at_us: float, op: Any = None) -> dict[str, Any]:
    return {"name": name, "us": us, "at_us": at_us, "op": op}


def step() -> dict[str, Any]:
    """A fused kernel of 6 us, two products of 1 us each, a list of tensors, an unknown kernel."""
    mm = ["aten::mm", [[8, 16], [16, 32], [8, 32]], ["float", "float", "float"]]
    kernels = [
        kernel("triton_poi_fused_0", 6.0, 0.0),
        kernel("gemm", 0.9, 10.0, mm),
        kernel("reduce", 0.1, 11.0, mm),
        kernel("gemm", 0.9, 12.0, mm),
        kernel("reduce", 0.1, 13.0, mm),
        kernel("multi_tensor", 1.0, 20.0, ["aten::_foreach_add_", [[], []], ["", ""]]),
        kernel("multi_tensor", 1.0, 21.0, ["aten::_foreach_add_", [[], []], ["", ""]]),
        kernel("launched by a graph", 5.0, 30.0),
    ]
    encoded = ["inductor.pointwise", 1, [[[8, 16], "float32", None, "cuda"]] * 2, FIGURES]
    return {
        "step": "made up",
        "compiled": {"kernels": kernels},
        "ops": {"triton_poi_fused_0": encoded},
    }


def trace(*ops: Op) -> Trace:
    return Trace(tuple(Call(op, Phase.FORWARD) for op in ops))


LISTS = Op("aten._foreach_add_.List", (X, X), (X,))


def test_products_that_follow_each_other_are_counted_one_by_one() -> None:
    calls, unknown_s = ran(step())
    assert calls[key_of(PRODUCT)].count == 2
    assert calls["aten._foreach_add_",].count == 1
    assert unknown_s == pytest.approx(5e-6)


def test_the_share_is_of_the_time_whose_kernels_are_in_the_trace() -> None:
    whole = agreement(step(), traced(trace(FUSED, PRODUCT, PRODUCT, LISTS)))
    assert whole.share == pytest.approx(1.0)
    fewer = agreement(step(), traced(trace(FUSED, PRODUCT, LISTS)))
    assert fewer.share == pytest.approx(0.9)
    other = Op(FUSED.name, FUSED.inputs, FUSED.outputs, (*FUSED.attrs[:-1], ("write_bytes", 128)))
    assert agreement(step(), traced(trace(other, PRODUCT, PRODUCT, LISTS))).share == pytest.approx(
        0.4
    )


def test_an_outer_op_has_the_key_of_the_op_within_it() -> None:
    rows, weight, bias = (4, 8, 16), (32, 16), (32,)
    assert library_key("aten.linear", [rows, weight, ()]) == ("aten.mm", 1, 32, 32, 16)
    assert library_key("aten.linear", [rows, weight, bias])[0] == "aten.addmm"
    logits, labels = (32, 1000), (32,)
    outer = library_key("aten.cross_entropy_loss", [logits, labels])
    assert outer == library_key("aten._log_softmax", [logits])


def test_convolutions_are_told_apart_by_layout() -> None:
    image = TensorSpec((8, 64, 14, 14), "bfloat16", (12544, 1, 896, 64))
    weight = TensorSpec((64, 64, 3, 3), "bfloat16", (576, 1, 192, 64))
    last = Op("aten.convolution", (image, weight), (image,))
    assert kind_of(last).endswith("channels last")
    plain = TensorSpec(image.shape, image.dtype)
    first = Op("aten.convolution", (plain, TensorSpec(weight.shape, weight.dtype)), (plain,))
    assert kind_of(first).endswith("NCHW")
