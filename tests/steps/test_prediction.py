"""Predictions from estimates of ops: sums, ranges, unpredicted ops, and memory."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import call, copy_to_gpu, mm, relu, step, trace, unknown, view

import wavecast
from lab.measured import campaigns
from wavecast.errors import InvalidInput
from wavecast.footprint.replay import usable_bytes
from wavecast.hardware.contexts import context_bytes
from wavecast.hardware.devices import Device, device
from wavecast.hardware.hosts import REFERENCE_HOST
from wavecast.predictors.attainable import Roofline
from wavecast.predictors.base import Estimate, Familiarity, Predictor
from wavecast.steps.prediction import Prediction
from wavecast.steps.ranges import gpu_factors, host_factors
from wavecast.steps.request import default_predictor, predict
from wavecast.traces.step import Allocation, Op, Phase, Role, Trace

L4 = device("l4")
FREE_HOST = REFERENCE_HOST.scaled(0)


@dataclass
class Table(Predictor):
    """A predictor that takes its answers from a table, and counts the questions."""

    seconds: dict[str, float]
    spread: float = 1.0
    known: Familiarity | None = Familiarity.UNSEEN
    source: str = "learned"
    questions: Counter[Op] = field(default_factory=Counter)

    def familiarity(self, device: Device) -> Familiarity | None:
        return self.known

    def predict(self, op: Op, device: Device) -> Estimate | None:
        self.questions[op] += 1
        if op.name not in self.seconds:
            return None
        t = self.seconds[op.name]
        return Estimate(t, t / self.spread, t * self.spread, self.source)


TABLE = {"aten.mm": 2.0, "aten.relu": 0.5, "aten._to_copy": 0.25}


def predicted(step: Trace, **options: Any) -> Prediction:
    options.setdefault("predictor", Table(TABLE))
    options.setdefault("host", FREE_HOST)
    prediction: Prediction = predict(step, L4, **options)
    return prediction


def test_the_gpu_is_busy_for_the_sum_of_its_ops() -> None:
    prediction = predicted(step())
    assert prediction.gpu_s == 0.25 + 4 * 2.0 + 2 * 0.5
    assert prediction.seconds == prediction.gpu_s
    assert prediction.bound_by == "gpu"


def test_a_slow_host_sets_the_pace() -> None:
    prediction = predicted(step(), host=REFERENCE_HOST.scaled(1e6))
    assert prediction.bound_by == "host"
    assert prediction.seconds == prediction.host_s > prediction.gpu_s


def test_breakdowns_name_ops_modules_phases_and_sources() -> None:
    prediction = predicted(step())
    by_op = {part.name: (part.calls, part.gpu_s) for part in prediction.by_op()}
    assert by_op["aten.mm"] == (4, 8.0)
    assert by_op["mine.secret"] == (2, 0.0)
    by_module = {part.name: part.gpu_s for part in prediction.by_module()}
    assert by_module == {"net.2": 6.0, "net.0": 2.0, "(no module)": 0.75, "net.1": 0.5}
    assert {part.name for part in prediction.by_module(depth=1)} == {"net", "(no module)"}
    assert prediction.by_phase() == {
        Phase.FORWARD: 4.5,
        Phase.BACKWARD: 4.0,
        Phase.OPTIMIZER: 0.5,
        Phase.OTHER: 0.25,
    }
    assert [(part.name, part.calls) for part in prediction.sources()] == [("learned", 7)]


def test_views_are_not_listed_as_unpredicted_and_never_asked_for() -> None:
    table = Table({})
    step = trace(call(view(4)), call(mm()))
    prediction = predicted(step, predictor=table, host=REFERENCE_HOST)
    assert prediction.unpredicted == {"aten.mm": 1}
    assert set(table.questions) == {mm()}


def test_a_step_of_which_nothing_is_known_is_refused_by_name() -> None:
    step = trace(call(unknown("a.b")), call(unknown("c.d")), samples=8)
    with pytest.raises(InvalidInput, match=r"unpredicted: a\.b\.default, c\.d\.default"):
        predicted(step)


def test_equal_ops_are_predicted_once() -> None:
    table = Table(TABLE)
    repeated = trace(*[call(mm()) for _ in range(50)], *[call(relu(4)) for _ in range(30)])
    assert predicted(repeated, predictor=table).gpu_s == 115
    assert table.questions == {mm(): 1, relu(4): 1}


def test_estimates_are_kept_by_op() -> None:
    prediction = predicted(step())
    assert prediction.estimates[mm(32, 64, 128)] == Estimate(2, 2, 2, "learned")
    assert prediction.estimates[unknown()] is None
    assert view(32, 128) not in prediction.estimates


def test_throughput_needs_the_number_of_samples() -> None:
    assert predicted(step(samples=None)).throughput is None
    assert predicted(step(samples=37)).throughput == pytest.approx(37 / 9.25)


def test_a_wait_in_the_step_is_played() -> None:
    host = dataclasses.replace(FREE_HOST, forward_s=1.0, sync_s=0.125)
    apart = trace(call(mm()), call(mm(), syncs=True))
    assert predicted(apart, host=host).seconds == 1 + 2 + 2 + 0.125
    assert predicted(trace(call(mm()), call(mm())), host=host).seconds == 4


def test_errors_of_one_kind_add_up_and_those_of_several_in_squares() -> None:
    table = Table({"aten.mm": 3.0, "aten.relu": 4.0}, spread=2)
    of_one_kind = predicted(trace(call(mm(8)), call(mm(9))), predictor=table)
    assert of_one_kind.gpu_spread == pytest.approx((0.5, 2))
    two = predicted(trace(call(mm()), call(relu(4))), predictor=table)
    assert two.gpu_spread == pytest.approx((1 - math.hypot(1.5, 2) / 7, 1 + 5 / 7))


def test_host_times_move_by_their_spread() -> None:
    host = dataclasses.replace(FREE_HOST, forward_s=100.0)
    prediction = predicted(trace(call(mm())), host=host)
    factors = host_factors(known=False)
    assert factors is not None
    expected = (100 * factors.low, 100 * factors.high)
    assert (prediction.low_s, prediction.high_s) == pytest.approx(expected)


@given(
    st.lists(st.tuples(st.sampled_from([mm(), relu(8), view(8), unknown()]), st.booleans())),
    st.floats(1, 10),
    st.floats(0, 1e5),
)
def test_the_range_holds_the_prediction(
    calls: list[tuple[Op, bool]], spread: float, factor: float
) -> None:
    drawn = trace(call(copy_to_gpu(4)), *(call(op, syncs=syncs) for op, syncs in calls))
    host = REFERENCE_HOST.scaled(factor)
    prediction = predicted(drawn, predictor=Table(TABLE, spread), host=host)
    assert prediction.low_s is not None
    assert prediction.high_s is not None
    slack = 1 + 1e-9
    assert 0 <= prediction.low_s <= prediction.seconds * slack
    assert prediction.seconds <= prediction.high_s * slack


def test_equal_traces_are_kept_apart() -> None:
    light, heavy = step(state_bytes=1 << 20), step(state_bytes=2 << 20)
    small, large = (predict(traced, L4).memory for traced in (light, heavy))
    assert small is not None
    assert large is not None
    assert large.peak_bytes > small.peak_bytes


def test_workspace_and_context_count_for_what_fits() -> None:
    most = usable_bytes(L4.memory_bytes - (context_bytes(trace(call(mm())), L4) or 0))
    almost = (Allocation(most - (32 << 20), None, None, Role.PARAMETER),)
    full = dataclasses.replace(trace(call(mm())), allocations=almost)
    workspace = (Allocation(64 << 20, 0, 1, Role.WORKSPACE),)
    larger = dataclasses.replace(full, allocations=(*almost, *workspace))
    assert predicted(full).fits
    assert predicted(larger).fits is False


def test_a_trace_without_memory_says_neither_that_it_fits_nor_that_it_does_not() -> None:
    prediction = predicted(trace(call(mm())))
    assert prediction.memory is None
    assert prediction.fits is None


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no ops to predict"):
        predict(Trace(()), L4)


@pytest.mark.parametrize("gpu", [None, [], ["l4"], 4])
def test_what_is_no_gpu_is_refused(gpu: Any) -> None:
    with pytest.raises(InvalidInput, match="one GPU, a Device or its name"):
        predict(step(), gpu)


def test_what_is_no_trace_is_refused() -> None:
    with pytest.raises(InvalidInput, match="takes a Trace, not str"):
        predict("gpt2.json.gz", L4)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Says(Predictor):
    """A predictor that always gives the same answer, valid or not."""

    answer: Any

    def predict(self, op: Op, device: Device) -> Any:
        return self.answer


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Estimate(math.nan, 1, 1, "me"), id="not a number"),
        pytest.param(Estimate(1, 1, math.inf, "me"), id="infinite"),
        pytest.param(Estimate(-1, -1, -1, "me"), id="negative"),
        pytest.param(Estimate(0, 0, 0, "me"), id="nothing"),
        pytest.param(Estimate(1, 2, 3, "me"), id="below its own range"),
    ],
)
def test_an_impossible_answer_of_a_predictor_is_refused(answer: Estimate) -> None:
    with pytest.raises(InvalidInput, match=r"Says answered .* for aten\.mm"):
        predicted(trace(call(mm())), predictor=Says(answer))


def test_an_answer_that_is_no_estimate_is_refused() -> None:
    with pytest.raises(InvalidInput, match="should return an Estimate, or None"):
        predicted(trace(call(mm())), predictor=Says(0.5))


def test_a_step_has_a_range_on_every_gpu_whose_class_was_measured() -> None:
    bert = campaigns.traces("steps")["bert-base-bf16"]
    for gpu in wavecast.devices():
        prediction = predict(bert, gpu)
        known = prediction.familiarity
        if known is None or gpu_factors(known, prediction.makeup) is None:
            assert (prediction.low_s, prediction.high_s) == (None, None)
        else:
            assert prediction.low_s is not None
            assert prediction.high_s is not None
            assert prediction.low_s <= prediction.seconds <= prediction.high_s


def test_there_is_no_range_where_no_measured_steps_gave_one() -> None:
    plain = trace(call(mm()), call(relu(4)))
    for prediction in (
        predicted(plain, predictor=Table(TABLE, known=None)),
        predicted(plain, predictor=Table(TABLE, source="attainable")),
        predicted(plain, predictor=Roofline()),
        predicted(plain, predictor=Says(Estimate(1, 1, 1, "me"))),
        predicted(plain, graphed=True),
        predicted(plain, graphed=True, predictor=default_predictor()),
    ):
        assert prediction.seconds > 0
        assert (prediction.low_s, prediction.high_s) == (None, None)


def test_a_graphed_step_takes_the_gpus_time_whatever_the_host() -> None:
    slow = dataclasses.replace(REFERENCE_HOST.scaled(1e6), graph_s=0.5, node_s=0.0)
    prediction = predicted(step(), host=slow, graphed=True)
    assert prediction.gpu_s == 9.25
    assert prediction.seconds == 9.25
    assert prediction.host_s == pytest.approx(0.5)
    assert prediction.bound_by == "gpu"
    assert prediction.host.name == "reference (a cloud VM) x1e+06, as one CUDA graph"


def test_the_launch_of_a_graph_may_take_longer_than_its_kernels() -> None:
    slow = dataclasses.replace(FREE_HOST, graph_s=100.0)
    prediction = predicted(step(), host=slow, graphed=True, host_factor=2)
    assert prediction.seconds == pytest.approx(200)
    assert prediction.bound_by == "host"


def test_a_step_that_waits_for_the_gpu_is_no_graph() -> None:
    waits = trace(call(mm(), syncs=True), call(mm()))
    with pytest.raises(InvalidInput, match="a CUDA graph cannot wait"):
        predicted(waits, graphed=True)
