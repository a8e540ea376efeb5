"""Timetables: where each call is on the host and on the GPU."""

from __future__ import annotations

import numpy as np
import pytest
from made import mm

from wavecast.steps.player import of_measured, play_streams
from wavecast.traces.step import Call, Kernel, Measurement, Phase, Trace


def test_streams_have_their_own_rows() -> None:
    calls = [Call(mm(), Phase.BACKWARD), Call(mm(), Phase.BACKWARD, stream=2)]
    issue_s, gpu_s = np.array([1.0, 1.0]), np.array([3.0, 3.0])
    table = play_streams(calls, issue_s, gpu_s, ())
    assert table.streams == (0, 2)
    assert table.gpu_s.tolist() == pytest.approx([3.0, 3.0])
    assert table.issued_s[0] >= 0


def test_measured_kernels_are_where_they_ran() -> None:
    kernels = (Kernel("sgemm", 2e-3, start_s=1e-3), Kernel("add", 1e-3, start_s=5e-3))
    calls = tuple(Call(mm(), Phase.FORWARD, kernels=(kernel,), host_s=1e-4) for kernel in kernels)
    table = of_measured(Trace(calls, measurement=Measurement("Tesla T4", 7e-3)))
    assert table.begin_s.tolist() == [1e-3, 5e-3]
    assert table.gpu_s.tolist() == [2e-3, 1e-3]
    assert table.seconds == 7e-3
    without = tuple(Call(mm(), Phase.FORWARD, kernels=(Kernel("sgemm", 2e-3),)) for _ in range(2))
    assert of_measured(Trace(without)).begin_s.tolist() == [0.0, 2e-3]
