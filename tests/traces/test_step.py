"""The trace and its parts."""

from __future__ import annotations

import dataclasses

from wavecast.traces.step import Call, Op, Phase, TensorSpec, Trace

SPEC = TensorSpec((2, 3, 4, 5), "float32")
ADD = Op("aten.add.Tensor", (SPEC, SPEC), (SPEC,), (("alpha", 2),))


def test_a_broadcast_dimension_is_stored_once() -> None:
    assert TensorSpec((8, 16), "float32", (0, 1)).touched_bytes == 64
    assert TensorSpec((8, 16), "float32", (1, 8)).touched_bytes == 512
    assert TensorSpec((8, 0), "float32", (0, 1)).touched_bytes == 0
    assert SPEC.touched_bytes == SPEC.nbytes


def test_channels_last_is_told_by_the_strides() -> None:
    assert TensorSpec((2, 3, 4, 5), "float32", (60, 1, 15, 3)).channels_last
    assert not SPEC.channels_last
    assert not TensorSpec((2, 1, 4, 5), "float32", (20, 1, 5, 1)).channels_last
    assert not TensorSpec((2, 3, 4), "float32", (12, 1, 3)).channels_last


def test_an_op_tells_its_attributes_and_base() -> None:
    assert ADD.base == "aten.add"
    assert Op("aten.mm", (), ()).base == "aten.mm"
    assert ADD.attr("alpha") == 2
    assert ADD.attr("beta") is None
    assert ADD.attr("beta", 1) == 1


def test_equal_ops_are_counted_together() -> None:
    other = dataclasses.replace(ADD, attrs=())
    same = dataclasses.replace(ADD)
    trace = Trace(tuple(Call(op, Phase.FORWARD) for op in (ADD, other, same)))
    assert len(trace) == 3
    assert [call.op for call in trace] == [ADD, other, same]
    assert trace.counts == {ADD: 2, other: 1}
