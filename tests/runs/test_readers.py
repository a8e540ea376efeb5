"""Readers of logs: what they find, and what they say of logs that are damaged."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import run_samples as samples
from run_samples import LOGS, STEADY_S, Sample, read

import wavecast
from wavecast.campaigns.suite_runs import run as run_suite
from wavecast.errors import DoubtfulInput, InvalidInput, UnknownName
from wavecast.runs.readers import find_files, iterate_runs
from wavecast.runs.readers.text import Doubts
from wavecast.runs.readers.timing import Given, find_facts
from wavecast.runs.run import Run
from wavecast.runs.suite_results import SuiteResult, SuiteStep

WRITTEN = Path(__file__).parents[1] / "samples"

every_log = pytest.mark.parametrize("sample", LOGS.values(), ids=LOGS)


def trained(runs: tuple[Run, ...]) -> Run:
    (run,) = (candidate for candidate in runs if candidate.phase == "training")
    return run


@every_log
def test_a_log_gives_its_stable_phase_without_warm_up(sample: Sample, tmp_path: Path) -> None:
    runs, told = read(sample.write(tmp_path), **sample.given)
    run = trained(runs)
    assert told == []
    assert run.batch == sample.batch
    assert run.seconds / run.iterations == pytest.approx(STEADY_S, rel=0.004)
    assert 0.85 * sample.after_warm_up < run.iterations <= sample.after_warm_up


def test_a_caffe_log_gives_its_tests_too(tmp_path: Path) -> None:
    runs, _ = read(LOGS["caffe"].write(tmp_path))
    tests = [run for run in runs if run.phase == "testing"]
    assert len(tests) == 3  # of four, the first warms up
    assert {(run.model, run.batch, run.iterations, run.gpu) for run in tests} == {
        ("AlexNet", 50, 100, "Quadro M6000")
    }
    assert [run.seconds for run in tests] == pytest.approx([12.505, 12.51, 12.515])
    place = int(tests[0].source.rsplit(" ", 1)[1])
    assert "Test net output #0" in samples.caffe_log().splitlines()[place - 1]


def test_the_batch_of_caffe_is_one_of_each_gpu_and_of_each_pass(tmp_path: Path) -> None:
    text = samples.caffe_log().replace("Using GPUs 0\n", "Using GPUs 0, 1, 2, 3\n")
    text = text.replace("display: 20\n", "display: 20\niter_size: 2\n")
    run = trained(read(LOGS["caffe"].write(tmp_path, text.encode()))[0])
    assert (run.batch, run.gpus) == (256 * 4 * 2, 4)


def test_a_caffe_log_over_new_year_is_read_on(tmp_path: Path) -> None:
    def moved(time: re.Match[str]) -> str:
        minute = int(time[1]) + 56  # ten o'clock becomes four minutes to midnight
        return f"I1231 23:{minute}" if minute < 60 else f"I0101 00:{minute - 60:02}"

    log = samples.caffe_log().replace("2016/11/02", "2016/12/31")
    text = re.sub(r"I1102 10:(\d\d)", moved, log)
    assert "I0101 00:00" in text
    run = trained(read(LOGS["caffe"].write(tmp_path, text.encode()))[0])
    assert run.seconds / run.iterations == pytest.approx(STEADY_S, rel=0.004)


def test_a_file_that_tensorboard_wrote_is_read() -> None:
    runs, told = read(WRITTEN / "events.out.tfevents.written", warm_up=0)
    # 40 marks 20 steps and 2 s apart; a validation in three of the 39 stretches.
    assert [(r.model, r.batch, r.iterations, r.seconds) for r in runs] == [
        ("resnet50", 32, 36 * 20, 72.0)
    ]
    # Its times were given to the writer, which was made later.
    assert len(told) == 1
    assert "the time of the whole run is unknown" in told[0]


def test_a_file_that_lightning_wrote_is_read() -> None:
    runs, _ = read(WRITTEN / "lightning", warm_up=0)
    assert [(r.model, r.batch, r.iterations) for r in runs] == [("tiny", 8, 95)]
    assert 0.3 < runs[0].seconds < 1


def test_a_file_that_transformers_wrote_is_read_with_a_warning() -> None:
    with pytest.warns(DoubtfulInput, match=r"trainer_state.json: log_history\[6\]: .* warm-up"):
        (run,) = wavecast.read_runs(WRITTEN / "trainer", model="bert")
    assert (run.batch, run.iterations) == (8, 40)
    assert run.seconds == pytest.approx(14.0322 - 0.1835 - 0.077)


def test_a_trainer_on_two_gpus_has_a_batch_of_both(tmp_path: Path) -> None:
    file = tmp_path / "trainer_state.json"
    file.write_text(samples.trainer_state(batch=16))
    (tmp_path / "config.json").write_text('{"_name_or_path": "bert-base-uncased"}')
    (run,), _ = read(file)
    assert (run.model, run.batch, run.iterations, run.seconds) == (
        "bert-base-uncased",
        16,
        400,
        115,
    )


def test_an_mlflow_run_is_found_below_its_store(tmp_path: Path) -> None:
    samples.write_mlflow(tmp_path / "mlruns" / "1" / "abc")
    (tmp_path / "mlruns" / "1" / "meta.yaml").write_text("experiment_id: '1'\nname: resnet\n")
    (run,), told = read(tmp_path / "mlruns")
    assert told == []
    assert (run.model, run.batch, run.precision) == ("resnet50", 32, "bf16")
    assert run.seconds / run.iterations == pytest.approx(STEADY_S, rel=0.004)
    assert "train/loss: line" in run.source


def test_a_table_gives_its_rows(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(samples.TABLE)
    first, _, third = read(file)[0]
    assert first == Run(
        "AlexNet", 32, 100, 2.5, "training", "m6000", 1, "fp32", "caffe", None, f"{file}:2"
    )
    assert (third.phase, third.gpus, third.inner_modules, third.source) == (
        "testing",
        2,
        5,
        "old.csv:7",
    )


@pytest.mark.parametrize("name", ["runs.json", "runs.jsonl", "semicolons.csv"])
def test_other_kinds_of_tables_give_the_same(name: str, tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text(samples.TABLE)
    expected, _ = read(tmp_path / "runs.csv")
    rows = [{n: getattr(run, n) for n in Run.__slots__ if n != "source"} for run in expected]
    text = {
        "runs.json": json.dumps(rows, indent=1),
        "runs.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "semicolons.csv": samples.TABLE.replace(",", ";").replace(
            "model;batch", "Network;Batch size"
        ),
    }[name]
    (tmp_path / name).write_text(text)
    runs, told = read(tmp_path / name)
    assert told == []
    assert [r.seconds for r in runs] == [2.5, 4.5, 9.25]
    assert [r.inner_modules for r in runs] == [None, None, 5]
    assert runs[0].source.startswith(str(tmp_path / name))


def test_what_is_given_goes_before_what_the_file_says(tmp_path: Path) -> None:
    run = trained(read(LOGS["caffe"].write(tmp_path), model="mine", batch=7, gpu="l4")[0])
    assert (run.model, run.batch, run.gpu) == ("mine", 7, "l4")


def test_what_nobody_says_is_asked_for(tmp_path: Path) -> None:
    file = LOGS["lightning"].write(tmp_path)
    with pytest.raises(InvalidInput, match=r"metrics.csv: .* does not say the model; give it"):
        wavecast.read_runs(file)


@pytest.mark.parametrize(
    ("settings", "gpus", "batch"),
    [
        ({"batch_size": 32}, None, 32),
        ({"batch_size": "32", "num_gpus": "4"}, None, None),
        ({"batch_size": 32}, 4, None),
        ({"global_batch_size": 256, "batch_size": 32, "world_size": 8}, None, 256),
        ({"per_device_train_batch_size": 8}, None, None),
        ({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}, 4, 64),
        ({"batch_size": 32, "accumulate_grad_batches": 2}, None, None),
        ({"batch_size": 1.5}, None, None),
    ],
)
def test_a_batch_is_believed_when_it_is_that_of_all_gpus(
    settings: dict[str, object], gpus: int | None, batch: int | None
) -> None:
    assert find_facts(settings, Given(gpus=gpus), None).batch == batch


def test_a_folder_is_searched_and_what_is_no_log_is_passed_over(tmp_path: Path) -> None:
    for sample in LOGS.values():
        sample.write(tmp_path / sample.name.split(".")[0])
    samples.write_mlflow(tmp_path / "mlruns" / "1" / "abc")
    (tmp_path / "README.md").write_text("# Runs\n")
    (tmp_path / "checkpoint-500").mkdir()
    (tmp_path / "checkpoint-500" / "trainer_state.json").write_text("{}")
    assert len(find_files(tmp_path)) == 5
    assert len(read(tmp_path, model="m", batch=8)[0]) == 5 + 3
    assert len(find_files(tmp_path, "caffe")) == 1


def test_kinds_that_nobody_knows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match='no format "wandb"; the formats are tensorboard'):
        wavecast.read_runs(tmp_path, format="wandb")
    with pytest.raises(InvalidInput, match="no file in this folder has a known format"):
        wavecast.read_runs(tmp_path)
    (tmp_path / "notes.txt").write_text("nothing\n")
    with pytest.raises(InvalidInput, match=r"notes.txt: has no known format"):
        wavecast.read_runs(tmp_path / "notes.txt")
    with pytest.raises(InvalidInput, match="there is no such file"):
        wavecast.read_runs(tmp_path / "gone.csv")
    with pytest.raises(InvalidInput, match="a run has no batch_size; you can give model"):
        wavecast.read_runs(tmp_path / "notes.txt", batch_size=3)
    with pytest.raises(InvalidInput, match="batch must be a whole number from 1 on"):
        wavecast.read_runs(tmp_path / "notes.txt", batch=0)


def test_doubts_are_warnings_and_many_of_a_kind_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(samples.TABLE + "AlexNet,32,100,2.5,training,m6000,1,fp32,caffe,,\n" * 30)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(wavecast.read_runs(file)) == 3
    assert len(caught) == 11
    assert "line 5: repeats an earlier run" in str(caught[0].message)
    assert "20 more lines like this" in str(caught[-1].message)


def test_lines_that_are_wrong_in_different_ways_are_counted_too(tmp_path: Path) -> None:
    sample = LOGS["lightning"]
    file = sample.write(tmp_path)
    with file.open("a") as log:
        log.writelines(f"{'x,' * (20 + n % 500)}x\n" for n in range(3000))
    _, told = read(file, **sample.given)
    assert len(told) == 11
    assert "2990 more lines like this: has another number of values" in told[-1]


def test_problems_that_a_file_makes_up_are_counted_too(tmp_path: Path) -> None:
    told: list[str] = []
    doubts = Doubts(tmp_path, told.append)
    for number in range(10_000):
        doubts.tell("line 1", f"problem {number}")
    doubts.close()
    assert len(told) < 100
    assert told[-1].endswith("9970 more lines like this: other problems")


def test_a_table_is_read_row_by_row(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(samples.TABLE + "AlexNet,oops\n")
    rows = iterate_runs(file)
    assert next(rows).seconds == 2.5  # before the line that is wrong


def test_results_of_the_suite_are_runs_of_their_stable_iterations(tmp_path: Path) -> None:
    wanted = (SuiteStep("resnet50", 8, "bf16"), SuiteStep("resnet50", 16, "bf16"))
    file = tmp_path / "suite.csv"

    def measured(step: SuiteStep) -> SuiteResult:
        if step.batch == 16:
            return SuiteResult(step.model, step.batch, step.precision, "t4", "oom")
        row = SuiteResult(step.model, step.batch, step.precision, "t4", "ok", seconds=0.25)
        return replace(row, iterations=60, software="torch 2.11, CUDA 13")

    run_suite(wanted, file, measured, gpu="t4")
    runs, told = read(file)
    assert runs == (
        Run("resnet50", 8, 60, 15.0, "training", "t4", 1, "bf16", "torch 2.11", source=str(file)),
    )
    assert len(told) == 1
    assert "batch 16" in told[0]
    assert "oom" in told[0]
