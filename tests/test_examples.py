"""The examples run, and the documents show what they print."""

from __future__ import annotations

import importlib
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TRACES = ROOT / "examples" / "traces"
MADE = re.compile(r"<!-- output: python -m (examples\.\w+) -->\n```text\n(.*?)```", re.DOTALL)
PAPERS_SPEEDUP = 1.1
"""The speed-up of a V100 over a 2080 Ti for DCGAN: the second case study of Yu et al., ATC 2021."""
SHOWN = [
    pytest.param(module, shown, id=f"{page.name}: {module}")
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for module, shown in MADE.findall(page.read_text(encoding="utf-8"))
]


def example(name: str) -> Any:
    return importlib.import_module(f"examples.{name}")


def ran(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a script from another folder, as a reader might."""
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT.parent,
    )


@pytest.mark.parametrize(("module", "shown"), SHOWN)
def test_the_documents_show_what_an_example_prints(
    module: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    importlib.import_module(module).main()
    assert capsys.readouterr().out.rstrip() == shown.rstrip(), "run make outputs"


def test_both_case_studies_are_shown() -> None:
    assert {param.values[0] for param in SHOWN} == {
        "examples.rent_a_gpu",
        "examples.is_bigger_better",
    }


@pytest.mark.parametrize("name", ["rent_a_gpu", "is_bigger_better"])
def test_a_case_study_takes_your_own_traces(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    example(name).main([str(TRACES / "resnet50-b32.json.gz")])
    out = capsys.readouterr().out
    assert "measured on NVIDIA H200" in out
    assert re.search(r"^v100-sxm-16gb +\d", out, re.MULTILINE)
    assert "b=16" not in out


def test_the_gpu_to_rent_is_the_papers_at_the_papers_prices(
    capsys: pytest.CaptureFixture[str],
) -> None:
    example("rent_a_gpu").main()
    assert "at the paper's prices: t4 " in capsys.readouterr().out


def test_a_gpu_without_an_offer_is_left_out() -> None:
    assert example("rent_a_gpu").rented("rtx-2080-ti", ()) is None


@pytest.fixture
def speedups(capsys: pytest.CaptureFixture[str]) -> list[float]:
    """The speed-ups of a V100 over a 2080 Ti at both batches."""
    example("is_bigger_better").main()
    out = capsys.readouterr().out
    ratios = [float(x) for x in re.findall(r"^v100-sxm-16gb +[\d.]+ ms +([\d.]+)x", out, re.M)]
    assert len(ratios) == 2
    return ratios


def test_a_v100_is_little_better_than_a_2080_ti_as_in_the_paper(speedups: list[float]) -> None:
    assert all(1.0 < speedup < 1.3 for speedup in speedups)


def test_the_speed_up_is_as_near_to_the_papers_as_steps_are(
    speedups: list[float],
) -> None:
    assert statistics.geometric_mean(speedups) == pytest.approx(PAPERS_SPEEDUP, rel=0.15)


@pytest.mark.parametrize("name", ["rent_a_gpu", "is_bigger_better", "first_prediction"])
def test_an_example_runs_as_a_script_from_anywhere(name: str) -> None:
    if name == "first_prediction":
        pytest.importorskip("torch")
    done = ran(str(ROOT / "examples" / f"{name}.py"))
    assert done.returncode == 0, done.stderr
    assert "h100-sxm-80gb" in done.stdout


def test_habitats_listing_says_what_is_missing() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: tests/gpu runs the listing")
    done = ran(str(ROOT / "examples" / "habitat_listing.py"))
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(r"error: .*needs a GPU.*predicts without one\n", done.stderr)


@pytest.mark.gpu
def test_habitats_listing_runs() -> None:
    done = ran(str(ROOT / "examples" / "habitat_listing.py"))
    assert re.fullmatch(r"Pred\. iter\. exec\. time: \d+\.\d\d ms\n", done.stdout), done.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_are_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 80
