"""Measured steps correct the predictions for their GPU."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from made import mm, relu

from wavecast.errors import InvalidInput
from wavecast.hardware.device import Device
from wavecast.hardware.devices import device
from wavecast.predictors import corrected
from wavecast.predictors.base import Estimate, Predictor
from wavecast.predictors.corrected import Corrected, learn
from wavecast.predictors.learned.predictor import Learned
from wavecast.steps.learning import learn_from
from wavecast.steps.request import default_predictor
from wavecast.traces.step import Call, Kernel, Measurement, Op, Phase, Trace

T4, L4 = device("t4"), device("l4")
PRODUCT, LARGER, OTHER = mm(64, 64, 64), mm(512, 512, 512), relu(1 << 20)


class OneSecond(Predictor):
    """Every op takes a second."""

    def predict(self, op: Op, device: Device) -> Estimate | None:
        return Estimate(1.0, 0.5, 2.0, "one")


def step(*times: tuple[Op, float], gpu: str = "Tesla T4") -> Trace:
    calls = [Call(op, Phase.FORWARD, kernels=(Kernel("k", seconds),)) for op, seconds in times]
    return Trace(tuple(calls), measurement=Measurement(gpu, sum(s for _, s in times)))


def factor(op: Op, *traces: Trace) -> float:
    return learn(traces, T4, OneSecond()).factors([op])[0]


def test_an_op_moves_towards_its_measured_time_and_more_with_more_steps() -> None:
    once, often = (
        factor(PRODUCT, step((PRODUCT, 1.3))),
        factor(PRODUCT, *[step((PRODUCT, 1.3))] * 9),
    )
    assert 1 < once < often < 1.3
    assert factor(PRODUCT, step((PRODUCT, 1.0))) == pytest.approx(1)


def test_ops_of_other_sizes_and_other_ops_move_less() -> None:
    measured = step((PRODUCT, 1.3))
    same, larger, other = (factor(op, measured) for op in (PRODUCT, LARGER, OTHER))
    assert same > larger > other == pytest.approx(1)


def test_an_op_with_a_tiny_share_of_its_step_says_little() -> None:
    small = factor(PRODUCT, step((PRODUCT, 1.3), (OTHER, 1e4)))
    assert 1 < small < factor(PRODUCT, step((PRODUCT, 1.3)))


def test_an_absurd_time_is_cut_off() -> None:
    assert factor(PRODUCT, *[step((PRODUCT, 1e6))] * 50) < math.e


def test_only_the_gpu_of_the_steps_is_corrected_with_the_whole_range() -> None:
    own = learn([step((PRODUCT, 1.3))], T4, OneSecond())
    predictor = Corrected(OneSecond(), {own.gpu: own})
    there, elsewhere = predictor.predict(PRODUCT, T4), predictor.predict(PRODUCT, L4)
    assert there is not None
    assert there.seconds == pytest.approx(own.factors([PRODUCT])[0])
    assert there.high_s / there.low_s == pytest.approx(4)
    assert elsewhere == Estimate(1.0, 0.5, 2.0, "one")
    assert "1 step that you measured" in predictor.assumptions(T4)[-1]
    assert predictor.assumptions(L4) == ()
    assert list(predictor.predict_all((), T4)) == []


def test_what_was_learned_is_kept_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(corrected.VARIABLE, raising=False)
    assert default_predictor() is Learned.shipped()
    own = learn([step((PRODUCT, 1.3))], T4, Learned.shipped())
    shared = tmp_path / "team.toml"
    corrected.save(own, shared)
    assert corrected.read(shared) == own
    monkeypatch.setenv(corrected.VARIABLE, str(shared))
    found = default_predictor().predict(PRODUCT, T4)
    plain = Learned.shipped().predict(PRODUCT, T4)
    assert found is not None
    assert plain is not None
    assert found.seconds == pytest.approx(plain.seconds * own.factors([PRODUCT])[0])


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("steps = 1", "steps = 0", "above 0"),
        ("gpu = ", "card = ", "not a key of corrections"),
        ("date = 20", "date = '20", "TOML"),
        ('"aten.mm"', "7", "a row of ops is"),
    ],
    ids=["steps", "key", "date", "row"],
)
def test_a_damaged_file_is_refused(tmp_path: Path, before: str, after: str, said: str) -> None:
    path = tmp_path / "own.toml"
    corrected.save(learn([step((PRODUCT, 1.3))], T4, OneSecond()), path)
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after, 1), encoding="utf-8")
    with pytest.raises(InvalidInput, match=said):
        corrected.read(path)


def test_each_step_is_judged_by_the_others() -> None:
    steps = {name: step((PRODUCT, 1.3)) for name in "abc"}
    found = learn_from(steps, OneSecond())
    assert found.gpu == "t4"
    assert found.corrections.steps == 3
    for row in found.steps:
        assert row.before == pytest.approx(1 / 1.3 - 1)
        assert row.after is not None
        assert abs(row.after) < abs(row.before)
    assert learn_from({"a": steps["a"]}, OneSecond()).steps[0].after is None


def test_steps_of_several_gpus_are_refused() -> None:
    with pytest.raises(InvalidInput, match="b was measured on l4, and others on t4"):
        learn_from({"a": step((PRODUCT, 1.3)), "b": step((PRODUCT, 1.3), gpu="NVIDIA L4")})


def test_a_step_without_kernels_teaches_nothing() -> None:
    bare = replace(step((PRODUCT, 1.3)), calls=(Call(PRODUCT, Phase.FORWARD),))
    with pytest.raises(InvalidInput, match="a: no op of the step has a measured time"):
        learn_from({"a": bare}, OneSecond())
