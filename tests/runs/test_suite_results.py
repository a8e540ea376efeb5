"""Results of the suite: a row whose numbers cannot be is refused, with its line."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from wavecast.errors import InvalidInput
from wavecast.runs.suite_results import (
    Observation,
    SuiteResult,
    observe_all,
    read_results,
    scaled_results,
    write_results,
)

OLD = Path(__file__).parents[1] / "samples" / "version-0.1" / "suite.csv"


@pytest.mark.parametrize("number", ["inf", "nan", "-0.5", "1e18"])
def test_a_time_that_cannot_be_is_refused(number: str, tmp_path: Path) -> None:
    path = tmp_path / "suite.csv"
    path.write_text(OLD.read_text().replace(",0.5,", f",{number},"))
    with pytest.raises(InvalidInput, match=rf"line 2 .*seconds is {number}, but must be a number"):
        read_results(path)


def test_a_number_that_is_too_long_is_refused(tmp_path: Path) -> None:
    names, values = list(csv.reader(OLD.read_text().splitlines()))[:2]
    row = dict(zip(names, values, strict=True)) | {"iterations": "9" * 400}
    with (tmp_path / "suite.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([names, row.values()])
    with pytest.raises(InvalidInput, match=r"line 2 .*iterations is 9+, but must be a number"):
        read_results(tmp_path / "suite.csv")


def test_only_the_same_step_on_the_same_gpu_and_framework_is_replaced(tmp_path: Path) -> None:
    rows = [
        SuiteResult("lstm", 64, "fp32", gpu, "ok", seconds=seconds, software=software)
        for gpu, software, seconds in (
            ("h200-sxm", "torch 2.11.0", 1.0),
            ("h200-sxm", "jax 0.11.2", 2.0),
            ("l4", "torch 2.11.0", 3.0),
            ("l4", "torch 2.13.0", 4.0),
        )
    ]
    write_results(tmp_path / "suite.csv", rows)
    assert read_results(tmp_path / "suite.csv") == (rows[0], rows[1], rows[3])


# TBD's observations across GPUs, machines and frameworks, on made-up results.


P4000 = SuiteResult(
    *("resnet50", 16, "fp32", "quadro-p4000", "ok"),
    seconds=0.2,
    throughput_per_s=80.0,
    gpu_utilisation=0.98,
    fp32_utilisation=0.5,
    software="torch 2.11.0, CUDA 13.0",
)
TITAN = replace(
    P4000, gpu="titan-xp", throughput_per_s=160.0, gpu_utilisation=0.9, fp32_utilisation=0.45
)


def seen(*rows: SuiteResult) -> dict[int, list[Observation]]:
    found: dict[int, list[Observation]] = {}
    for observation in observe_all(rows):
        found.setdefault(observation.number, []).append(observation)
    return found


def test_all_twelve_are_told_even_where_they_cannot_be_judged() -> None:
    found = seen(P4000)
    assert sorted(found) == list(range(1, 13))
    assert {observation.holds for group in found.values() for observation in group} == {None}
    assert all(
        observation.figure and observation.printed
        for group in found.values()
        for observation in group
    )


def test_results_that_had_not_settled_say_nothing_of_time() -> None:
    nmt = replace(P4000, model="nmt", batch=64, feature_maps_bytes=64 << 20)
    more = replace(nmt, batch=128, throughput_per_s=100.0, feature_maps_bytes=128 << 20)
    assert [observation.holds for observation in seen(nmt, more)[2]] == [True, None]
    restless = seen(nmt, replace(more, settled=False))
    assert [observation.holds for observation in restless[2]] == [None, None]
    assert all("not settled: 1 results" in observation.figure for observation in restless[2])
    assert [observation.holds for observation in restless[11]] == [True]


@pytest.mark.parametrize(
    ("changed", "holds"),
    [
        ({}, True),
        ({"throughput_per_s": 79.0}, False),
        ({"gpu_utilisation": 0.99}, False),
        ({"fp32_utilisation": 0.51}, False),
    ],
)
def test_a_stronger_gpu_is_faster_and_less_used(changed: dict[str, float], holds: bool) -> None:
    [ninth] = seen(replace(TITAN, **changed), P4000)[9]  # type: ignore[arg-type]
    assert ninth.holds is holds
    if not changed:
        assert "x 2.00" in ninth.figure


def test_frameworks_are_compared_model_by_model() -> None:
    other = replace(P4000, software="tensorflow 2.0", throughput_per_s=90.0)
    nmt = replace(P4000, model="nmt")
    behind = replace(nmt, software="tensorflow 2.0", throughput_per_s=70.0)
    [third] = seen(P4000, other, nmt, behind)[3]
    assert third.holds is True
    [same] = seen(P4000, other, nmt, replace(behind, throughput_per_s=90.0))[3]
    assert same.holds is False


def test_several_gpus_are_compared_with_one() -> None:
    four = replace(P4000, gpus=4, throughput_per_s=300.0)
    slow = replace(P4000, gpus=2, nodes=2, throughput_per_s=40.0)
    assert [result.efficiency for result in scaled_results([P4000, four, slow])] == [0.9375, 0.25]
    within, across = seen(P4000, four, slow)[12]
    assert (within.holds, across.holds) == (True, True)
    within, across = seen(
        P4000,
        replace(four, throughput_per_s=200.0),
        replace(slow, throughput_per_s=150.0),
    )[12]
    assert (within.holds, across.holds) == (False, False)


def test_results_of_several_gpus_come_back_from_their_file(tmp_path: Path) -> None:
    rows = (P4000, replace(P4000, gpus=4, nodes=2))
    write_results(tmp_path / "results.csv", rows)
    assert read_results(tmp_path / "results.csv") == rows
