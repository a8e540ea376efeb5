"""The plugin for pytest, in small test suites of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

pytest_plugins = ("pytester",)

PLUGIN = "wavecast.integrations.pytest_plugin"
STEP = """
import torch

WIDTH = 256

def make_step():
    model = torch.nn.Linear(256, WIDTH).cuda()
    data = torch.randn(64, 256, device="cuda")
    def step():
        model(data).sum().backward()
    return step
"""
TESTS = (
    STEP
    + """
def test_no_slower(wavecast_step):
    wavecast_step.assert_no_slower(make_step, gpu=["l4", "t4"])

def test_it_fits(wavecast_step):
    wavecast_step.assert_fits(make_step, "l4")

def test_it_is_fast(wavecast_step):
    wavecast_step.assert_faster_than(make_step, "l4", 1.0)
    assert wavecast_step.predict(make_step, "l4", samples=64).throughput > 64
"""
)


@pytest.fixture(scope="module", autouse=True)
def torch_is_imported() -> None:
    """Import all that a trace needs: pytester forgets modules, and torch loads only once."""
    import wavecast

    space: dict[str, Any] = {}
    exec(STEP, space)
    wavecast.predict(wavecast.trace(space["make_step"], gpu="l4"), "l4")


def is_installed() -> bool:
    """Whether pytest loads the plugin by itself, as in an environment that is up to date."""
    return any(found.value == PLUGIN for found in metadata.entry_points(group="pytest11"))


def run(pytester: Any, *arguments: str) -> Any:
    named = () if is_installed() else ("-p", PLUGIN)
    usual = ("-p", "no:cacheprovider", "-W", "error")
    return pytester.runpytest_inprocess(*named, *usual, *arguments)


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the inner runs of pytest write baselines, though the outer one has several processes."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


def test_a_baseline_is_written_and_compared_with(pytester: Any) -> None:
    pytester.makepyfile(test_step=TESTS)
    first = run(pytester)
    first.assert_outcomes(passed=2, failed=1)
    first.stdout.fnmatch_lines(
        ["there is no baseline of test_step.test_no_slower in *; *--wavecast-update*"]
    )
    run(pytester, "--wavecast-update").assert_outcomes(passed=3)
    baseline = pytester.path / "wavecast-baseline.toml"
    kept = baseline.read_bytes()
    run(pytester).assert_outcomes(passed=3)
    run(pytester, "--wavecast-update").assert_outcomes(passed=3)
    assert baseline.read_bytes() == kept


def test_a_change_fails_with_what_changed_and_no_traceback(pytester: Any) -> None:
    pytester.makepyfile(test_step=TESTS)
    run(pytester, "--wavecast-update")
    pytester.makepyfile(test_step=TESTS.replace("WIDTH = 256", "WIDTH = 8192"))
    done = run(pytester, "-k", "slower")
    done.assert_outcomes(failed=1, deselected=2)
    done.stdout.fnmatch_lines(
        [
            "test_step.test_no_slower on l4: worse",
            "  memory * MiB -> * MiB (*%, 2% allowed): worse",
            "  ops whose GPU time changed most:",
            "test_step.test_no_slower on t4: worse",
            "pytest --wavecast-update accepts the change",
        ]
    )
    assert "Traceback" not in done.stdout.str()


def test_tolerances_names_and_files_can_be_given(pytester: Any) -> None:
    test = """
def test_mine(wavecast_step):
    wavecast_step.assert_no_slower(
        make_step, "l4", baseline="kept.toml", name="mine",
        tolerance={"time": 9.0, "memory": "900%", "gpu": None, "host": 9},
    )
"""
    pytester.makepyfile(test_step=STEP + test)
    run(pytester, "--wavecast-update").assert_outcomes(passed=1)
    assert "[steps.mine.l4]" in (pytester.path / "kept.toml").read_text()
    pytester.makepyfile(test_step=STEP.replace("WIDTH = 256", "WIDTH = 1024") + test)
    run(pytester).assert_outcomes(passed=1)


def test_limits_fail_with_the_numbers(pytester: Any) -> None:
    test = """
def test_fits(wavecast_step):
    wavecast_step.assert_fits(make_step, "l4")

def test_fast(wavecast_step):
    wavecast_step.assert_faster_than(make_step, "l4", 1e-6)
"""
    pytester.makepyfile(test_step=STEP.replace("(64, 256", "(64 << 20, 256") + test)
    done = run(pytester)
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines(
        [
            "the step does not fit on l4: it needs * MiB of * MiB",
            "the step takes * ms on l4; the limit is 0.001 ms",
        ]
    )


def test_workers_do_not_write_baselines(pytester: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    pytester.makepyfile(test_step=TESTS)
    done = run(pytester, "--wavecast-update", "-k", "slower")
    done.stdout.fnmatch_lines(["baselines are written by one process; *"])


def test_loading_it_imports_nothing_heavy() -> None:
    code = f"import json, sys, {PLUGIN}; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert not loaded & {"torch", "numpy", "rich", "typer", "wavecast.campaigns.checks"}


def test_pytest_finds_it_by_its_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"wavecast": PLUGIN}
