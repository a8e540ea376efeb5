"""`wavecast fit --runs`, `runs predict` and `design`, on made-up runs (synthetic)."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from made_runs import BETAS, grid_runs, seconds, seen
from shell import run

import wavecast
from wavecast.runs.run import Run

BETA = BETAS["AlexNet-like"]


def write(path: Path, runs: list[Run]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "batch", "iterations", "seconds", "gpu", "gpus"])
        for past in runs:
            writer.writerow(
                [past.model, past.batch, past.iterations, past.seconds, past.gpu, past.gpus]
            )
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "runs.csv", seen(grid_runs(BETA), 12))


def test_fit_shows_coefficients_and_errors(table: Path) -> None:
    done = run("fit", "--runs", table, "--model", "made")
    assert done.code == 0
    assert "batch*iterations" in done.out
    assert "relative non-negative         0.0%" in done.out
    assert "ordinary                      0.0%" in done.out
    assert "on 12 runs" in done.out
    assert "time: timed iterations, without start-up" in done.out
    record = json.loads(run("fit", "--runs", table, "--json").out)
    assert [coefficient["value"] for coefficient in record["coefficients"]] == pytest.approx(
        BETA, rel=1e-6
    )
    assert record["runs"] == len(record["errors"]) == 12


def test_fit_plots_actual_against_predicted(table: Path, tmp_path: Path) -> None:
    plot = tmp_path / "made.svg"
    assert run("fit", "--runs", table, "--plot", plot).code == 0
    root = ElementTree.parse(plot).getroot()
    assert len(root.findall("{http://www.w3.org/2000/svg}circle")) == 12
    done = run("fit", "--runs", table, "--plot", tmp_path / "made.png")
    assert (done.code, "FILE.svg" in done.err) == (1, True)


def test_predict_from_runs_gives_a_time_with_its_range(table: Path) -> None:
    asked = ("runs", "predict", "made", "--from", table, "--batch", 64, "--iterations", 90_000)
    done = run(*asked)
    assert done.code == 0
    assert "90% range" in done.out
    record = json.loads(run(*asked, "--json").out)
    assert record["seconds"] == pytest.approx(seconds(BETA, 64, 90_000), rel=1e-6)
    assert record["low_s"] <= record["seconds"] <= record["high_s"]
    ordinary = json.loads(run(*asked, "--method", "ordinary", "--json").out)
    assert ordinary["seconds"] == pytest.approx(record["seconds"], rel=1e-6)


def test_predict_from_a_store(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    place = tmp_path / "runs.db"
    with wavecast.RunStore(place) as store:
        store.add(grid_runs(BETA))
    asked = ("runs", "predict", "made", "--batch", 64, "--iterations", 1000, "--json", "--from")
    record = json.loads(run(*asked, place).out)
    own = json.loads(run(*asked, "runs", env={"WAVECAST_RUNS": str(place)}).out)
    assert record["seconds"] == own["seconds"] == pytest.approx(seconds(BETA, 64, 1000), rel=1e-6)
    done = run("runs", "predict", "vgg", "--from", place, "--batch", 64, "--iterations", 1000)
    assert (done.code, "has no run of vgg" in done.err) == (1, True)


def test_predict_more_gpus_says_which_law_and_why(tmp_path: Path) -> None:
    runs = [
        Run(
            "made",
            batch,
            10,
            10 * (0.01 + 0.004 * batch / gpus + 0.02 * (gpus - 1) / gpus),
            gpus=gpus,
        )
        for batch in (32, 64)
        for gpus in (1, 2, 3)
    ]
    table = write(tmp_path / "gpus.csv", runs)
    asked = ("runs", "predict", "--from", table, "--batch", 64, "--iterations", 100, "--gpus", 4)
    done = run(*asked)
    assert done.code == 0
    assert "fitted without them" in done.out
    record = json.loads(run(*asked, "--json").out)
    assert record["seconds"] == pytest.approx(100 * (0.01 + 0.064 + 0.015))
    assert record["law"] in {trial["law"] for trial in record["laws"]}


def test_predict_on_a_stronger_gpu(tmp_path: Path) -> None:
    gpus = {"t4": 2.0, "v100-sxm-16gb": 1.0}
    runs = [
        Run("made", batch, 10, batch * scale, gpu=name)
        for batch in (32, 64, 96)
        for name, scale in gpus.items()
    ]
    table = write(tmp_path / "power.csv", runs)
    asked = (
        "runs",
        "predict",
        "--from",
        table,
        "--batch",
        64,
        "--iterations",
        10,
        "--json",
        "--gpu",
    )
    record = json.loads(run(*asked, "a100-sxm-40gb").out)
    assert 0 < record["seconds"] < 64


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--batch", 64], "give the iterations to predict for"),
        (["--batch", 64, "--iterations", 0], "at least 1"),
        (["--batch", 64, "--iterations", 10, "--gpus", 4], "every run has gpus 1"),
        (["--gpus", 4, "--gpu", "l4"], "every run has gpus 1: add runs with another"),
        (["--batch", 64, "--iterations", 10, "--time", "half"], "iterations or total, not"),
        (["--batch", 64, "--iterations", 10, "--time", "total"], "12 of 12 runs do not say"),
        (["--batch", 64, "--iterations", 10, "--law", "--time", "total"], "leave --time out"),
        (["--batch", 64, "--iterations", 10, "--method", "best"], "a method is one of"),
        (["--batch", 64, "--iterations", 10, "--phase", "testing"], "no run of testing"),
        (
            ["--batch", 64, "--iterations", 10, "--phase", "tests"],
            'training or testing, not "tests"',
        ),
        (["--batch", 64, "--iterations", 10, "--gpus", 0], "every run has gpus 1"),
        (["--batch", 64, "--iterations", 10, "--gpus", 4, "--method", "ordinary"], "--method out"),
    ],
)
def test_what_cannot_be_predicted_is_one_line(table: Path, more: list[object], said: str) -> None:
    done = run("runs", "predict", "made", "--from", table, *more)
    assert done.code == 1
    assert said in done.err
    assert done.err.count("\n") == 1


def test_a_model_that_is_not_there_is_refused_with_those_that_are(table: Path) -> None:
    done = run("runs", "predict", "vgg", "--from", table, "--batch", 8, "--iterations", 10)
    assert (done.code, "has no run of vgg; it has made" in done.err) == (1, True)


def test_fit_wants_runs_or_layers(table: Path, tmp_path: Path) -> None:
    assert run("fit").code == 2
    done = run("fit", table, "--runs", table)
    assert (done.code, "--runs fits past runs" in done.err) == (1, True)


GUESS = ("--startup", 2, "--iteration", 0.02, "--sample", 0.002)


def test_design_says_which_runs_to_make() -> None:
    asked = ("design", "--batches", "8,16,32", "--iterations", "100,200,400", "--budget", 120)
    done = run(*asked, *GUESS)
    assert done.code == 0
    assert "D-efficiency" in done.out
    record = json.loads(run(*asked, *GUESS, "--criterion", "A", "--most", 5, "--json").out)
    assert record["criterion"] == "A"
    assert len(record["runs"]) == 5
    assert record["cost_s"] == pytest.approx(sum(chosen["seconds"] for chosen in record["runs"]))


def test_design_knows_costs_from_past_runs(table: Path) -> None:
    asked = ("design", "--batches", "8,16", "--iterations", "100,200,300", "--budget", 60)
    record = json.loads(run(*asked, "--from", table, "--json").out)
    first = record["runs"][0]
    assert first["seconds"] == pytest.approx(seconds(BETA, first["batch"], first["iterations"]))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "say how long a run takes"),
        (["--sample", "0.1", "--gpus", "one"], "--gpus takes whole numbers"),
        (["--sample", "0.1"], "need 5 runs"),
    ],
)
def test_a_design_without_costs_or_budget_is_refused(more: list[str], said: str) -> None:
    done = run("design", "--batches", "8,16", "--iterations", "100,200,300", "--budget", 1, *more)
    assert done.code == 1
    assert said in done.err


def test_fit_shows_the_papers_fit_beside_the_default(table: Path) -> None:
    made = json.loads(run("fit", "--runs", table, "--model", "made", "--json").out)
    (other,) = made["other_fits"]
    assert (made["method"], other["method"]) == ("relative non-negative", "ordinary")
    assert (made["time"], other["runs"]) == ("iterations", 12)
    assert made["longest_mape"] == pytest.approx(0, abs=1e-6)
    asked = run("fit", "--runs", table, "--model", "made", "--method", "ordinary", "--json")
    turned = json.loads(asked.out)
    assert turned["method"] == "ordinary"
    assert turned["other_fits"][0]["method"] == "relative non-negative"


def test_runs_that_say_the_whole_time_are_learned_whole(tmp_path: Path) -> None:
    lines = ["model,batch,iterations,seconds,total_iterations,total_s"]
    for batch in (8, 16, 32):
        for length in (100, 200, 300):
            step_s = 0.01 + 0.001 * batch
            lines.append(
                f"net,{batch},{length},{length * step_s},{length + 50},{7 + (length + 50) * step_s}"
            )
    file = tmp_path / "runs.csv"
    file.write_text("\n".join(lines) + "\n")
    whole = run("runs", "predict", "net", "--from", file, "--batch", 64, "--iterations", 1000)
    assert "81.0 s, 90% range" in whole.out
    assert "time: whole runs, with start-up" in whole.out
    question = ["--from", file, "--batch", 64, "--iterations", 1000, "--json"]
    seconds = [
        json.loads(run("runs", "predict", "net", *question, *more).out)["seconds"]
        for more in ([], ["--time", "iterations"])
    ]
    assert seconds == pytest.approx([81, 74])


def test_all_four_axes_are_asked_for_at_once(tmp_path: Path) -> None:
    lines = ["model,batch,iterations,seconds,gpu,gpus,inner_modules"]
    for name, power in (("t4", 8.1), ("v100-sxm-16gb", 15.7)):
        for batch in (32, 64, 96):
            for gpus in (1, 2, 3):
                for modules in (3, 4, 5):
                    step_s = 0.01 + 0.04 * batch * modules / (gpus * power)
                    step_s += 0.02 * (gpus - 1) / gpus
                    lines.append(f"net,{batch},10,{10 * step_s},{name},{gpus},{modules}")
    file = tmp_path / "runs.csv"
    file.write_text("\n".join(lines) + "\n")
    beyond = ["--batch", 256, "--gpus", 8, "--gpu", "a100-sxm-40gb", "--inner-modules", 9]
    done = run("runs", "predict", "net", "--from", file, "-n", 10, *beyond, "--json")
    answer = json.loads(done.out)
    assert answer["axes"] == ["gpus", "power", "inner_modules", "batch"]
    truth_s = 10 * (0.01 + 0.04 * 256 * 9 / (8 * 19.5) + 0.02 * 7 / 8)
    assert answer["seconds"] == pytest.approx(truth_s, rel=0.02)
    alone = ["--batch", 256, "--gpus", 2, "--gpu", "t4", "--inner-modules", 4]
    done = run("runs", "predict", "net", "--from", file, "-n", 10, *alone)
    assert "time: timed iterations" in done.out
