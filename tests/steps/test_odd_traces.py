"""Hand-made traces: what no formula can read is unpredicted by name, and no result is absurd."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import call, mm, step, tensor
from made import trace as made_trace

pytest.importorskip("torch")

from hostile.odd_traces import check_all, odd_trace, real_ops, real_traces

import wavecast
from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.footprint.workspaces import Constants, workspaces_of
from wavecast.ops import registry
from wavecast.predictors.attention_kernels import attention_in
from wavecast.predictors.learned.batch import readable_parts
from wavecast.predictors.mlp import layer_of
from wavecast.predictors.retargeting import retarget
from wavecast.results import checked, refuse_impossible
from wavecast.traces.step import Kernel, Measurement, Op, TensorSpec, Trace

REFUSALS = "nothing refused", "CUDA graph", "no kernels", "all kernels", "cannot both be"


def _refusal(ask: Callable[[], object]) -> str:
    try:
        ask()
    except InvalidInput as error:
        return str(error)
    return "nothing refused"


@given(st.integers(0, 1 << 32), st.booleans())
@settings(max_examples=2)
def test_every_question_about_an_odd_trace_has_an_answer(seed: int, measured: bool) -> None:
    chance = random.Random(seed)
    for name, ask in check_all(odd_trace(chance, 5, measured=measured)):
        refusal = _refusal(ask)
        assert any(words in refusal for words in REFUSALS), name


def test_every_op_of_the_suite_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ERRORS", ())  # so that a mistake in a formula is seen
    gpu, constants = wavecast.device("h100-sxm-80gb"), Constants.shipped()
    for op in real_ops():
        assert ops.is_readable(op), op
        if ops.launches(op):
            assert readable_parts(op) is not None, op
        ops.kernels(op), ops.unit(op), layer_of(op), attention_in(op)
        workspaces_of(op, gpu, constants)
    for real in real_traces():
        retarget(real, wavecast.device("v100-sxm-16gb"))


ODD = {
    "one input": Op("aten.mm", (tensor(4, 4),), (tensor(4, 4),)),
    "another rank": Op("aten.mm", (tensor(), tensor()), (tensor(),)),
    "no output": Op("aten.convolution", (tensor(2, 3, 8, 8), tensor(4, 3, 3, 3)), ()),
    "an unknown type": Op("aten.relu", (tensor(8, dtype="int3"),), (tensor(8, dtype="int3"),)),
    "too large": Op("aten.relu", (tensor(1 << 62, 4),), (tensor(1 << 62, 4),)),
    "strides of another rank": Op("aten.relu", (TensorSpec((4, 4), "float32", (1,)),), ()),
    "a wrong attribute": Op(
        "aten._cudnn_rnn", (tensor(3, 2, 4),), (tensor(3, 2, 4),), (("num_layers", 1 << 62),)
    ),
    "attention without values": Op(
        "aten._scaled_dot_product_flash_attention", (tensor(1, 2, 8, 8),), (tensor(1, 2, 8, 8),)
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_an_op_that_cannot_be_read_is_unpredicted_by_name(name: str) -> None:
    odd = ODD[name]
    prediction = wavecast.predict(made_trace(call(mm()), call(odd)), "h100-sxm-80gb")
    assert prediction.unpredicted == {odd.name: 1}
    assert ops.totals(prediction.trace).unknown == {odd.name: 1}
    assert 0 < prediction.seconds < math.inf


# Measurements and results that cannot be


def measured(seconds: float | None, *kernels: Kernel) -> Trace:
    calls = [replace(call(mm()), kernels=kernels)]
    return replace(made_trace(*calls), measurement=Measurement("Tesla V100-SXM2-16GB", seconds))


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (measured(1e-3), "no kernels"),
        (measured(None, Kernel("gemm", 0.0)), "all kernels of the trace together take 0 s"),
        (measured(None, Kernel("gemm", -1.0)), "a kernel of aten.mm runs for -1 s"),
        (measured(None, Kernel("gemm", math.nan)), "runs for nan s"),
        (measured(None, Kernel("gemm", 1e-3, start_s=math.inf)), "starts at inf s"),
        (measured(math.inf, Kernel("gemm", 1e-3)), "says seconds = inf"),
        (measured(1.7e9, Kernel("gemm", 1e-3)), "cannot both be"),
        (measured(1e-9, Kernel("gemm", 1e-3)), "cannot both be"),
    ],
)
def test_a_measurement_that_cannot_be_is_refused(trace: Trace, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        wavecast.predict(trace, "h100-sxm-80gb")


def test_a_step_of_which_nothing_is_known_has_no_time() -> None:
    odd = made_trace(call(ODD["one input"]))
    with pytest.raises(InvalidInput, match=r"unpredicted: aten.mm.* comes out as 0 s"):
        _ = wavecast.predict(odd, "h100-sxm-80gb", host_factor=0).seconds


@pytest.mark.parametrize("times", [(0.0,), (math.nan,), (math.inf,), (1.0, 2.0, 3.0), (1.0, 0, 0)])
def test_a_time_that_cannot_be_is_refused(times: tuple[float, ...]) -> None:
    names = ("seconds", "low_s", "high_s")
    with pytest.raises(InvalidInput, match="comes out as"):
        refuse_impossible("the step", dict(zip(names, times, strict=False)), whole=True)
    refuse_impossible("the step", {"seconds": 1.0, "low_s": 0.0, "high_s": 1.0}, whole=True)
    refuse_impossible("a kernel", {"seconds": 0.0})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gpu_s", -1.0),
        ("idle_s", {"host": math.nan}),
        ("peak_bytes", -1),
        ("unpredicted_share", 1.1),
        ("shares", [0.5, 1.5]),
        ("usd_per_hour", math.inf),
        ("saved_bytes", math.inf),
        ("batch", math.nan),
    ],
)
def test_a_field_that_cannot_be_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=f"the step: {field} comes out as"):
        refuse_impossible("the step", {"name": "x", field: value, "unknown": None})


def test_memory_is_at_least_its_parts_and_totals_are_sums() -> None:
    with pytest.raises(InvalidInput, match="more than reserved_bytes"):
        refuse_impossible("memory", {"peak_bytes": 2, "reserved_bytes": 1})
    prediction = wavecast.predict(step(), "l4")
    assert checked(prediction, "the step", ("seconds",), {"gpu_s": [prediction.gpu_s]})
    with pytest.raises(InvalidInput, match="its parts are 0 together"):
        checked(prediction, "the step", (), {"gpu_s": []})


def test_memory_that_cannot_be_is_refused() -> None:
    whole = wavecast.memory(step())
    with pytest.raises(InvalidInput, match="which cannot be"):
        replace(whole, peak_bytes=whole.reserved_bytes + 1)
