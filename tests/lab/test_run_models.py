"""The pages about runs and layers repeat what lab.score.run_models computes."""

from __future__ import annotations

import csv
import re

import pytest

from lab import pages
from lab.measured import run_grid
from lab.places import DOCS, ROOT
from lab.score import layer_models, net_transfers, run_models

APPENDIX = DOCS / "appendix"
WHOLE = (APPENDIX / "runs-whole.md").read_text(encoding="utf-8")
LAYERS = (APPENDIX / "runs-layers.md").read_text(encoding="utf-8")


VARIANTS = [variant.name for variant in run_grid.VARIANTS]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_grid_was_run_in_full(variant: str) -> None:
    for net in run_grid.NETS:
        runs = run_models.measured_runs(net, variant)
        points = {(run.batch, run.iterations) for run in runs}
        assert points == {(b, i) for b in run_grid.BATCHES for i in run_grid.ITERATIONS}
        assert len(runs) == 160
        assert [len(run_models.seen(runs, count)) for count in (6, 12, 20)] == [6, 12, 20]
        assert len(run_models.unseen(runs)) == 140


@pytest.mark.parametrize("variant", ["training graph tf32", "testing graph tf32"])
@pytest.mark.parametrize("net", run_grid.NETS)
def test_a_plane_meets_all_runs_within_three_percent(net: str, variant: str) -> None:
    full, *splits = run_models.errors(run_models.measured_runs(net, variant))
    assert full <= 3.0
    assert max(splits) <= 6.43, "the worst that the paper prints"


def test_noise_is_not_what_keeps_planes_from_runs() -> None:
    for variant in VARIANTS:
        for net in run_grid.NETS:
            runs = run_models.measured_runs(net, variant)
            assert run_models.noise(runs) < run_models.errors(runs)[0] / 2


@pytest.mark.slow
def test_predicted_work_in_the_place_of_the_batch_helps_where_the_batch_bends() -> None:
    runs = run_models.measured_runs("alexnet", "training graph fp32")
    plain = run_models.errors(runs)
    bent = run_models.errors(
        runs, work=lambda batch: run_models.predicted_s("alexnet", batch, "fp32", "training")
    )
    assert all(with_work < without for with_work, without in zip(bent, plain, strict=True))
    shown = " | ".join(f"{error:.2f}" for error in bent)
    assert f"| training graph fp32 | alexnet | {shown} |" in WHOLE


@pytest.mark.slow
def test_the_page_has_the_tables_that_are_computed() -> None:
    for name in ("variants", "rates"):
        assert run_models.on_the_page(name, run_models.TABLES[name]()) in WHOLE + LAYERS


@pytest.mark.slow
@pytest.mark.parametrize("precision", run_grid.LAYER_PRECISIONS)
def test_layers_of_one_net_predict_the_others_as_the_page_says(precision: str) -> None:
    table = layer_models.per_layer(precision)
    assert pages.sums(table) in LAYERS
    *_, one_net, _ = table.splitlines()
    mean, worst = map(float, re.findall(r"mean ([\d.]+)%, worst ([\d.]+)%", one_net)[3])
    published = float(re.findall(r"mean ([\d.]+)%", one_net)[0])
    assert mean < published / 3
    if precision == "tf32":
        assert (mean <= 10, worst <= 23) == (True, True), "the paper's bounds"
    else:
        assert f"{mean:g}% on average and {worst:g}% at worst" in " ".join(LAYERS.split())


def test_the_page_says_which_layers_changed_their_algorithm() -> None:
    cells_of_rows = [row.split(" | ") for row in layer_models.rates().splitlines()[2:]]
    cells = [row[-2:] for row in cells_of_rows if row[0] == "| vgg16"]
    assert any(("FFT" in small) != ("FFT" in large) for small, large in cells)


def test_the_example_is_part_of_what_was_measured() -> None:
    runs = {(r.batch, r.iterations): r.seconds for r in run_models.measured_runs("vgg16")}
    with (ROOT / "examples" / "runs.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20
    for row in rows:
        assert float(row["seconds"]) == runs[int(row["batch"]), int(row["iterations"])]


@pytest.mark.slow
@pytest.mark.parametrize("precision", net_transfers.PRECISIONS)
def test_networks_of_today_predict_each_other_as_the_pages_say(precision: str) -> None:
    table = net_transfers.table(precision)
    assert pages.sums(table) in LAYERS
    *_, convolutional, transformers = table.splitlines()
    for line in (convolutional, transformers):
        errors = re.findall(r"mean ([\d.]+)%, worst ([\d.]+)%", line)
        assert len(errors) == 4
        for mean, worst in errors[2:]:
            assert float(mean) < 10, "the paper's bound on average, with predicted work"
            assert float(worst) < 23, "the paper's bound at worst"
