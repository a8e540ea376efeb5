"""Grids of whole runs: what is planned, measured, continued and judged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

import wavecast
from wavecast.campaigns import run_grids
from wavecast.campaigns.run_grids import Start, measure_here, plan, scaled, scaled_split
from wavecast.errors import InvalidInput
from wavecast.runs.regression.end_to_end import BATCHES, ITERATIONS, SPLITS, Split, judge

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
