"""`wavecast choose`, and whole trainings in `predict` and `scale`: tables, JSON and limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made import call, mm, relu
from shell import run, run_in_terminal

from wavecast.traces.step import Allocation, Phase, Role, Trace

pytest.importorskip("rich")


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """A step that runs on GPUs with more than 20 GB."""
    calls = (
        call(mm(8192, 4096, 4096), module="net.block.0"),
        call(mm(4096, 8192, 4096), Phase.BACKWARD, "net.block.1"),
        call(relu(4096, 4096), Phase.OPTIMIZER),
    )
    memory = (Allocation(20 << 30, None, None, Role.PARAMETER),)
    path = tmp_path / "net.json.gz"
    Trace(calls, samples=64, allocations=memory).save(path)
    return path


def chosen(*arguments: object) -> Any:
    done = run("choose", *arguments, "--json")
    assert (done.code, done.err) == (0, ""), done.err
    return json.loads(done.out)


def test_the_cheapest_is_first_and_what_does_not_fit_is_apart(net: Path) -> None:
    record = chosen(net)
    costs = [row["training"]["usd"]["value"] for row in record["ranked"]]
    assert costs == sorted(costs)
    assert len(costs) > 15
    assert record["ranked"][0]["training"]["steps"] == 15_625  # a million samples
    small = {row["gpu"]: row["reason"] for row in record["impossible"]}
    assert small["t4"].startswith("does not fit: needs 20")
    assert "a100-sxm-80gb" in {row["gpu"] for row in record["ranked"]}
    assert record["verdict"].startswith(f"The cheapest is {record['ranked'][0]['gpu']} at ")


def test_the_fastest_is_another(net: Path) -> None:
    times = [row["training"]["seconds"]["value"] for row in chosen(net, "--by", "time")["ranked"]]
    assert times == sorted(times)


def test_both_begins_with_the_front(net: Path) -> None:
    front = [row["on_front"] for row in chosen(net, "--by", "both")["ranked"]]
    assert front == sorted(front, reverse=True)
    assert 1 <= sum(front) < len(front)


def test_limits_divide_the_choices(net: Path) -> None:
    length = ("--iterations", 1e6)
    free = chosen(net, *length)["ranked"]
    middle = free[len(free) // 2]["training"]["usd"]["value"]
    record = chosen(net, *length, "--budget", middle)
    assert len(record["ranked"]) == len(free) // 2 + 1
    assert {row["budget"] for row in record["beyond_limits"]} == {"missed"}
    nothing = chosen(net, *length, "--deadline", "1s")
    assert nothing["ranked"] == []
    assert nothing["verdict"].startswith("Nothing keeps the limits. The nearest is ")


def test_named_gpus_need_no_price_and_prices_can_be_given(net: Path) -> None:
    record = chosen(net, "--gpu", "rtx-3090-ti", "--gpu", "l4")
    prices = {row["gpu"]: row["training"]["usd"] for row in record["ranked"]}
    assert prices["rtx-3090-ti"] is None
    record = chosen(net, "--gpu", "rtx-3090-ti", "--gpu", "l4", "--price", "rtx-3090-ti=0.01")
    assert record["ranked"][0]["gpu"] == "rtx-3090-ti"
    assert record["ranked"][0]["training"]["offer"]["provider"] == "yours"


def test_bought_gpus_compete_with_rented_ones(net: Path) -> None:
    buying = ("--buy", "rtx-4090=2500", "--utilisation", "0.8", "--power-price", "0.3")
    rows = chosen(net, *buying, "--gpu", "rtx-4090", "--gpu", "l4")["ranked"]
    offers = {row["gpu"]: row["training"]["offer"] for row in rows}
    assert offers["rtx-4090"]["provider"] == "bought"
    hourly = 2500 / (4 * 8766 * 0.8) + 0.45 * 0.3
    assert offers["rtx-4090"]["usd_per_hour"] == pytest.approx(hourly)


def test_providers_and_spot_decide_the_offers(net: Path) -> None:
    rows = chosen(net, "--providers", "aws,gcp")["ranked"]
    assert {row["training"]["offer"]["provider"] for row in rows} == {"aws", "gcp"}
    assert not any(row["training"]["offer"]["is_spot"] for row in rows)
    rows = chosen(net, "--providers", "aws,gcp", "--spot")["ranked"]
    assert any(row["training"]["offer"]["is_spot"] for row in rows)


def test_the_table_says_why_and_fits_a_terminal(net: Path) -> None:
    out = run("choose", net, "--deadline", "10h", "--iterations", "3e6").out
    assert "The cheapest is" in out
    assert "*: no other choice is both faster and cheaper" in out
    assert "does not fit: " in out
    narrow = run_in_terminal("choose", net, COLUMNS="80")
    assert max(len(line) for line in narrow.splitlines() if "─" in line) <= 80


def test_predict_tells_the_cost_of_a_training(net: Path) -> None:
    length = ("--epochs", 3, "--dataset-samples", 6400, "--checkpoint-time", "1min")
    done = run("predict", net, "--gpu", "l4", "--gpu", "t4", *length)
    assert done.code == 0
    assert "a whole training: 3 epochs of 6,400 samples" in done.out
    assert "of that on l4: checkpoints 3.00 min" in done.out
    record = json.loads(run("predict", net, "--gpu", "l4", "--gpu", "t4", *length, "--json").out)
    costs = {row["gpu"]: row["training"] for row in record["predictions"]}
    assert costs["t4"] is None  # it does not fit
    assert costs["l4"]["steps"] == 300
    assert costs["l4"]["usd"]["low"] < costs["l4"]["usd"]["value"] < costs["l4"]["usd"]["high"]


def test_several_gpus_accumulate_to_the_global_batch(net: Path) -> None:
    spread = ("--parallel", "data=2", "--gpu", "h100-sxm-80gb", "--iterations", 10)
    done = run("predict", net, *spread, "--global-batch", 512, "--json")
    [row] = json.loads(done.out)["predictions"]
    assert row["strategy"]["microbatches"] == 4
    assert row["training"]["step_samples"] == 512
    wrong = run("predict", net, *spread, "--global-batch", 100)
    assert wrong.code == 1
    assert "use a multiple of 128" in wrong.err


def test_scaling_tells_the_cost_of_a_training(net: Path) -> None:
    asked = ("scale", net, "--gpu", "h100-sxm-80gb", "--up-to", 2, "--samples", 1e6)
    assert "2 x h100-sxm-80gb" in run(*asked).out
    one, two = json.loads(run(*asked, "--json").out)["points"]
    assert one["training"]["steps"] == 2 * two["training"]["steps"] - 1
    assert two["training"]["machines"] == 1
    assert two["throughput_per_usd"] > 0


def test_modules_are_grouped_to_a_depth(net: Path) -> None:
    asked = ("predict", net, "--gpu", "l4", "--by", "module")
    assert "net.block.0" not in run(*asked).out
    assert "net.block.0" in run(*asked, "--depth", 3).out
    [row] = json.loads(run(*asked, "--depth", 1, "--json").out)["predictions"]
    assert "net" in {share["name"] for share in row["by_module"]}
