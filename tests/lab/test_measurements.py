"""The pages about scaling and memory repeat what the files in measurements/h200 show."""

from __future__ import annotations

import csv
import json
import re
import statistics
import tomllib
from collections.abc import Iterable
from typing import Any

import pytest
from kineto_figures import kineto_blocks_per_sm, kineto_occupancy

from lab.measured import campaigns
from lab.places import DOCS, H200, ROOT
from lab.steps.memory import GROWING, STEPS
from wavecast import predict
from wavecast.hardware.devices import device
from wavecast.predictors.habitat import Habitat, MixedPrecision
from wavecast.traces.step import Kernel, Trace

GPU = device("h200-sxm")
TRACES = [(name, key) for name in ("habitat", "measured") for key in campaigns.traces(name)]
SCALING = DOCS / "appendix" / "accuracy-scaling.md"
PAGE = re.sub(r"\s+", " ", SCALING.read_text(encoding="utf-8"))
MEMORY = (DOCS / "memory.md").read_text(encoding="utf-8")


def rows(name: str) -> list[dict[str, str]]:
    with (H200 / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def sizes(row: dict[str, str], what: str) -> tuple[int, int, int]:
    x, y, z = (int(row[f"{what}_{axis}"]) for axis in "xyz")
    return x, y, z


def test_occupancy_is_what_kineto_reported_for_every_launch() -> None:
    launches = rows("occupancy.csv")
    assert f"{len(launches):,} distinct launch configurations*" in PAGE
    for row in launches:
        kernel = Kernel(
            row["kernel"],
            1e-6,
            sizes(row, "grid"),
            sizes(row, "block"),
            int(row["registers"]),
            int(row["shared_bytes"]),
        )
        assert kineto_occupancy(GPU, kernel) == int(row["occupancy_percent"]), row
        blocks = kineto_blocks_per_sm(GPU, kernel)
        assert blocks == pytest.approx(float(row["blocks_per_sm"]), rel=1e-6, abs=1e-6), row


def test_the_parts_make_the_busy_time_and_the_plain_sum_does_not() -> None:
    steps = rows("parts.csv")
    errors = [float(row["parts_s"]) / float(row["busy_s"]) - 1 for row in steps]
    worst = max(errors, key=abs)
    mean = statistics.mean(map(abs, errors))
    assert f"mean error {mean:.1%}, worst {worst:+.1%}" in PAGE
    sums = [float(row["sum_s"]) / float(row["busy_s"]) - 1 for row in steps]
    assert f"| {len(steps)} steps |" in PAGE
    assert f"up to {max(sums):.0%} more" in PAGE


@pytest.mark.parametrize(("name", "key"), TRACES, ids=[key for _, key in TRACES])
def test_a_measured_step_returns_on_its_own_gpu(name: str, key: str) -> None:
    trace = campaigns.traces(name)[key]
    assert trace.measurement is not None
    assert trace.measurement.seconds is not None
    assert predict(trace, GPU).seconds == pytest.approx(trace.measurement.seconds, rel=1e-9)


def test_the_page_counts_the_traces() -> None:
    assert f"All {len(TRACES)} measured traces*" in PAGE
    assert f"(`same.csv`, {len(rows('same.csv'))} steps)" in PAGE


def test_the_page_repeats_how_far_two_measurements_differ() -> None:
    for bound_by in ("gpu", "host"):
        off = [abs(float(r["error"])) for r in rows("same.csv") if r["bound_by"] == bound_by]
        digits = 2 if bound_by == "gpu" else 0
        figures = (statistics.mean(off), statistics.median(off), max(off))
        shown = " | ".join(f"{figure:.{digits}%}" for figure in figures)
        name = "GPU" if bound_by == "gpu" else "host"
        assert f"| bound by the {name} ({len(off)})* | {shown} |" in PAGE


def test_the_page_repeats_the_errors_on_the_cards_of_the_networks() -> None:
    cards = sorted((ROOT / "src/wavecast/data/models").glob("mlp-*.toml"))
    assert len(cards) == 6
    for path in cards:
        card = tomllib.loads(path.read_text(encoding="utf-8"))
        gpus, error = len(card["gpus"]), card["configuration_error"]
        row = rf"\| {card['rows']:,} \| {gpus} \| [\d.]+ \| {error:.1f}\* \|"
        assert re.search(row, PAGE), path.name


def bf16_errors(pairs: Iterable[tuple[Trace, float]]) -> tuple[list[float], list[float]]:
    """The errors of Daydream's rule and of ratios op by op, for (float32 trace, bf16 seconds)."""
    daydream: list[float] = []
    by_op: list[float] = []
    for trace, real_s in pairs:
        for scaler, errors in (
            (MixedPrecision(Habitat.shipped(), "bf16"), daydream),
            (MixedPrecision.shipped("bf16"), by_op),
        ):
            errors.append(abs(predict(trace, GPU, predictor=scaler).gpu_s / real_s - 1))
    return daydream, by_op


def memory_rows(name: str) -> list[dict[str, Any]]:
    lines = (H200 / "memory" / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_the_memory_page_counts_every_step_and_every_search() -> None:
    steps, searches = memory_rows("steps.jsonl"), memory_rows("growing.jsonl")
    assert {row["status"] for row in (*steps, *searches)} == {"ok"}
    assert {row["name"] for row in steps} <= STEPS.keys()
    assert {row["model"] for row in searches} <= GROWING.keys()
    assert f"| allocated at the peak | {len(steps)} |" in MEMORY
    large = sum(row["process_bytes"] > 2e9 for row in steps)
    assert f"| process above 2 GB | {large} |" in MEMORY
    assert f"{len(searches)} largest batches: " in MEMORY
