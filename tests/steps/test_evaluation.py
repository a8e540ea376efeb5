"""Predictions between GPUs beside measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import call, mm, relu, trace

from wavecast import device
from wavecast.analysis.evaluation import evaluate, measured_steps
from wavecast.errors import InvalidInput
from wavecast.predictors.base import Estimate, Scaler
from wavecast.traces.step import Call, Kernel, Measurement, Trace


def measured(gpu: str, mm_s: float, relu_s: float, size: int = 4096, relus: int = 1) -> Trace:
    """A step of a matmul and some ReLUs, bound by its GPU."""

    def timed(untimed: Call, seconds: float) -> Call:
        kernel = Kernel("k", seconds, (10_000, 1, 1), (256, 1, 1), 32, 0)
        return replace(untimed, kernels=(kernel,), host_s=1e-6)

    calls = [timed(call(mm(size, size, size)), mm_s)]
    calls += [timed(call(relu(size, size)), relu_s / relus) for _ in range(relus)]
    whole = Measurement(gpu, seconds=mm_s + relu_s, gpu_s=mm_s + relu_s, host_s=1e-6)
    return replace(trace(*calls), measurement=whole)


class Thrice(Scaler):
    """Every call takes three times as long."""

    def scale_call(self, call: Call, origin: object, target: object) -> Estimate:
        seconds = 3 * sum(kernel.seconds for kernel in call.kernels)
        return Estimate(seconds, seconds, seconds, "thrice")


V100, T4 = "Tesla V100-SXM2-16GB", "Tesla T4"


def test_every_pair_is_compared_with_what_was_measured() -> None:
    steps = [("", "v100.json.gz", measured(V100, 0.9, 0.1)), ("", "t4", measured(T4, 2.2, 0.3))]
    evaluated = evaluate(measured_steps(steps), Thrice())
    there, back = evaluated.pairs
    assert (there.model, there.origin, there.target) == ("v100", "v100-sxm-16gb", "t4")
    assert there.error == pytest.approx(3 / 2.5 - 1, rel=1e-3)
    assert back.error == pytest.approx(7.5 / 1 - 1, rel=1e-3)
    assert evaluated.overall.error == pytest.approx((0.2 + 6.5) / 2, rel=1e-3)
    assert evaluated.overall.worst == back.error
    v100, t4 = device("v100-sxm-16gb"), device("t4")
    assert v100.fp32_flops
    assert t4.fp32_flops
    assert there.flops_s == pytest.approx(v100.fp32_flops / t4.fp32_flops)
    assert there.bandwidth_s == pytest.approx(v100.memory_bytes_per_s / t4.memory_bytes_per_s)
    assert [error.name for error in evaluated.by_origin] == ["v100-sxm-16gb", "t4"]


def test_errors_of_ops_are_weighed_by_their_share() -> None:
    steps = [("", "a", measured(V100, 0.9, 0.1)), ("", "b", measured(T4, 2.7, 0.1))]
    there = evaluate(measured_steps(steps)[:2], Thrice()).by_op
    matmul, activation = there
    assert matmul.op == "aten.mm"
    assert matmul.share == pytest.approx((0.9 + 2.7 / 2.8) / 2)
    assert matmul.error == pytest.approx((0 + 8) / 2)
    assert activation.error == pytest.approx((2 + 2) / 2)


def test_ops_that_run_more_often_elsewhere_are_not_compared() -> None:
    steps = [("", "a", measured(V100, 1, 0.1)), ("", "b", measured(T4, 1, 0.1, relus=2))]
    errors = {error.op: error.error for error in evaluate(measured_steps(steps)).by_op}
    assert errors["aten.relu"] is None
    assert errors["aten.mm"] is not None


def test_other_shapes_are_another_model_unless_they_are_named_alike() -> None:
    small, large = measured(V100, 1, 1, size=64), measured(T4, 1, 1, size=128)
    apart = evaluate(measured_steps([("", "a", small), ("", "b", large)]))
    assert not apart.pairs
    assert "one GPU only" in apart.notes[0]
    assert len(evaluate(measured_steps([("net", "a", small), ("net", "b", large)])).pairs) == 2


def test_a_step_of_unknown_length_is_refused() -> None:
    known = measured(V100, 1, 1)
    assert known.measurement is not None
    unknown = replace(known, measurement=replace(known.measurement, seconds=None))
    with pytest.raises(InvalidInput, match="how long the step took"):
        measured_steps([("", "a.json.gz", unknown)])
