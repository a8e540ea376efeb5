"""Options that have an effect, in tables and in JSON, and the exit code of an incomplete answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made import call, mm, tensor, trace
from shell import run

import wavecast
from wavecast.traces.step import Op

SECRET = Op("mine.secret.default", (tensor(512, 512),), (tensor(512, 512),))
"""An op of 2 MiB that nobody can predict."""


def record(*arguments: object) -> Any:
    done = run(*arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.fixture
def hidden(tmp_path: Path) -> Path:
    """A step of which nobody can predict the larger part."""
    path = tmp_path / "hidden.json.gz"
    trace(call(mm()), call(SECRET), samples=4).save(path)
    return path


@pytest.mark.parametrize(("by", "other"), [("op", "module"), ("module", "op")])
def test_json_has_the_breakdown_that_was_asked_for(saved: Path, by: str, other: str) -> None:
    both = record("predict", saved, "--gpu", "l4")["predictions"][0]
    one = record("predict", saved, "--gpu", "l4", "--by", by)["predictions"][0]
    assert one[f"by_{by}"] == both[f"by_{by}"]
    assert f"by_{other}" in both
    assert f"by_{other}" not in one


def test_a_profile_follows_origin_and_precision(folder: Path) -> None:
    asked = ("profile", "measured.json.gz", "--gpu", "a100-sxm-80gb")
    [plain] = record(*asked)
    [from_v100] = record(*asked, "--origin", "v100-sxm-16gb")
    [half] = record(*asked, "--precision", "bf16")
    assert from_v100["gpu_s"] > plain["gpu_s"], "6 ms on a V100 are more work than on a T4"
    assert half["gpu_s"] < plain["gpu_s"]


def test_json_lists_as_many_kernels_as_were_asked_for(saved: Path) -> None:
    asked = ("profile", saved, "--gpu", "l4")
    everything = record(*asked)[0]["kernels"]
    assert len(everything) > 1
    assert record(*asked, "--kernels", 1)[0]["kernels"] == everything[:1]
    assert "longest ops" not in run(*asked, "--kernels", 0).out


def test_a_name_beside_all_is_predicted_too(saved: Path, folder: Path) -> None:
    (folder / "mine.toml").write_text((folder / "in_gb.toml").read_text().replace("16", "16e9", 1))
    rows = record("predict", saved, "--gpu", "all", "--gpu", "mine.toml")["predictions"]
    assert {row["gpu"] for row in rows} == {gpu.id for gpu in wavecast.devices()} | {"mine"}


def test_what_is_mostly_unknown_has_an_exit_code_of_its_own(hidden: Path) -> None:
    done = run("predict", hidden, "--gpu", "l4", "--gpu", "t4")
    assert done.code == 3
    assert "not ranked: the ops without a prediction are more than 20% of the step" in done.out
    assert "98% of its bytes" in done.out
    as_json = run("predict", hidden, "--gpu", "all", "--json")
    assert as_json.code == 3
    rows = json.loads(as_json.out)["predictions"]
    assert [row["gpu"] for row in rows] == [gpu.id for gpu in wavecast.devices()], "no ranking"
    assert not any(row["comparable"] for row in rows)
    assert rows[0]["unpredicted_share"] == pytest.approx(2048 / 2096)


def test_so_have_a_profile_and_a_larger_batch(hidden: Path, tmp_path: Path) -> None:
    done = run("profile", hidden, "--gpu", "l4", "--gpu", "t4")
    assert done.code == 3
    assert (
        "ops without a prediction on t4, counted as 0 s: mine.secret.default (1 call)" in done.out
    )
    assert "/ l4" in done.out
    assert " ? " in next(f"{line} " for line in done.out.splitlines() if line.startswith("step"))
    paths = [tmp_path / f"b{batch}.json.gz" for batch in (8, 16, 32)]
    for batch, path in zip((8, 16, 32), paths, strict=True):
        trace(call(mm(batch << 8)), call(SECRET), samples=batch).save(path)
    done = run("extrapolate", *paths, "--batch", 64, "--gpu", "l4")
    assert done.code == 3
    assert "ops without a prediction, counted as 0 s: mine.secret.default (1 call)" in done.out
    [row] = json.loads(run("extrapolate", *paths, "--batch", 64, "--gpu", "l4", "--json").out)
    assert 0.2 < row["unpredicted_share"] < 1


def test_a_little_that_is_unknown_is_no_reason_to_fail(saved: Path) -> None:
    done = run("predict", saved, "--gpu", "l4")
    assert done.code == 0
    assert "not predicted" not in done.out.replace("without a prediction", "")
    [row] = record("predict", saved, "--gpu", "l4")["predictions"]
    assert 0 < row["unpredicted_share"] < 0.02


GROWING = """
import torch
def make_step(batch=4):
    print("traced", batch)
    data = torch.randn(batch, 1 << 20, device="cuda", requires_grad=True)
    return lambda: data.square().sum().backward()
"""


def test_the_largest_batch_on_all_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "growing.py"
    path.write_text(GROWING)
    some = tuple(map(wavecast.device, ("t4", "l4", "p4")))
    monkeypatch.setattr(wavecast, "devices", lambda: some)
    done = run("max-batch", f"{path}:make_step", "--gpu", "all", "--json")
    rows = json.loads(done.out)
    assert [row["gpu"] for row in rows] == ["t4", "l4", "p4"]
    assert rows[1]["batch"] > rows[0]["batch"] > rows[2]["batch"] > 0
    traced = [line for line in done.err.splitlines() if line.startswith("traced")]
    assert len(traced) == len(set(traced)), "a step without attention is traced once for all GPUs"


def test_an_estimate_of_past_runs_comes_from_the_own_store(folder: Path) -> None:
    pytest.importorskip("sqlalchemy")
    own = {"WAVECAST_RUNS": str(folder / "runs.db")}
    assert run("runs", "add", "runs.csv", env=own).code == 0
    done = run("runs", "predict", "made", "-b", 64, "-n", 10, "--json", env=own)
    assert json.loads(done.out)["seconds"] == pytest.approx(1 + 10 * 0.074, rel=1e-3)


def test_help_says_what_is_shared_with_predict() -> None:
    for command in ("memory", "fits", "max-batch"):
        assert 'as for "wavecast predict"' in " ".join(run(command, "--help").out.split())
    assert "--from" not in run("predict", "--help").out
    assert "The exit code is 0" in " ".join(run("fits", "--help").out.split())
