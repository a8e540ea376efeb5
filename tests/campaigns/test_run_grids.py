"""Grids of whole runs: what is planned, measured, continued and judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

import wavecast
from wavecast import device
from wavecast.campaigns import run_grids
from wavecast.campaigns.progress import Progress
from wavecast.campaigns.run_grids import Start, measure_here, plan, scaled, scaled_split
from wavecast.campaigns.suite_runs import (
    _timed,
    configurations,
    predict_there,
    run,
    run_apart,
    time_again,
)
from wavecast.errors import InvalidInput, UnknownName
from wavecast.report.results.suites import suite_results
from wavecast.runs.regression.end_to_end import BATCHES, ITERATIONS, SPLITS, Split, judge
from wavecast.runs.suite_results import COLUMNS, SuiteResult, SuiteStep, read_results
from wavecast.suite import benchmark, benchmarks

small = partial(measure_here, device="cpu", image=67, width=24, hidden=16, classes=3)


def known(start: Start) -> tuple[float, Sequence[float]]:
    """A law without noise: a start-up of 2 s, and iterations linear in the batch."""
    return 2.0, [(0.02 + 0.002 * start.batch) * length for length in start.lengths]


def test_the_published_grid_has_160_runs_and_those_to_fit_start_alone() -> None:
    starts = plan(["alexnet"], BATCHES, ITERATIONS, SPLITS)
    runs = [(start.batch, length) for start in starts for length in start.lengths]
    assert sorted(runs) == sorted((b, i) for b in BATCHES for i in ITERATIONS)
    alone = {(start.batch, *start.lengths) for start in starts if len(start.lengths) == 1}
    assert alone == {(b, i) for b in BATCHES[:4] for i in ITERATIONS[:5]}
    everything = plan(["alexnet"], BATCHES, ITERATIONS, SPLITS, separate=True)
    assert len(everything) == 160


def test_a_campaign_continues_and_its_runs_can_be_read_and_judged(tmp_path: Path) -> None:
    path, starts = tmp_path / "runs.csv", plan(["alexnet"], BATCHES, ITERATIONS, SPLITS)
    run_on_h200 = partial(run_grids.run, gpu="h200-sxm", software="torch")
    run_on_h200(starts[:10], path, known)

    def must_be_new(start: Start) -> tuple[float, Sequence[float]]:
        assert start not in starts[:10]
        return known(start)

    rows = run_on_h200(starts, path, must_be_new)
    assert len(rows) == 160
    read = wavecast.read_runs(path)
    assert {(run.batch, run.iterations, run.total_s) for run in read} == {
        (row.batch, row.iterations, row.total_s) for row in rows
    }
    scores = judge(read, SPLITS)
    assert [(score.fitted, score.judged) for score in scores[:4]] == [
        *((160, 160), (6, 140), (12, 140), (20, 140)),
    ]
    assert max(score.mape for score in scores) < 1e-6
    assert [score.published for score in scores[1:4]] == [0.0318, 0.0643, 0.0301]


def test_a_step_that_fails_keeps_the_others(tmp_path: Path) -> None:
    starts = plan(["alexnet"], (8, 16), (10, 20), ())
    failures = []

    def measure(start: Start) -> tuple[float, Sequence[float]]:
        if start.batch == 16:
            raise MemoryError("full")
        return known(start)

    rows = run_grids.run(
        *(starts, tmp_path / "runs.csv", measure),
        gpu="cpu",
        software="torch",
        failed=lambda start, error: failures.append((start.batch, str(error))),
    )
    assert {row.batch for row in rows} == {8}
    assert failures == [(16, "full")]


@pytest.mark.parametrize("phase", ["training", "testing"])
def test_a_run_is_timed_at_each_length(phase: str) -> None:
    start = Start("alexnet", 1, (1, 3))
    startup_s, (first_s, last_s) = small(start, phase=phase)
    assert startup_s > 0
    assert 0 < first_s < last_s


def test_a_share_of_the_grid_keeps_the_splits() -> None:
    tenth, splits = scaled(ITERATIONS, 0.1), [scaled_split(split, 0.1) for split in SPLITS]
    assert tenth[-1] == 230
    counts = [
        sum(b <= split.batch and i <= split.iterations for b in BATCHES for i in tenth)
        for split in splits
    ]
    assert counts == [6, 12, 20]
    with pytest.raises(InvalidInput, match="share of the iterations"):
        scaled(ITERATIONS, 2)


def test_thresholds_without_larger_runs_are_refused() -> None:
    runs = [wavecast.Run("net", b, i, 1.0 + b * i) for b in (8, 16) for i in (10, 20)]
    with pytest.raises(InvalidInput, match="no run is beyond a batch of 16 and 20 iterations"):
        judge(runs, [Split(16, 20)])


# Results of the suite: one row per step, none lost and none measured twice.


WANTED = tuple(SuiteStep("resnet50", batch, "fp32") for batch in (8, 16, 32, 64))


def measured(step: SuiteStep) -> SuiteResult:
    if step.batch == 64:
        return SuiteResult(step.model, step.batch, step.precision, "t4", "oom")
    return SuiteResult(
        model=step.model,
        batch=step.batch,
        precision=step.precision,
        gpu="t4",
        status="ok",
        seconds=step.batch / 100,
        throughput_per_s=100.0,
        peak_bytes=1 << 30,
        software="torch, CUDA",
    )


def text(shown: RenderableType) -> str:
    console = Console(width=250)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


def test_every_model_is_run_at_parts_of_its_batch_in_each_precision() -> None:
    steps = configurations((), ("fp32", "bf16"), (0.5, 1.0))
    assert {step.model for step in steps} == {model.name for model in benchmarks()}
    default = benchmark("resnet50").default_batch
    own = [step for step in steps if step.model == "resnet50"]
    assert own == [
        SuiteStep("resnet50", batch, precision)
        for precision in ("fp32", "bf16")
        for batch in (default // 2, default)
    ]
    smallest = configurations((), ("fp32",), (1e-9,))
    assert all(step.batch == benchmark(step.model).smallest_batch for step in smallest)


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(UnknownName, match="resnet51"):
        configurations(("resnet51",), ("fp32",))


def test_results_are_read_as_they_were_measured(tmp_path: Path) -> None:
    path = tmp_path / "suite.csv"
    rows = run(WANTED, path, measured, gpu="t4")
    assert rows == tuple(map(measured, WANTED)) == read_results(path)
    assert rows[-1].seconds is None


def test_what_the_file_has_is_not_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "suite.csv"
    run(WANTED[:2], path, measured, gpu="t4")
    again: list[SuiteStep] = []

    def counted(step: SuiteStep) -> SuiteResult:
        again.append(step)
        return measured(step)

    reports: list[Progress] = []
    run(WANTED, path, counted, gpu="t4", progress=reports.append)
    assert again == list(WANTED[2:])
    assert [(report.done, report.total) for report in reports] == [(3, 4), (4, 4)]


def test_results_of_another_gpu_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "suite.csv"
    run(WANTED[:1], path, measured, gpu="t4")
    with pytest.raises(InvalidInput, match="has results of t4, and this GPU is l4"):
        run(WANTED, path, measured, gpu="l4")


def test_a_step_that_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "suite.csv"
    told: list[tuple[int, str]] = []

    def sometimes(step: SuiteStep) -> SuiteResult:
        if step.batch == 16:
            raise RuntimeError("CUDA error")
        return measured(step)

    with pytest.raises(RuntimeError):
        run(WANTED, path, sometimes, gpu="t4")
    rows = run(
        WANTED,
        path,
        sometimes,
        gpu="t4",
        failed=lambda step, error: told.append((step.batch, str(error))),
    )
    assert told == [(16, "CUDA error")]
    assert [row.batch for row in rows] == [8, 32, 64]
    assert {row.batch for row in run(WANTED, path, measured, gpu="t4")} == {8, 16, 32, 64}


def test_steps_of_too_few_stable_iterations_are_timed_again(tmp_path: Path) -> None:
    path = tmp_path / "suite.csv"
    counts = {8: 49, 16: 50, 32: 7}

    def sampled(step: SuiteStep) -> SuiteResult:
        return replace(measured(step), iterations=counts.get(step.batch))

    first = run(WANTED, path, sampled, gpu="t4")
    assert run(WANTED, path, sampled, gpu="t4") == first
    timed: list[int] = []

    def longer(row: SuiteResult) -> SuiteResult:
        timed.append(row.batch)
        return replace(row, seconds=1.0, iterations=60)

    rows = run(WANTED, path, sampled, gpu="t4", again=longer)
    assert timed == [8, 32]  # not what has enough, nor what did not fit
    assert [row.seconds for row in rows] == [1.0, 0.16, 1.0, None]
    assert rows == read_results(path)
    assert run(WANTED, path, sampled, gpu="t4", again=longer) == rows
    assert timed == [8, 32]


def test_a_row_says_whether_its_run_settled(tmp_path: Path) -> None:
    row = measured(WANTED[0])
    calm = _timed(row, [0.1] * 300, 1, 1)
    assert (calm.settled, calm.warm_up, calm.iterations) == (True, 0, 300)
    drifting = _timed(row, [0.1 + 0.001 * index for index in range(300)], 1, 1)
    assert (drifting.settled, drifting.warm_up, drifting.iterations) == (False, 100, 200)
    path = tmp_path / "suite.csv"
    run(WANTED[:1], path, lambda _: drifting, gpu="t4")
    assert [row.settled for row in read_results(path)] == [False]
    shown = text(suite_results("measured", [drifting], 200))
    assert "not settled" in shown
    assert "resnet50 b8 fp32" in shown
    assert "not settled" not in text(suite_results("measured", [calm], 200))


def test_a_row_that_did_not_settle_is_timed_again(tmp_path: Path) -> None:
    path = tmp_path / "suite.csv"
    restless = replace(measured(WANTED[0]), iterations=200, settled=False)
    run(WANTED[:1], path, lambda _: restless, gpu="t4")
    longer = replace(restless, seconds=0.5, settled=True)
    assert run(WANTED[:1], path, measured, gpu="t4", again=lambda _: longer) == (longer,)


def test_files_of_earlier_versions_are_read_and_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "suite.csv"
    names = COLUMNS[: COLUMNS.index("settled")]
    values = ["resnet50", "8", "fp32", "t4", "ok", "samples", "0.08", "100"]
    values += [""] * (len(names) - len(values))
    content = f"{','.join(names)}\n{','.join(values)}\n"
    path.write_text(content)
    [row] = read_results(path)
    assert (row.configuration, row.seconds, row.settled) == (WANTED[0], 0.08, None)
    with pytest.raises(InvalidInput, match="from an earlier wavecast"):
        run(WANTED, path, measured, gpu="t4")
    assert path.read_text() == content


def test_translation_counts_samples_and_tokens_beside() -> None:
    row = _timed(replace(measured(WANTED[0]), model="transformer"), [0.5] * 60, 1, 1)
    assert (row.throughput_per_s, row.tokens_per_s) == (8 / 0.5, 8 * 50 / 0.5)
    assert benchmark("transformer").unit == benchmark("gnmt").unit == "samples"
    assert "800" in text(suite_results("measured", [row], 250))
    assert "tokens" not in text(suite_results("measured", [measured(WANTED[0])], 250))


@pytest.mark.slow
def test_a_step_in_a_process_of_its_own_gives_the_same() -> None:
    step, gpu = SuiteStep("alexnet", 32, "fp32"), device("t4")
    assert run_apart(predict_there, step, gpu) == predict_there(step, gpu)


def test_what_fails_in_a_process_of_its_own_says_why() -> None:
    row = SuiteResult("no such model", 1, "fp32", "t4", "ok")
    with pytest.raises(UnknownName, match="no such model"):
        run_apart(time_again, row)
