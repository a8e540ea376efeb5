"""Baselines: they come back as they were written, equal steps give equal files, damage is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import step

import wavecast
from wavecast.analysis.comparison import StepComparison, StepSummary, summary_of
from wavecast.campaigns.checks.baseline import (
    Baseline,
    kept,
    read_baseline,
    to_toml,
    write_baseline,
)
from wavecast.errors import InvalidInput
from wavecast.steps.prediction import Share

ODD = 'a "module" with\nlines = [x]'


@pytest.fixture(scope="module")
def summary() -> StepSummary:
    return kept(summary_of(wavecast.predict(step(), "l4", host="reference")))


def baseline(*steps: StepSummary) -> Baseline:
    return Baseline(
        steps={"mine": {each.gpu: each for each in steps}},
        software={"wavecast": "0.1.0", "torch": "2.13.0"},
        host="reference",
        usd_per_hour={"l4": 0.38},
    )


def test_a_baseline_comes_back_as_it_was_written(tmp_path: Path, summary: StepSummary) -> None:
    odd = replace(summary, gpu="t4", modules=(Share(ODD, 3, 0.001),), fits=None, samples=None)
    written = baseline(summary, odd)
    write_baseline(written, tmp_path / "base.toml")
    read = read_baseline(tmp_path / "base.toml")
    assert read == written
    assert StepComparison(read.steps["mine"]["l4"], summary).ops == ()
    write_baseline(read, tmp_path / "again.toml")
    assert (tmp_path / "again.toml").read_bytes() == (tmp_path / "base.toml").read_bytes()


times_s = st.floats(1e-9, 1e6)
parts = st.lists(
    st.builds(Share, st.text(max_size=8), st.integers(0, 10**6), times_s),
    max_size=4,
    unique_by=lambda part: part.name,
).map(tuple)
summaries = st.builds(
    StepSummary,
    gpu=st.just("l4"),
    seconds=times_s,
    gpu_s=times_s,
    host_s=times_s,
    bound_by=st.sampled_from(["gpu", "host"]),
    kernels=st.integers(0, 10**6),
    syncs=st.integers(0, 100),
    needed_bytes=st.none() | st.integers(0, 1 << 45),
    peak_bytes=st.none() | st.integers(0, 1 << 45),
    fits=st.none() | st.booleans(),
    samples=st.none() | st.integers(1, 10**9),
    unit=st.sampled_from(["samples", "tokens"]),
    unpredicted_share=st.floats(0, 1),
    ops=parts,
    modules=parts,
    types=parts,
    memory=st.dictionaries(st.text(max_size=8), st.integers(0, 1 << 45), max_size=3),
)


@given(summary=summaries, target=st.text(max_size=8), price=st.floats(0.01, 1000))
@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_any_baseline_comes_back_as_it_was_kept(
    tmp_path: Path, summary: StepSummary, target: str, price: float
) -> None:
    baseline = Baseline({target: {"l4": summary}}, {"torch": "2"}, "a host", {"l4": price})
    write_baseline(baseline, tmp_path / "any.toml")
    again = read_baseline(tmp_path / "any.toml")
    assert again == replace(baseline, steps={target: {"l4": kept(summary)}})
    assert kept(kept(summary)) == kept(summary)


def test_the_order_of_steps_does_not_matter(summary: StepSummary) -> None:
    other = replace(summary, gpu="a100-sxm-80gb")
    assert to_toml(baseline(summary, other)) == to_toml(baseline(other, summary))


def test_one_line_changes_if_one_op_does(summary: StepSummary) -> None:
    ops = tuple(replace(part, calls=part.calls + (part.name == "aten.mm")) for part in summary.ops)
    steps = summary, replace(summary, ops=ops)
    old, new = (to_toml(baseline(each)).splitlines() for each in steps)
    [changed] = [place for place, line in enumerate(old) if line != new[place]]
    assert len(old) == len(new)
    assert old[changed].startswith("calls = ")
    assert old[changed - 1].endswith('.ops."aten.mm"]')


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("format = 1", "format = 9", "its format is 9"),
        ("format = 1", "", "its format is None"),
        ("step_ms = ", "step_ms = -", "step_ms must be a number of at least 0"),
        ("step_ms = ", "step_ms = 0 # ", "step_ms is 0"),
        ("step_ms = ", "steps_ms = ", "is not a key of a step"),
        ("kernels = ", "kernels = 'x' # ", "kernels must be a number"),
        ("fits = true", "fits = 1", "fits must be true or false"),
        ("bound_by = ", "bound_by = 3 # ", "bound_by must be a text"),
        ("calls = ", "call = ", "is not a key of a part of a step"),
        ("l4 = 0.38", "l4 = 'cheap'", "usd_per_hour.l4 must be a number"),
        ("[steps.mine.l4]", "[steps.mine.l4", "is not TOML"),
    ],
)
def test_damage_is_named(
    tmp_path: Path, summary: StepSummary, old: str, new: str, says: str
) -> None:
    path = tmp_path / "base.toml"
    text = to_toml(baseline(summary))
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InvalidInput) as caught:
        read_baseline(path)
    assert says in str(caught.value)
    assert "base.toml" in str(caught.value)
