"""A real Ray cluster on this machine: slow to start, so what can be is tested without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from shell import run

pytest.importorskip("sqlalchemy", reason="needs wavecast[runs]")
pytest.importorskip("ray", reason="needs wavecast[cluster]")

from wavecast.campaigns.ray_workers import connect_ray
from wavecast.errors import WavecastError

ROOT = Path(__file__).parents[2]
CAMPAIGN = """
[[predict]]
targets = ["a3c"]
batches = [1]
gpus = ["l4", "t4"]

[[layers]]
kind = "linear"
count = 4
gpus = ["cpu"]

[[runs]]
models = ["a3c"]
batches = [1]
iterations = [1]
gpus = ["h100-sxm-80gb"]
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return {
        **kept,
        "PYTHONPATH": str(ROOT / "src"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }


def wavecast(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "wavecast", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("address", "told"), [("local", "less busy"), ("nowhere:1", "ray start --head")]
)
def test_a_cluster_that_does_not_start_is_one_line(
    address: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise Exception("The current node timed out during startup.\nMore lines.")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, about its future releases
        import ray
    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(WavecastError, match=told) as refused:
        connect_ray(address)
    assert "timed out" in str(refused.value)
    assert "More" not in str(refused.value)


def test_a_campaign_runs_on_a_ray_cluster(tmp_path: Path, environment: dict[str, str]) -> None:
    file, store = tmp_path / "small.toml", str(tmp_path / "s.sqlite")
    file.write_text(CAMPAIGN)
    words = ("campaign", "run", str(file), "--store", store, "--json")
    ran = wavecast(environment, *words, "--ray", "local", "--patience", "0")
    assert ran.returncode == 1, ran.stderr  # no node has an H100
    found = json.loads(ran.stdout)
    assert (found["done"], found["new"], found["failed"]) == (6, 6, {})
    assert found["unplaced"] == {"h100-sxm-80gb": 1}
    # The same file runs without Ray, and what is stored is not run again.
    again = run(*words, "--processes", "1")
    assert json.loads(again.out)["new"] == 0


@pytest.mark.slow
def test_searches_find_the_same_on_a_ray_cluster(environment: dict[str, str]) -> None:
    gpt = "gpt --layers 2 --hidden 64 --heads 4 --vocab 64 --seq 16".split()
    for words in (
        ("choose", "a3c", "--gpu", "l4", "--gpu", "t4", "--samples", "1e6", "--json"),
        ("parallelize", *gpt, *"--gpu h100-sxm-80gb --gpus 4 --global-batch 8 --json".split()),
    ):
        here, there = run(*words), wavecast(environment, *words, "--ray", "local")
        assert there.returncode == 0, there.stderr
        one, other = json.loads(here.out), json.loads(there.stdout)
        if words[0] == "choose":
            assert one == other
        else:
            assert one[:5] == other[:5]
