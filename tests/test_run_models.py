"""What docs/runs.md says of our runs and layers is what benchmarks.run_models computes."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from benchmarks import run_grid, run_models
from wavecast.regression.least_squares import Method

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")


def test_the_grid_was_run_in_full() -> None:
    for net in run_grid.NETS:
        runs = run_models.measured_runs(net)
        points = {(run.batch, run.iterations) for run in runs}
        assert points == {(b, i) for b in run_grid.BATCHES for i in run_grid.ITERATIONS}
        assert len(runs) == 160
        assert [len(run_models.seen(runs, count)) for count in (6, 12, 20)] == [6, 12, 20]
        assert len(run_models.unseen(runs)) == 140


@pytest.mark.parametrize("net", run_grid.NETS)
def test_a_plane_meets_all_runs_within_three_percent(net: str) -> None:
    full, *splits = run_models.errors(run_models.measured_runs(net), Method.RELATIVE_NON_NEGATIVE)
    assert full <= 3.0
    assert max(splits) <= 6.43, "the worst that the paper prints"


def test_the_page_has_the_tables_that_are_computed() -> None:
    for name in ("end to end", "end to end with start-up"):
        assert run_models.TABLES[name]() in PAGE


def test_layers_of_one_net_predict_the_others_within_the_papers_bounds() -> None:
    table = run_models.per_layer()
    assert table in PAGE
    mean, worst = map(float, re.findall(r"mean ([\d.]+)%, worst ([\d.]+)%", table)[-1])
    assert mean <= 10
    assert worst <= 23


def test_the_example_is_part_of_what_was_measured() -> None:
    runs = {(r.batch, r.iterations): r.seconds for r in run_models.measured_runs("vgg16")}
    with (ROOT / "examples" / "runs.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20
    for row in rows:
        assert float(row["seconds"]) == runs[int(row["batch"]), int(row["iterations"])]
