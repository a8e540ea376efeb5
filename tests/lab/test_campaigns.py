"""Campaigns of traces come back exactly as they were packed."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drawn_traces import traces as drawn_traces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import call, mm, trace

from lab.measured import campaigns
from lab.measured.op_data import HELD_OUT
from lab.measured.packed_traces import compress, expand
from lab.places import ROOT
from wavecast import Trace, load_trace
from wavecast.errors import InvalidInput

EXAMPLES = ROOT / "examples" / "traces"
OLD_STEP = ROOT / "tests" / "samples" / "version-0.1" / "measured-step.json.gz"


def same(one: Trace, other: Trace) -> bool:
    """Whether traces are equal to the last digit and in types (1 == 1.0, but not their repr)."""
    return one == other and repr(one) == repr(other)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(drawn_traces(), max_size=3))
def test_any_traces_come_back_as_they_were(tmp_path: Path, drawn: list[Trace]) -> None:
    packed = {f"step-{number}": made for number, made in enumerate(drawn)}
    campaigns.write("drawn", packed, tmp_path)
    read = campaigns.traces("drawn", tmp_path)
    assert list(read) == list(packed)
    assert all(same(read[key], packed[key]) for key in packed)


def test_the_same_traces_give_the_same_file(tmp_path: Path) -> None:
    habitat = campaigns.traces("habitat")
    path = campaigns.write("habitat", habitat, tmp_path)
    assert path.read_bytes() == (campaigns.FOLDER / "habitat.npz").read_bytes()


def test_attributes_of_equal_value_keep_their_types(tmp_path: Path) -> None:
    ops = [replace(mm(), attrs=(("alpha", value),)) for value in (1, 1.0, True)]
    campaigns.write("types", {"all": trace(*map(call, ops))}, tmp_path)
    (read,) = campaigns.traces("types", tmp_path).values()
    assert [type(made.op.attr("alpha")) for made in read] == [int, float, bool]


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_the_example_traces_are_those_of_the_campaigns(path: Path) -> None:
    name = "measured" if "_b" in path.name else "habitat-weights"
    packed = campaigns.traces(name)[path.name.removesuffix(campaigns.SUFFIX)]
    assert same(load_trace(path), packed)


def test_a_measured_trace_of_the_first_version_is_the_one_that_was_packed() -> None:
    assert same(load_trace(OLD_STEP), campaigns.traces("steps")["dcgan-fp32"])


def test_the_readme_has_a_row_for_every_campaign() -> None:
    readme = (ROOT / "measurements" / "README.md").read_text(encoding="utf-8")
    for name in campaigns.names():
        assert f"| `{name}` | {len(campaigns.traces(name))} |" in readme, name


def test_every_campaign_that_no_fit_may_read_is_there() -> None:
    folders = {path.name for path in campaigns.FOLDER.parent.iterdir() if path.is_dir()}
    assert {*campaigns.names(), *folders} >= HELD_OUT


def test_a_folder_is_packed_and_then_added_to(tmp_path: Path) -> None:
    loose, more, out = tmp_path / "loose", tmp_path / "more", tmp_path / "out"
    for folder, key, width in ((loose, "a", 1), (loose, "b", 2), (more, "b", 3), (more, "c", 4)):
        folder.mkdir(exist_ok=True)
        trace(call(mm(width)), samples=width).save(folder / f"{key}.json.gz")
    campaigns.pack("new", loose, out)
    campaigns.pack("new", more, out)
    read = campaigns.traces("new", out)
    assert {key: step.samples for key, step in read.items()} == {"a": 1, "b": 3, "c": 4}
    campaigns.unpack("new", tmp_path / "again", out)
    assert (tmp_path / "again" / "c.json.gz").read_bytes() == (more / "c.json.gz").read_bytes()


def test_keys_are_in_the_order_of_their_files(tmp_path: Path) -> None:
    step = trace(call(mm()))
    campaigns.write("order", dict.fromkeys(("b", "a-b", "a"), step), tmp_path)
    assert list(campaigns.traces("order", tmp_path)) == ["a-b", "a", "b"]


def test_missing_campaigns_and_traces_are_refused(tmp_path: Path) -> None:
    campaigns.write("known", {}, tmp_path)
    with pytest.raises(InvalidInput, match=r"no campaign .*the campaigns are: known"):
        campaigns.traces("unknown", tmp_path)
    with pytest.raises(InvalidInput, match="there are no traces"):
        campaigns.pack("known", tmp_path, tmp_path)
    with pytest.raises(KeyError):
        campaigns.traces("known", tmp_path)["missing"]


def test_numpy_alone_reads_a_column() -> None:
    with np.load(campaigns.FOLDER / "steps.npz") as columns:
        durations_ns = columns["kernel.duration"]
    kernels = [k for t in campaigns.traces("steps").values() for c in t for k in c.kernels]
    assert (durations_ns / 1e9).tolist() == [kernel.seconds for kernel in kernels]


def test_equal_ops_of_several_traces_are_one_object() -> None:
    first, second = (campaigns.traces("habitat")["dcgan-b64"].calls[0].op for _ in range(2))
    assert first is second


def multiples(factor: float, count: int = 500) -> list[float]:
    """Times as `_with_host` scales them: whole ticks of the profiler times one factor."""
    drawn = random.Random(0)
    return [drawn.randrange(2_000, 200_000) / 2048 * 1e-6 * factor for _ in range(count)]


@pytest.mark.parametrize("factor", [0.3456789, 0.999, 1 / 3])
def test_a_common_factor_is_found_though_some_times_have_none(factor: float) -> None:
    seconds = multiples(factor)
    seconds[7], seconds[333] = 1.23456789e-5, 0.0
    times = compress(np.array(seconds))
    assert times.unit == "scaled"
    assert times.odd_positions.tolist() == [7]
    assert expand(times).tolist() == seconds


def test_times_without_a_unit_are_kept_as_they_are() -> None:
    drawn = random.Random(1)
    seconds = [drawn.random() for _ in range(300)]
    assert expand(compress(np.array(seconds))).tolist() == seconds


def test_durations_and_time_stamps_need_no_floats() -> None:
    for unit, seconds in {"dur": [1664 / 1000 / 1e6, 9217 / 1000 / 1e6], "ns": [7.37e-7]}.items():
        times = compress(np.array(seconds * 40))
        assert times.unit in (unit, "dur")
        assert not times.odd_values.size
        assert times.numbers.max() < 10_000
