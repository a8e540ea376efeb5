"""Whole runs from logs: the first and last stamp, start-up and tests; and jumps that are told."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import run_samples as samples
from run_samples import LOGS, STEADY_S, read

import wavecast
from wavecast.errors import InvalidInput
from wavecast.runs.run import Run, check

STARTUP_S, TEST_S = 3.0, 2.0
BATCHES, LENGTHS = (8, 16, 32, 64), (100, 200, 300, 400, 500, 700, 900)
LAW = (STARTUP_S, 0.004, 0.002)
"""Seconds of start-up, of an iteration, and of each of its samples."""


def caffe_log(batch: int, iterations: int, test_s: float = 0.0) -> str:
    """A short training of `caffe train`, shown every 20 iterations, after a start-up of 3 s."""
    start = datetime(2016, 11, 2, 10, 0, 0)
    head = samples.CAFFE_HEAD.replace("batch_size: 256", f"batch_size: {batch}")
    lines = [re.sub(r"max_iter: \d+", f"max_iter: {iterations}", head)]
    now_s = LAW[0]

    def say(message: str) -> None:
        at = start + timedelta(seconds=now_s)
        lines.append(f"I{at:%m%d %H:%M:%S.%f}  4242 solver.cpp:228] {message}\n")

    for iteration in range(iterations + 1):
        if test_s and iteration % 100 == 0:
            say(f"Iteration {iteration}, Testing net (#0)")
            now_s += test_s
            say("    Test net output #0: accuracy = 0.31")
        if iteration % 20 == 0:
            say(f"Iteration {iteration}, loss = 6.9")
        now_s += LAW[1] + LAW[2] * batch if iteration < iterations else 0.0
    say("Optimization Done.")
    return "".join(lines)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """28 Caffe logs of one network."""
    for batch in BATCHES:
        for length in LENGTHS:
            (tmp_path / f"b{batch}-i{length}.log").write_text(caffe_log(batch, length))
    return tmp_path


def test_the_start_up_of_28_logs_is_their_intercept(logs: Path) -> None:
    runs, _ = read(logs)
    assert len(runs) == 28
    model = wavecast.EndToEnd().fit(runs)
    values = {c.feature: c.value for c in model.coefficients}
    assert values["1"] == pytest.approx(STARTUP_S, abs=1e-3)
    assert values["iterations"] == pytest.approx(LAW[1], rel=1e-3)
    assert values["batch*iterations"] == pytest.approx(LAW[2], rel=1e-3)
    assert model.table.time == "total"
    expected_s = STARTUP_S + 5000 * (LAW[1] + 32 * LAW[2])
    assert model.predict(32, 5000).seconds == pytest.approx(expected_s, rel=1e-3)
    by_iteration = wavecast.EndToEnd(time="iterations").fit(runs)
    assert by_iteration.coefficients[0].value < 0.1  # the iterations alone know of no start-up


def test_tests_are_part_of_the_whole_and_apart_from_training(tmp_path: Path) -> None:
    file = tmp_path / "train.log"
    file.write_text(caffe_log(32, 300, TEST_S))
    runs, told = read(file)
    run, *tests = runs
    steps_s = 300 * (LAW[1] + 32 * LAW[2])
    assert run.total_iterations == 300
    assert run.testing_s == pytest.approx(4 * TEST_S)
    assert run.total_s == pytest.approx(STARTUP_S + steps_s + 4 * TEST_S)
    assert run.training_s == pytest.approx(steps_s)
    assert [test.seconds for test in tests] == pytest.approx([TEST_S] * 3)
    assert any("12 logged times" in t for t in told)  # three of 15 hold a test


def test_a_short_run_is_used_whole_and_said_to_be(tmp_path: Path) -> None:
    file = tmp_path / "train.log"
    file.write_text(caffe_log(16, 500))  # 500 iterations shown every 20
    (run,), told = read(file)
    assert (run.iterations, run.total_iterations) == (500, 500)
    assert run.seconds == pytest.approx(500 * (LAW[1] + 16 * LAW[2]))
    (line,) = told
    assert re.search(r"train.log: line \d+: 25 logged times are too few", line)
    assert line.endswith("The run is used whole, with its warm-up")


def test_a_training_of_two_logged_iterations_has_a_whole_time(tmp_path: Path) -> None:
    file = tmp_path / "train.log"
    file.write_text(caffe_log(16, 39))
    (run,), _ = read(file)
    assert (run.iterations, run.total_iterations) == (20, 39)
    assert run.total_s == pytest.approx(STARTUP_S + 39 * (LAW[1] + 16 * LAW[2]))


@pytest.mark.parametrize(
    ("name", "total_iterations", "tests_s", "startup_s"),
    [
        ("caffe", 1500, 4 * 12.5 + 0.03, 1.0),
        ("dllogger", 600, 2 * 20.0, 1.0),
        ("tensorboard", 1200, 3 * 9.0, 0.0),
    ],
)
def test_every_log_with_stamps_gives_its_whole_run(
    name: str, total_iterations: int, tests_s: float, startup_s: float, tmp_path: Path
) -> None:
    runs, _ = read(LOGS[name].write(tmp_path))
    run = next(run for run in runs if run.phase == "training")
    assert run.total_iterations == total_iterations
    steps_s = STEADY_S * (total_iterations + samples.WARM_UP)
    snapshot_s = 3.0 if name == "caffe" else 0.0
    whole_s = startup_s + steps_s + tests_s + snapshot_s
    assert run.total_s == pytest.approx(whole_s, rel=0.004)
    assert run.testing_s == pytest.approx(tests_s, rel=0.04)
    assert run.training_s is not None
    assert run.training_s + tests_s + startup_s <= (run.total_s or 0) * 1.001


def test_mlflow_says_when_a_run_began_and_ended(tmp_path: Path) -> None:
    (run,), _ = read(samples.write_mlflow(tmp_path))
    assert (run.total_iterations, run.total_s, run.testing_s) == (900, 300.0, 0.0)


def test_a_trainer_says_how_long_it_evaluated(tmp_path: Path) -> None:
    file = tmp_path / "trainer_state.json"
    file.write_text(samples.trainer_state())
    (run,), _ = read(file, model="m")
    whole = (run.total_iterations, run.total_s, run.training_s, run.testing_s)
    assert whole == (400, 120.0, 115.0, 5.0)


def test_a_trainer_with_more_steps_than_its_rate_allows_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trainer_state.json"
    text = samples.trainer_state().replace('"step": 400', '"step": 400000')
    file.write_text(text)
    with pytest.raises(InvalidInput, match=r"log_history\[5\]: 400000 steps in 120 s contradict"):
        read(file, model="m")


def metrics_csv(moments: Iterable[tuple[int, float]]) -> str:
    return "epoch,step,time\n" + "".join(f"0,{step},{at_s}\n" for step, at_s in moments)


def jumping(steps: int = 120, at: int = 45, by: int = 899_080) -> list[tuple[int, float]]:
    """A mark every 20 steps; at one of them the numbers jump."""
    return [(20 * n + (by if n > at else 0), 5.0 * n) for n in range(steps)]


@pytest.mark.parametrize("given", [{}, {"warm_up": 0}, {"warm_up": 400}])
def test_a_jump_in_the_step_numbers_is_told_and_left_out(
    given: dict[str, int], tmp_path: Path
) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text(metrics_csv(jumping()))
    (run,), told = read(file, model="m", batch=1, **given)
    assert run.seconds / run.iterations == pytest.approx(0.25)
    assert run.iterations <= 118 * 20
    (line,) = [t for t in told if "jump" in t]
    assert line.startswith(f"{file}: line 48: 899,100 iterations in 5 s would be")


def test_a_jump_within_the_warm_up_does_not_end_it(tmp_path: Path) -> None:
    moments = [(n + (10_000 if n > 3 else 0), n * 0.25 + min(n, 60) * 0.25) for n in range(400)]
    file = tmp_path / "metrics.csv"
    file.write_text(metrics_csv(moments))
    (run,), _ = read(file, model="m", batch=1, warm_up=60)
    assert run.seconds / run.iterations == pytest.approx(0.25)


def test_after_a_jump_the_whole_run_is_unknown(tmp_path: Path) -> None:
    text = samples.caffe_log().replace("max_iter: 1500", "max_iter: 450000000")
    text = re.sub(r"Iteration (1[0-5]\d\d)(?=, loss)", lambda m: f"Iteration 90{m[1]}", text)
    runs, told = read(LOGS["caffe"].write(tmp_path, text.encode()))
    run = next(run for run in runs if run.phase == "training")
    assert run.seconds / run.iterations == pytest.approx(STEADY_S, rel=0.004)
    assert run.total_s is None
    assert re.search(r"line \d+: 900,?020 iterations .* times as fast as usual", told[0])
    assert re.search(r"line \d+: the time of the whole run is unknown", told[1])


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_step_numbers_that_begin_to_count_something_else_are_refused(
    share: float, tmp_path: Path
) -> None:
    # As when the numbers of the last part are multiplied by a thousand.
    text = samples.caffe_log().replace("max_iter: 1500", "max_iter: 450000000")
    text = re.sub(
        r"Iteration (\d+)(?=, loss)",
        lambda m: f"Iteration {m[1]}{'000' * (int(m[1]) > 1500 * (1 - share))}",
        text,
    )
    file = LOGS["caffe"].write(tmp_path, text.encode())
    with pytest.raises(InvalidInput, match="does not show how long an iteration takes"):
        read(file)


def test_iterations_beyond_the_planned_end_are_left_out(tmp_path: Path) -> None:
    text = samples.caffe_log().replace("Iteration 900, loss", "Iteration 900000, loss")
    runs, told = read(LOGS["caffe"].write(tmp_path, text.encode()))
    run = next(run for run in runs if run.phase == "training")
    assert run.seconds / run.iterations == pytest.approx(STEADY_S, rel=0.004)
    number = 1 + next(n for n, x in enumerate(text.splitlines()) if "Iteration 900000" in x)
    assert f"line {number}: iteration 900000 is beyond the max_iter of 1500" in " ".join(told)


def test_times_in_bursts_are_refused(tmp_path: Path) -> None:
    # The host runs ahead for nine steps and waits for the GPU in the tenth.
    moments = [(n, (n // 10) * 2.5 + (n % 10) * 0.002) for n in range(600)]
    file = tmp_path / "metrics.csv"
    file.write_text(metrics_csv(moments))
    with pytest.raises(InvalidInput, match=r"line 3: \d+ of \d+ stretches .* ten times the usual"):
        read(file, model="m", batch=1)


def test_many_fast_stretches_are_no_jumps(tmp_path: Path) -> None:
    moments = [(n, (n - n // 4) * 0.25 + (n // 4) * 0.001) for n in range(600)]
    file = tmp_path / "metrics.csv"
    file.write_text(metrics_csv(moments))
    with pytest.raises(InvalidInput, match=r"stretches .* took less than a tenth of the usual"):
        read(file, model="m", batch=1)


def test_a_clock_that_was_set_ahead_leaves_the_whole_unknown(tmp_path: Path) -> None:
    lines = caffe_log(32, 500).splitlines(keepends=True)
    middle = next(n for n, line in enumerate(lines) if "Iteration 240, loss" in line)
    later = [line.replace("I1102 10:", "I1102 13:") for line in lines[middle:]]
    file = tmp_path / "train.log"
    file.write_text("".join([*lines[:middle], *later]))
    (run,), told = read(file)
    assert run.total_s is None
    assert run.seconds / run.iterations == pytest.approx(LAW[1] + 32 * LAW[2], rel=0.01)
    assert any("a pause, left out" in t for t in told)
    assert any("the time of the whole run is unknown" in t for t in told)


def test_refused_files_of_a_folder_are_all_named(logs: Path) -> None:
    for name in ("b8-i100.log", "b64-i900.log"):
        (logs / name).write_text(samples.CAFFE_HEAD)
    with pytest.raises(InvalidInput) as refused:
        read(logs)
    message = str(refused.value)
    assert message.startswith("2 of 28 files were refused: ")
    assert message.count("has no line of an iteration") == 2


@pytest.mark.parametrize(
    ("totals", "why"),
    [
        ({"total_s": 5.0}, "total_iterations given with it"),
        ({"total_s": 0.0, "total_iterations": 9}, "must be above 0"),
        ({"total_s": float("nan"), "total_iterations": 9}, "total_s is nan"),
        ({"testing_s": -1.0}, "testing_s is -1.0"),
        ({"total_iterations": 0}, "total_iterations is 0"),
        (
            {"total_s": 5.0, "total_iterations": 9, "training_s": 4.0, "testing_s": 2.0},
            "6 s together, are more than total_s, 5 s",
        ),
    ],
)
def test_impossible_whole_times_are_refused(totals: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(why)):
        check(Run("m", 1, 9, 1.0, **totals))
