"""The GPU idles between kernels of a chip whose ops were measured kernel by kernel."""

from __future__ import annotations

import pytest
from made import call, mm
from made import trace as made_trace

from wavecast import predict
from wavecast.hardware.hosts import GRAPH_GAP_S
from wavecast.steps.timed_trace import GAP_S

STEP = made_trace(*[call(mm(2048, 2048, 2048)) for _ in range(20)])


def test_a_step_on_a_measured_chip_takes_longer_than_its_kernels() -> None:
    step = predict(STEP, "h200-sxm", host_factor=1e-9)
    assert step.seconds - step.gpu_s == pytest.approx(20 * GAP_S)
    graphed = predict(STEP, "h200-sxm", graphed=True)
    assert graphed.seconds - graphed.gpu_s == pytest.approx(20 * GRAPH_GAP_S)


def test_gaps_are_part_of_op_times_that_came_from_loops() -> None:
    step = predict(STEP, "v100-sxm-16gb", host_factor=1e-9)
    assert step.seconds == pytest.approx(step.gpu_s)
