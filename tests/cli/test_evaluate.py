"""`wavecast evaluate`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from shell import WIDTHS, run, shown

import wavecast
from wavecast.analysis.evaluation import evaluate, measured_steps
from wavecast.report.results.evaluations import evaluation_view
from wavecast.report.views import text_of

DCGAN = Path(__file__).parents[2] / "examples" / "traces" / "dcgan-b64.json.gz"


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same step, as if an A100 had taken the same time."""
    trace = wavecast.load_trace(DCGAN)
    assert trace.measurement is not None
    path = tmp_path_factory.mktemp("traces") / "a100.json.gz"
    replace(trace, measurement=replace(trace.measurement, gpu="NVIDIA A100-SXM4-40GB")).save(path)
    return path


def test_pairs_are_shown_as_text_json_and_a_page(elsewhere: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = run("evaluate", DCGAN, elsewhere, "--json", "--html", page)
    assert done.code == 0
    found = json.loads(done.out)
    assert found["schema"] == "wavecast/evaluate/1"
    origins = [(pair["model"], pair["origin"]) for pair in found["pairs"]]
    assert origins == [("dcgan-b64", "h200-sxm"), ("dcgan-b64", "a100-sxm-40gb")]
    ratio = wavecast.device("h200-sxm").memory_bytes_per_s / 1.555e12
    assert found["pairs"][0]["bandwidth_error"] == pytest.approx(ratio - 1, rel=1e-3)
    text = page.read_text(encoding="utf-8")
    assert text.count('class="bar"') > 20
    assert "2 pairs" in text
    pairs = text[text.index('id="pairs"') : text.index('id="steps"')]
    assert pairs.count('class="bar"') == 2 * len(origins)  # measured and predicted


def test_tables_fit_every_terminal(elsewhere: Path) -> None:
    traces = [("", str(path), wavecast.load_trace(path)) for path in (DCGAN, elsewhere)]
    found = evaluate(measured_steps(traces))
    for width in WIDTHS:
        lines = shown(text_of(evaluation_view(found), width), width).splitlines()
        assert max(map(len, lines)) <= width
        assert any("convolution" in line for line in lines)


def test_a_step_that_was_not_measured_is_refused(tmp_path: Path) -> None:
    traced = tmp_path / "traced.json.gz"
    replace(wavecast.load_trace(DCGAN), measurement=None).save(traced)
    done = run("evaluate", f"dcgan={traced}", DCGAN)
    assert done.code == 1
    assert "was not measured" in done.err
