"""Measured steps correct the predictions for their GPU."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from made import mm, relu, tensor

from wavecast.analysis.evaluation import learn_from, learn_from_layers
from wavecast.errors import InvalidInput
from wavecast.hardware.devices import Device, device
from wavecast.predictors import corrected
from wavecast.predictors.base import Estimate, Predictor
from wavecast.predictors.corrected import Corrected, Corrections, OpOff, learn, places
from wavecast.predictors.learned.gpus import gpu_of
from wavecast.predictors.learned.predictor import Learned
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


def corrected_s(own: Corrections, op: Op) -> float:
    answer = Corrected(OneSecond(), {own.gpu: own}).predict(op, T4)
    assert answer is not None
    return answer.seconds


def factor(op: Op, *traces: Trace) -> float:
    return corrected_s(learn(traces, T4, OneSecond()), op)


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


def test_an_op_without_features_moves_with_its_kind_and_its_length() -> None:
    unmodelled = Op("aten.mse_loss", (tensor(8), tensor(8)), (tensor(),))
    assert not places([unmodelled], [1.0], None)[0].features
    places_of = [replace(places([unmodelled], [1.0], None)[0], seconds=s) for s in (1.0, 1e-5)]
    own = Corrections("t4", date(2026, 11, 18), 1, (OpOff(places_of[0], 0.3),))
    alike, shorter = own.factors(places_of).tolist()
    assert alike > 1.05
    assert shorter == pytest.approx(1, abs=0.01)


def test_a_short_op_says_less() -> None:
    place = places([PRODUCT], [1.0], gpu_of(T4))[0]
    long, short = (
        Corrections("t4", date(2026, 11, 18), 1, (OpOff(replace(place, seconds=s), 0.3),))
        for s in (1.0, 1e-6)
    )
    assert 1 < short.factors([place])[0] < long.factors([place])[0] < math.exp(0.3)


def test_swept_layers_count_like_steps_and_beside_them() -> None:
    measured = [step((PRODUCT, 1.3))]
    steps, ops = learn(measured, T4, OneSecond()), learn([], T4, OneSecond(), swept=measured)
    assert corrected_s(steps, PRODUCT) == pytest.approx(corrected_s(ops, PRODUCT))
    assert corrected_s(replace(steps, swept=ops.swept), PRODUCT) > corrected_s(steps, PRODUCT)
    assert (steps.counted, ops.counted) == ("1 step", "1 single op")


def test_a_long_sweep_is_thinned_always_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corrected, "MOST_ROWS", 5)
    sweep = [step(*((mm(64 * n, 64, 64), 1.3) for n in range(1, 20)))]
    kept = learn([], T4, OneSecond(), swept=sweep).swept
    assert len(set(kept)) == 5
    assert kept == learn([], T4, OneSecond(), swept=sweep).swept


def test_which_ops_are_kept_does_not_depend_on_how_long_they_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(corrected, "MOST_OPS", 1)
    twice = [*step((PRODUCT, 0.4), (OTHER, 1.9)).calls, *step((PRODUCT, 0.4)).calls]
    own = learn([replace(step((PRODUCT, 1.0)), calls=tuple(twice))], T4, OneSecond())
    assert [row.place.name for row in own.errors] == [PRODUCT.base]


def test_a_corrected_time_respects_the_bound_and_its_range() -> None:
    learned = Learned.shipped()
    ops = [mm(4096, 4096, 4096), mm(512, 512, 64), relu(1 << 26)]
    fast = step(*((op, 1e-7) for op in ops))
    own = learn([fast] * 50, T4, learned)
    answers = Corrected(learned, {"t4": own}).predict_all(ops, T4)
    for answer, plain, least_s in zip(
        answers, learned.predict_all(ops, T4), learned.least_s(ops, T4), strict=True
    ):
        assert answer is not None
        assert plain is not None
        assert least_s <= answer.low_s <= answer.seconds <= answer.high_s
        assert answer.seconds < plain.seconds


def test_an_absurd_time_is_cut_off() -> None:
    assert factor(PRODUCT, *[step((PRODUCT, 1e6))] * 50) < math.e


def test_only_the_gpu_of_the_steps_is_corrected_with_the_whole_range() -> None:
    own = learn([step((PRODUCT, 1.3))], T4, OneSecond())
    predictor = Corrected(OneSecond(), {own.gpu: own})
    there, elsewhere = predictor.predict(PRODUCT, T4), predictor.predict(PRODUCT, L4)
    assert there is not None
    assert there.seconds == pytest.approx(factor(PRODUCT, step((PRODUCT, 1.3))))
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
    estimate = default_predictor().predict(PRODUCT, T4)
    plain = Learned.shipped().predict(PRODUCT, T4)
    assert estimate is not None
    assert plain is not None
    there = Corrected(Learned.shipped(), {"t4": own}).predict(PRODUCT, T4)
    assert estimate == there
    assert estimate.seconds > plain.seconds


def test_files_of_one_gpu_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    shared = tmp_path / "team.toml"
    mine, theirs = (learn([step((op, 1.3))], T4, OneSecond()) for op in (PRODUCT, OTHER))
    corrected.save(mine, corrected.folder() / "t4.toml")
    corrected.save(theirs, shared)
    monkeypatch.setenv(corrected.VARIABLE, str(shared))
    both = corrected.kept()["t4"]
    assert both == mine | theirs
    assert (both.steps, len(both.errors)) == (2, 2)
    assert mine | mine == mine


def test_a_file_keeps_steps_and_a_sweep(tmp_path: Path) -> None:
    path = tmp_path / "t4.toml"
    steps = learn([step((PRODUCT, 1.3))], T4, OneSecond())
    ops = learn([], T4, OneSecond(), swept=[step((OTHER, 1.3))])
    corrected.keep(steps, path)
    both = corrected.keep(ops, path)
    assert corrected.read(path) == both
    assert both.counted == "1 step and 1 single op"
    again = corrected.keep(learn([step((PRODUCT, 1.1))] * 2, T4, OneSecond()), path)
    assert (again.steps, again.swept) == (2, ops.swept)
    with pytest.raises(InvalidInput, match="has corrections for t4, not for l4"):
        corrected.keep(learn([step((PRODUCT, 1.3))], L4, OneSecond()), path)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("steps = 1", "steps = -1", "at least 0"),
        ("gpu = ", "card = ", "not a key of corrections"),
        ("date = 20", "date = '20", "TOML"),
        ("1.0 matmul", "nan matmul", "a row is"),
        (" product ", " attention ", "measure and learn again"),
    ],
    ids=["steps", "key", "date", "row", "features"],
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
    learning = learn_from(steps, OneSecond())
    assert learning.gpu == "t4"
    assert learning.corrections.steps == 3
    for row in learning.steps:
        assert row.before == pytest.approx(1 / 1.3 - 1)
        assert row.after is not None
        assert abs(row.after) < abs(row.before)
    assert learn_from({"a": steps["a"]}, OneSecond()).steps[0].after is None


def test_swept_ops_judge_a_single_step() -> None:
    swept = learn_from_layers([step((PRODUCT, 1.3))], OneSecond())
    assert (swept.gpu, swept.steps) == ("t4", ())
    learning = learn_from({"a": step((PRODUCT, 1.3))}, OneSecond(), swept.corrections.swept)
    assert learning.corrections.swept == swept.corrections.swept
    assert learning.steps[0].after is not None
    assert abs(learning.steps[0].after) < abs(learning.steps[0].before)


def test_steps_of_several_gpus_are_refused() -> None:
    with pytest.raises(InvalidInput, match="b was measured on l4, and others on t4"):
        learn_from({"a": step((PRODUCT, 1.3)), "b": step((PRODUCT, 1.3), gpu="NVIDIA L4")})


def test_a_step_without_kernels_teaches_nothing() -> None:
    bare = replace(step((PRODUCT, 1.3)), calls=(Call(PRODUCT, Phase.FORWARD),))
    with pytest.raises(InvalidInput, match="a: no op of the step has a measured time"):
        learn_from({"a": bare}, OneSecond())
