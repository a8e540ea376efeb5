"""Ops against the limits of a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from made import call, copy_to_gpu, mm, relu, unknown

from wavecast.analysis.profile import roofline_points
from wavecast.hardware.devices import device
from wavecast.steps.player import Timetable, Work
from wavecast.traces.step import Call


def _works(calls: list[Call], seconds: list[float]) -> tuple[Work, ...]:
    times, nothing = np.array(seconds), np.zeros(len(calls))
    return Timetable(tuple(calls), sum(seconds), nothing, nothing, nothing, times).works


def test_calls_of_one_op_are_one_point() -> None:
    calls = [call(mm(64, 64, 64)), call(mm(128, 64, 64)), call(relu(8, 8))]
    points = roofline_points(_works(calls, [2e-6, 3e-6, 1e-6]), device("t4"))
    first = points[0]
    assert (first.name, first.calls) == ("aten.mm", 2)
    assert first.seconds == pytest.approx(5e-6)
    assert first.flops == 2 * 64**3 + 2 * 128 * 64 * 64
    assert first.intensity == pytest.approx(first.flops / first.nbytes)
    assert first.flops_per_s == pytest.approx(first.flops / 5e-6)
    assert first.bytes_per_s == pytest.approx(first.nbytes / 5e-6)
    assert [point.name for point in points] == ["aten.mm", "aten.relu"]


def test_an_op_at_its_bound_attains_the_whole_roof() -> None:
    gpu = device("t4")
    op = mm(4096, 4096, 4096)
    rate = gpu.rate("fp32")
    assert rate is not None
    seconds = 2 * 4096**3 / rate
    [point] = roofline_points(_works([call(op)], [seconds]), gpu)
    assert point.attained(gpu) == pytest.approx(1.0)


def test_what_has_no_formula_or_crosses_the_bus_is_left_out() -> None:
    calls = [call(unknown()), call(copy_to_gpu(8, 8)), call(mm())]
    points = roofline_points(_works(calls, [1.0, 1.0, 0.0]), device("t4"))
    assert points == ()
