"""Timetables: where each call is on the host and on the GPU."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import call, mm, step
from numpy.typing import NDArray

import wavecast
from wavecast.steps.streams import play_streams
from wavecast.steps.timeline import play
from wavecast.steps.timetable import Timetable, of_measured, of_streams, timetable
from wavecast.traces.step import Call, Kernel, Measurement, Phase, Trace

TIMES = st.lists(
    st.tuples(st.floats(0, 2), st.floats(0, 2), st.booleans()), min_size=1, max_size=12
)


def _made(rows: list[tuple[float, float, bool]], sync_s: float = 0.0) -> Timetable:
    calls = tuple(call(mm(), syncs=syncs) for _, _, syncs in rows)
    syncs = [index for index, (_, _, waits) in enumerate(rows) if waits]
    return timetable(calls, _column(rows, 0), _column(rows, 1), syncs, sync_s)


def _column(rows: list[tuple[float, float, bool]], index: int) -> NDArray[np.float64]:
    return np.array([row[index] for row in rows], dtype=float)


@given(TIMES, st.floats(0, 1))
def test_a_timetable_takes_as_long_as_the_step(
    rows: list[tuple[float, float, bool]], sync_s: float
) -> None:
    syncs = [index for index, row in enumerate(rows) if row[2]]
    whole = play(_column(rows, 0), _column(rows, 1), syncs, sync_s)
    assert _made(rows, sync_s).seconds == pytest.approx(whole.seconds, abs=1e-9)


@given(TIMES)
def test_neither_host_nor_gpu_does_two_things_at_once(
    rows: list[tuple[float, float, bool]],
) -> None:
    table = _made(rows)
    for begin_s, length_s in ((table.issued_s, table.issue_s), (table.begin_s, table.gpu_s)):
        assert (begin_s[1:] >= (begin_s + length_s)[:-1] - 1e-9).all()
    assert table.end_s >= table.seconds


@given(TIMES)
def test_no_kernel_begins_before_it_was_issued(rows: list[tuple[float, float, bool]]) -> None:
    table = _made(rows)
    if not table.host_ahead:
        assert (table.begin_s >= table.issued_s + table.issue_s - 1e-9).all()


def test_a_wait_lasts_until_the_gpu_has_finished() -> None:
    table = _made([(1.0, 5.0, True), (1.0, 1.0, False)])
    # Issued at 0, ends at 1; the GPU runs from 1 to 6 while the host waits.
    [wait] = table.waits
    assert wait == pytest.approx((1.0, 6.0))
    assert table.begin_s.tolist() == pytest.approx([1.0, 7.0])
    assert table.seconds == pytest.approx(7.0)


def test_a_host_that_nothing_holds_back_is_ahead() -> None:
    table = _made([(1.0, 2.0, False), (1.0, 2.0, False)])
    assert table.host_ahead
    assert table.begin_s.tolist() == [0.0, 2.0]
    assert table.waits == ()


def test_a_prediction_has_one() -> None:
    prediction = wavecast.predict(step(), "t4")
    table = prediction.timetable
    assert table.seconds == pytest.approx(prediction.seconds)
    assert table.gpu_s.sum() == pytest.approx(prediction.gpu_s)
    assert table.streams == (0,)
    assert len(repr(table)) < 100


def test_streams_have_their_own_rows() -> None:
    calls = [Call(mm(), Phase.BACKWARD), Call(mm(), Phase.BACKWARD, stream=2)]
    issue_s, gpu_s = np.array([1.0, 1.0]), np.array([3.0, 3.0])
    table = of_streams(calls, issue_s, play_streams(calls, issue_s, gpu_s))
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
