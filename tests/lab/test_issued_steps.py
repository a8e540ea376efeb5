"""What hosts took to issue steps: the speed of machines, checkpointing, and kinds of steps."""

from __future__ import annotations

from statistics import mean

import pytest
from made import call, mm, relu, trace

from lab.fit import recomputed
from lab.fit.issued_steps import IssuedStep, by_iterations, later, machine_factor, of_blind_test
from lab.fit.recomputed import checkpointed, left_out
from lab.score.host_kinds import errors, kind_of, table
from wavecast.hardware.hosts import RECOMPUTED
from wavecast.traces.step import Call, Op, Phase, TensorSpec, Trace

STEP = trace(call(mm(8)), call(relu(8)))


def issued(
    machine: str, factor: float, hooks: float | None = None, family: str = "a"
) -> IssuedStep:
    """A step that takes 10 ms on the reference host, 4 ms more for each hook if it recomputes."""
    again_s = 0.0 if hooks is None else 0.004
    seconds = factor * (0.010 + (hooks or 0.0) * again_s)
    return IssuedStep(machine, f"{family} {hooks}", family, seconds, 0.010, again_s, STEP)


def test_the_speed_of_the_machine_is_no_cost_of_checkpointing() -> None:
    steps = [
        *(issued(name, factor) for name, factor in (("slow", 1.5), ("fast", 0.8))),
        *(issued(name, factor, 2.0) for name, factor in (("slow", 1.5), ("fast", 0.8))),
    ]
    found = list(checkpointed(steps))
    assert [one.factor for one in found] == pytest.approx([1.5, 0.8])
    assert recomputed.fit(found) == pytest.approx(2.0)
    assert found[0].error(2.0) == pytest.approx(0)
    assert found[0].error(3.0) == pytest.approx(0.004 / 0.018)


def test_a_machine_with_many_steps_counts_once() -> None:
    needs = {"one": [4.0] * 9, "two": [1.0], "three": [2.0]}
    steps = [issued(name, 1.0) for name in needs]
    steps += [issued(name, 1.0, hooks) for name, several in needs.items() for hooks in several]
    found = list(checkpointed(steps))
    assert recomputed.fit(found) == pytest.approx(2.0)
    apart = left_out(found)
    assert apart["two"] == pytest.approx([(3 - 1) * 0.004 / 0.014])  # 3 of 4 and 2


def test_a_machine_without_other_steps_tells_nothing() -> None:
    assert list(checkpointed([issued("alone", 1.0, 2.0)])) == []


@pytest.mark.slow
def test_the_shipped_cost_of_checkpointing_is_that_of_the_fit() -> None:
    steps = recomputed.read()
    assert len({step.step.machine for step in steps}) == 6
    assert round(recomputed.fit(steps)) == RECOMPUTED
    apart = [abs(error) for own in left_out(steps).values() for error in own]
    assert mean(apart) < 0.10


def test_the_factor_is_the_median_of_steps() -> None:
    assert machine_factor([issued("m", factor) for factor in (0.5, 1.2, 9.0)]) == pytest.approx(1.2)


def test_the_machine_is_judged_by_other_families() -> None:
    steps = [issued("m", 1.5, family=family) for family in "bcd"] + [issued("m", 3.0)]
    [odd] = [error for error in errors(steps) if error.factored < -0.1]
    assert odd.reference == pytest.approx(1 / 3 - 1)
    assert odd.factored == pytest.approx(0.5 - 1)
    assert list(errors(steps[:3])) == []  # two others are too few
    assert table(list(errors(steps)))


def test_kinds_of_steps_follow_from_their_ops() -> None:
    spec = TensorSpec((8, 8), "float32")

    def step(*names: str, times: int = 1) -> Trace:
        forward = [Call(Op(name, (spec, spec, spec), (spec,)), Phase.FORWARD) for name in names]
        backward = Call(Op("aten.mm", (spec, spec), (spec,)), Phase.BACKWARD)
        return Trace((*forward * times, backward))

    assert kind_of(STEP) == "forward passes"
    assert kind_of(step("aten.mm")) == "others"
    assert kind_of(step("aten.convolution", times=9)) == "convolutional networks"
    assert kind_of(step("aten.convolution", "aten._softmax")) == "vision transformers"
    assert kind_of(step("aten.embedding", "aten._softmax")) == "language models"
    assert kind_of(step("aten.embedding", "aten._softmax", "aten.topk")) == "mixtures of experts"
    assert kind_of(step("inductor.call")) == "compiled"


def test_what_was_measured_is_read() -> None:
    small = [step for step in later() if step.machine == "host_steps"]
    assert len(small) == 32  # compiled ones have no recorded trace
    assert sum(step.again_s > 0 for step in small) == 4
    names = {step.name for step in of_blind_test() if step.again_s}
    assert "blocks b8 bf16 checkpointed" in names
    machines = {step.machine for step in by_iterations()}
    assert {"third", "tenth", "eleventh"} <= machines
