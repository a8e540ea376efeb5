"""A measured step, predicted for the GPU of the measurement, takes the measured time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from made import mm, relu, tensor

from wavecast.hardware.devices import Device, device
from wavecast.hardware.hosts import RecordedHost
from wavecast.predictors.base import Estimate, Scaler
from wavecast.steps.player import play_one_stream
from wavecast.steps.prediction import Prediction
from wavecast.steps.request import predict
from wavecast.steps.timed_trace import Pace, pace_of
from wavecast.traces.file import busy_s
from wavecast.traces.step import Call, Kernel, Measurement, Op, Phase, Trace

ALL_REDUCE = Op("_c10d_functional.all_reduce", (tensor(8),), (tensor(8),))


@dataclass(frozen=True)
class Same(Scaler):
    """A scaler for which all GPUs are equal, or `times` as slow."""

    times: float = 1.0

    def scale_call(self, call: Call, origin: Device, target: Device) -> Estimate | None:
        seconds = sum(kernel.seconds for kernel in call.kernels) * self.times
        return Estimate(seconds, seconds, seconds, "same") if seconds else None


def ran(host_s: float, *kernels: tuple[float, float], op: Op | None = None, **more: Any) -> Call:
    """A call with kernels, each given by the second at which it began and the seconds it ran."""
    run = tuple(Kernel("k", took, start_s=begin) for begin, took in kernels)
    return Call(op or mm(), Phase.FORWARD, kernels=run, host_s=host_s, **more)


def paced(calls: Sequence[Call], measured_s: float | None, sync_s: float = 0.0) -> Pace:
    return pace_of(calls, RecordedHost().issue_times(calls), measured_s, sync_s)


def replayed(calls: Sequence[Call], pace: Pace, sync_s: float = 0.0) -> float:
    """The time of the step with its pace."""
    issue_s = RecordedHost(factor=pace.host_factor).issue_times(calls)
    total = np.array([sum(kernel.seconds for kernel in call.kernels) for call in calls])
    syncs = [i for i, call in enumerate(calls) if call.syncs and pace.waits]
    gpu_s = total * pace.exposure + pace.gap_s
    return play_one_stream(issue_s, gpu_s, syncs, sync_s * pace.host_factor).seconds


def test_of_overlapping_kernels_the_part_counts_that_none_covers() -> None:
    calls = [ran(0, (0, 4)), ran(0, (2, 4)), ran(0), ran(0, (1, 2))]
    assert paced(calls, None).exposure.tolist() == [1, 0.5, 1, 0]


def test_communication_is_hidden_behind_computation() -> None:
    calls = [ran(0, (0, 8), op=ALL_REDUCE), ran(0, (2, 4))]
    assert paced(calls, None).exposure.tolist() == [0.5, 1]


def test_without_a_measured_whole_the_parts_are_taken_as_they_are() -> None:
    pace = paced([ran(1, (0, 1)), ran(1, (5, 1))], None)
    assert (pace.gap_s.tolist(), pace.host_factor) == ([0, 0], 1)


def test_a_gpu_that_has_more_to_do_than_the_host_waits_between_kernels() -> None:
    calls = [ran(0.1, (0, 4), (4, 1)), ran(0.1, (5, 4)), ran(0.1)]
    pace = paced(calls, 12)
    assert pace.host_factor == 1
    assert pace.gap_s == pytest.approx([2, 1, 0])


def test_a_host_that_has_more_to_do_than_the_gpu_had_work_that_nobody_saw() -> None:
    pace = paced([ran(4, (0, 1)), ran(4, (5, 1))], 12)
    assert pace.host_factor == pytest.approx(1.5)
    assert pace.gap_s.tolist() == [0, 0]


def test_a_step_quicker_than_its_parts_had_a_quicker_host_than_the_recording() -> None:
    pace = paced([ran(4, (0, 1)), ran(4, (5, 1))], 6)
    assert pace.host_factor == pytest.approx(0.75)
    assert pace.gap_s.tolist() == [0, 0]


def test_kernels_that_take_longer_than_the_step_overlap_its_neighbours() -> None:
    calls = [ran(4, (0, 3)), ran(4, (5, 3))]
    pace = paced(calls, 5)
    assert pace.exposure.tolist() == pytest.approx([5 / 6, 5 / 6])
    assert replayed(calls, pace) == pytest.approx(5)


def test_waits_do_not_hold_up_a_gpu_that_has_work_of_other_steps() -> None:
    """As in a profile where the GPU is busy for the whole step, although the host waits."""
    calls = [ran(3, (0, 5), syncs=True), ran(3, (5, 5), syncs=True)]
    pace = paced(calls, 10)
    assert not pace.waits
    assert pace.host_factor == 1
    assert replayed(calls, pace) == pytest.approx(10)


hosts = st.floats(0, 1e-3)
kernels = st.tuples(st.floats(0, 1e-2), st.floats(1e-7, 1e-3))
programs = st.lists(
    st.tuples(
        hosts, st.lists(kernels, max_size=3), st.booleans(), st.sampled_from([mm(), relu(8)])
    ),
    max_size=10,
)


def measured(program: list[Any], first: tuple[float, float], slower: float) -> Trace:
    """A measured step that took at least as long as its kernels; the first call has one."""
    calls = [ran(1e-6, first)]
    calls += [ran(host, *runs, op=op, syncs=syncs) for host, runs, syncs, op in program]
    whole_s = busy_s([kernel for call in calls for kernel in call.kernels]) * slower
    host_s = sum(call.host_s or 0.0 for call in calls)
    return Trace(tuple(calls), measurement=Measurement("Tesla T4", whole_s, host_s=host_s))


@given(programs, kernels, st.floats(1, 20), hosts)
@example([(1e-3, [], True, mm())], (0.0, 1e-3), 1.0, 1e-3)
def test_the_pace_makes_the_measured_time_of_the_parts(
    program: list[Any], first: tuple[float, float], slower: float, sync_s: float
) -> None:
    trace = measured(program, first, slower)
    assert trace.measurement is not None
    expected = trace.measurement.seconds
    assert replayed(trace.calls, paced(trace.calls, expected, sync_s), sync_s) == pytest.approx(
        expected
    )


def on_its_own_gpu(trace: Trace, **options: Any) -> Prediction:
    return predict(trace, "t4", predictor=Same(), **options)


@given(programs, kernels, st.floats(1, 20))
def test_a_prediction_for_the_gpu_of_the_measurement_is_the_measurement(
    program: list[Any], first: tuple[float, float], slower: float
) -> None:
    trace = measured(program, first, slower)
    assert trace.measurement is not None
    assert on_its_own_gpu(trace).seconds == pytest.approx(trace.measurement.seconds)


@given(programs, kernels, st.floats(1, 20))
def test_so_it_is_where_the_host_was_not_seen(
    program: list[Any], first: tuple[float, float], slower: float
) -> None:
    seen = measured(program, first, slower)
    assert seen.measurement is not None
    trace = replace(
        seen,
        calls=tuple(replace(call, host_s=None) for call in seen),
        measurement=replace(seen.measurement, host_s=None),
    )
    prediction = on_its_own_gpu(trace)
    assert prediction.seconds == pytest.approx(seen.measurement.seconds)
    assert prediction.host.name.startswith("reference (a cloud VM)")


def test_a_faster_gpu_shortens_kernels_but_not_the_gaps_between_them() -> None:
    trace = Trace(
        (ran(0.1, (0, 4)), ran(0.1, (6, 4))), measurement=Measurement("T4", 12, host_s=0.2)
    )
    prediction = predict(trace, device("a100-sxm-80gb"), predictor=Same(0.25))
    assert prediction.gpu_s == pytest.approx(2)
    assert prediction.seconds == pytest.approx(2 + 4)


def test_a_faster_gpu_does_not_make_the_host_faster() -> None:
    trace = Trace((ran(4, (0, 1)), ran(4, (6, 1))), measurement=Measurement("T4", 12, host_s=8))
    prediction = predict(trace, device("a100-sxm-80gb"), predictor=Same(0.25))
    assert prediction.seconds == pytest.approx(12)
    assert prediction.bound_by == "host"
