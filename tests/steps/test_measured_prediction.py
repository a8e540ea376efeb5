"""Predictions of measured steps, whose calls are scaled from the GPU on which they ran."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from made import call as traced
from made import mm, relu, tensor, trace, unknown, view

from wavecast import Prediction, predict
from wavecast.errors import InvalidInput, UnknownName
from wavecast.hardware.devices import Device, device
from wavecast.hardware.hosts import GRAPH_GAP_S, REFERENCE_HOST, RecordedHost
from wavecast.predictors.attainable import Roofline
from wavecast.predictors.base import Estimate, Scaler
from wavecast.predictors.habitat import Habitat
from wavecast.steps.request import default_scaler
from wavecast.traces.step import Call, Kernel, Measurement, Op, Phase, Trace

T4, L4, A100 = device("t4"), device("l4"), device("a100-sxm-80gb")
ALL_REDUCE = Op("_c10d_functional.all_reduce", (tensor(8),), (tensor(8),))


@dataclass
class Times(Scaler):
    """A scaler that multiplies by a factor, refuses ops of one name, and records its questions."""

    factor: float = 2.0
    spread: float = 1.0
    refuses: str = ""
    questions: list[tuple[Call, str, str]] = field(default_factory=list)

    def scale_call(self, call: Call, origin: Device, target: Device) -> Estimate | None:
        self.questions.append((call, origin.id, target.id))
        if call.op.name == self.refuses:
            return None
        seconds = sum(kernel.seconds for kernel in call.kernels) * self.factor
        return Estimate(seconds, seconds / self.spread, seconds * self.spread, "times")


def ran(op: Op, *seconds: float, host_s: float | None = 0.125, **more: Any) -> Call:
    """A call whose kernels took these seconds."""
    more.setdefault("phase", Phase.FORWARD)
    return Call(op, kernels=tuple(Kernel("k", s) for s in seconds), host_s=host_s, **more)


def measured(*calls: Call, gpu: str = "Tesla T4", **whole: Any) -> Trace:
    return Trace(calls, samples=8, measurement=Measurement(gpu, **whole))


def step(**whole: Any) -> Trace:
    whole.setdefault("host_s", 0.375)
    return measured(
        ran(mm(), 2.0, 1.0, module="net.0"),
        ran(view(64, 64), module="net.0"),
        ran(relu(64), 1.0, phase=Phase.BACKWARD),
        **whole,
    )


def test_each_call_is_scaled_from_the_gpu_of_the_measurement() -> None:
    scaler = Times(3)
    prediction = predict(step(), "l4", predictor=scaler)
    assert [(c.op.base, *gpus) for c, *gpus in scaler.questions] == [
        ("aten.mm", "t4", "l4"),
        ("aten.relu", "t4", "l4"),
    ]
    assert prediction.gpu_s == 12
    assert prediction.by_phase()[Phase.BACKWARD] == 3
    assert {(part.name, part.calls, part.gpu_s) for part in prediction.by_op()} == {
        ("aten.mm", 1, 9),
        ("aten.relu", 1, 3),
        ("aten.view", 1, 0),
    }
    assert {part.name: part.gpu_s for part in prediction.by_module()} == {
        "net.0": 9,
        "(no module)": 3,
    }


def test_equal_ops_keep_their_own_times() -> None:
    prediction = predict(measured(ran(mm(), 1.0), ran(mm(), 3.0)), L4, predictor=Times(2))
    assert [answer.seconds for answer in prediction.answers if answer] == [2, 6]
    assert prediction.by_op()[0].gpu_s == 8


def test_an_op_is_known_to_run_by_its_kernels_even_without_shapes() -> None:
    nameless = Op("kernel.my_extension", (), ())
    prediction = predict(measured(ran(nameless, 1.0), ran(unknown(), 2.0)), L4, predictor=Times(2))
    assert prediction.gpu_s == 6
    assert not prediction.unpredicted


def test_sources_say_who_scaled_how_much() -> None:
    trace = measured(ran(mm(), 3.0), ran(ALL_REDUCE, 1.0))
    prediction = predict(trace, L4, predictor=Times(refuses=ALL_REDUCE.name))
    assert [(part.name, part.calls, part.gpu_s) for part in prediction.sources()] == [
        ("times", 1, 6)
    ]
    assert prediction.unpredicted == {ALL_REDUCE.name: 1}


def test_habitats_listing_reads_milliseconds() -> None:
    prediction = step().to_device(Device.V100)
    assert isinstance(prediction, Prediction)
    assert prediction.device.id == "v100-sxm-16gb"
    assert prediction.seconds == predict(step(), "v100-sxm-16gb").seconds
    assert prediction.run_time_ms == prediction.seconds * 1000


def test_a_kernel_knows_its_blocks_and_threads() -> None:
    kernel = Kernel("k", 1.0, grid=(4, 3, 2), block=(32, 8, 1))
    assert (kernel.blocks, kernel.threads) == (24, 256)
    assert (Kernel("copy", 1.0).blocks, Kernel("copy", 1.0).threads) == (None, None)


def test_the_shipped_scaler_is_taken_and_leaves_the_measurement_alone_on_its_own_gpu() -> None:
    assert default_scaler() == Habitat.shipped()
    prediction = predict(step(), "t4")
    assert [part.name for part in prediction.sources()] == ["measured"]
    assert (prediction.gpu_s, prediction.seconds) == (4, 4)
    assert predict(step(), L4).seconds == predict(step(), L4, predictor=default_scaler()).seconds


# The GPU of the measurement.


def test_a_name_in_a_trace_opens_no_file(tmp_path: Path) -> None:
    board = tmp_path / "board.toml"
    board.write_text("not a device")
    with pytest.raises(UnknownName, match="files cannot name others"):
        predict(step(gpu=str(board)), L4, predictor=Times())
    with pytest.raises(InvalidInput, match="not TOML"):  # a user can name it
        predict(step(), L4, predictor=Times(), origin=str(board))


@pytest.mark.parametrize("origin", ["rtx-3090", "NVIDIA GeForce RTX 3090", device("rtx-3090")])
def test_the_origin_can_be_given(origin: Device | str) -> None:
    scaler = Times()
    predict(step(gpu="my own board"), L4, predictor=scaler, origin=origin)
    assert {question[1:] for question in scaler.questions} == {("rtx-3090", "l4")}


def test_the_origin_that_is_given_wins_over_the_name_in_the_trace() -> None:
    scaler = Times()
    predict(step(), L4, predictor=scaler, origin="p4000")
    assert {origin for _, origin, _ in scaler.questions} == {device("p4000").id}


@pytest.mark.parametrize(
    ("gpu", "message"),
    [
        pytest.param("my own board", 'measured on "my own board"', id="unknown"),
        pytest.param("Tesla V100", '"v100-sxm-16gb"', id="several"),
        pytest.param("", "does not say on which GPU", id="none"),
    ],
)
def test_a_trace_of_an_unknown_gpu_asks_for_its_origin(gpu: str, message: str) -> None:
    with pytest.raises(UnknownName, match=message) as error:
        predict(step(gpu=gpu), L4)
    assert str(error.value).endswith("origin=... or --origin")


def test_an_origin_that_is_no_gpu_is_refused_by_its_own_name() -> None:
    with pytest.raises(UnknownName, match=r'^unknown device "t44444"'):
        predict(step(), L4, origin="t44444")


def test_a_traced_step_has_no_origin_and_nothing_to_scale() -> None:
    plain = trace(traced(mm()))
    for options in ({"origin": "t4"}, {"predictor": Times()}):
        with pytest.raises(InvalidInput, match=r"was not measured.*wavecast.measure"):
            predict(plain, L4, **options)


# Predictors instead of scalers.


def test_a_predictor_predicts_a_measured_trace_as_if_it_were_traced() -> None:
    measurement = step()
    plain = trace(*(Call(c.op, c.phase, c.module) for c in measurement))
    prediction, expected = (
        predict(traced, L4, predictor=Roofline()) for traced in (measurement, plain)
    )
    assert prediction.seconds == expected.seconds
    assert prediction.host == REFERENCE_HOST


def test_a_predictor_needs_no_origin() -> None:
    with pytest.raises(InvalidInput, match=r"Roofline does not scale.*leave the origin out"):
        predict(step(), L4, predictor=Roofline(), origin="t4")


def test_an_op_of_which_a_profiler_saw_only_the_name_is_not_predicted() -> None:
    seen = Op("aten.mm", (), ())
    prediction = predict(measured(ran(seen, 1.0), ran(relu(64), 1.0)), L4, predictor=Roofline())
    assert prediction.unpredicted == {"aten.mm": 1}
    assert prediction.gpu_s > 0


@dataclass(frozen=True)
class Says(Scaler):
    """A scaler that always gives the same answer, valid or not."""

    answer: Any

    def scale_call(self, call: Call, origin: Device, target: Device) -> Any:
        return self.answer


@pytest.mark.parametrize("answer", [0.5, Estimate(0, 0, 0, "me"), Estimate(1, 2, 3, "me")])
def test_an_impossible_answer_of_a_scaler_is_refused(answer: Any) -> None:
    with pytest.raises(InvalidInput, match=r"Says answered .* for aten\.mm"):
        predict(step(), L4, predictor=Says(answer))


# The host.


def test_the_host_is_the_one_that_was_measured() -> None:
    prediction = predict(step(host_s=0.375), L4, predictor=Times(0.001))
    assert (prediction.host_s, prediction.seconds, prediction.bound_by) == (0.375, 0.375, "host")
    assert prediction.host.name == "that of the measurement"


def test_a_slower_host_takes_that_many_times_as_long_as_the_measured_one() -> None:
    prediction = predict(step(), L4, predictor=Times(0.001), host_factor=4)
    assert prediction.seconds == 1.5
    assert prediction.host == RecordedHost("that of the measurement x4", factor=4)
    assert predict(step(), L4, predictor=Times(0.001), host_factor=0).seconds == 0.004


def test_the_hosts_factor_comes_on_top_of_what_the_measurement_says() -> None:
    busy = step(seconds=4.5, host_s=0.375)
    bound = measured(ran(mm(), 0.5, host_s=1.0), seconds=1.5, host_s=1.0)
    assert predict(busy, T4, predictor=Times(1), host_factor=2).seconds == pytest.approx(4.5)
    assert predict(bound, T4, predictor=Times(1), host_factor=2).seconds == pytest.approx(3.0)


def test_a_host_of_ones_own_replaces_the_measured_one() -> None:
    host = REFERENCE_HOST.scaled(1e5)
    prediction = predict(step(), L4, predictor=Times(), host=host)
    assert prediction.host == host
    assert prediction.host_s == pytest.approx(host.issue_times(step().calls).sum())


def test_without_a_measured_host_the_reference_issues() -> None:
    prediction = predict(step(host_s=None), L4, predictor=Times())
    assert prediction.host == REFERENCE_HOST


@pytest.mark.parametrize("factor", [-1, float("nan"), float("inf")])
def test_a_factor_that_is_no_factor_is_refused(factor: float) -> None:
    with pytest.raises(InvalidInput, match="0 or above"):
        predict(step(), L4, predictor=Times(), host_factor=factor)


def test_a_wait_in_a_measured_step_is_played() -> None:
    apart = measured(ran(mm(), 2.0), ran(mm(), 3.0, syncs=True), host_s=0.25)
    assert predict(apart, L4, predictor=Times(1)).seconds == 0.125 + 2 + 3
    together = measured(ran(mm(), 2.0), ran(mm(), 3.0), host_s=0.25)
    assert predict(together, L4, predictor=Times(1)).seconds == 5


# Overlap, and ranges.


def test_kernels_that_overlapped_still_overlap_on_another_gpu() -> None:
    first, second = (Kernel("k", 4.0, stream=s, start_s=2.0 * s) for s in (0, 1))
    calls = tuple(Call(mm(), Phase.FORWARD, kernels=(k,), host_s=0.0) for k in (first, second))
    prediction = predict(measured(*calls, host_s=0.0), L4, predictor=Times(2))
    assert prediction.gpu_s == 12
    assert [part.gpu_s for part in prediction.by_op()] == [12]


def test_gaps_between_kernels_are_not_scaled() -> None:
    prediction = predict(step(seconds=4.5), L4, predictor=Times(2, spread=2))
    assert prediction.seconds == pytest.approx(0.5 + 6 + 2)
    ends = 1 - math.hypot(3, 1) / 8, 1 + math.hypot(6, 2) / 8
    assert prediction.gpu_spread == pytest.approx(ends)


def test_a_scaled_step_has_no_range_where_nothing_gave_one() -> None:
    times = Times(2, spread=2)
    for scaler, gpu in ((times, T4), (times, L4), (default_scaler(), L4)):
        prediction = predict(step(), gpu, predictor=scaler)
        assert prediction.seconds > 0
        assert (prediction.low_s, prediction.high_s) == (None, None)


def test_a_measured_step_as_a_graph_has_its_kernels_and_no_host() -> None:
    calls = [ran(mm(), 2.0, 1.0, host_s=9.0), ran(relu(64), 1.0, host_s=9.0)]
    eager = measured(*calls, seconds=18.0, host_s=18.0, gpu_s=4.0)
    assert predict(eager, T4, predictor=Times(1)).seconds == pytest.approx(18)
    prediction = predict(eager, T4, predictor=Times(1), graphed=True)
    assert prediction.seconds == pytest.approx(4 + 3 * GRAPH_GAP_S, abs=1e-9)
    assert prediction.host.name == "reference (a cloud VM), as one CUDA graph"
