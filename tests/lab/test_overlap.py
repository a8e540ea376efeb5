"""The fit of overlap finds constants again, on steps whose efficiency they gave."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
from parallel_steps import small_gpt2_step

from lab.fit.overlap import ScaledStep, fit, mean_error, to_toml, without
from lab.measured.public_steps.case import Case
from lab.measured.scaled_rows import ScaledRow
from lab.score.scaling import differences, gpu_of, slowdowns
from wavecast.hardware.clusters import cluster, usual_cluster, with_device
from wavecast.hardware.devices import device
from wavecast.parallel.strategy import Parallel
from wavecast.predictors.attainable import Roofline
from wavecast.steps.op_times import OverlapConstants

TRUE = OverlapConstants({"nvlink": 0.5, "pcie": 2.0}, 0.01)


def made_step(gpu: str, link: str, gpus: int) -> ScaledStep:
    """A step whose measured efficiency is that of known constants."""
    card = device(gpu)
    name = {"pcie": "lambda-pcie", "nvlink_bridge_pairs": "lambda-bridges"}.get(link)
    machine = usual_cluster(card) if name is None else with_device(cluster(name), card)
    case = Case("made", gpu, "gpt2", "gpt2", "fp32", 2, "", 0.0, lambda: small_gpt2_step)
    row = ScaledRow("made", "gnmt", link, case, machine, Parallel(data=gpus), 0.0)
    blind = ScaledStep(row, small_gpt2_step(), Roofline())
    known = replace(row, efficiency=blind.efficiency(TRUE))
    return ScaledStep(known, small_gpt2_step(), Roofline())


@pytest.fixture(scope="module")
def steps() -> list[ScaledStep]:
    """Two cards and two boards on two and four GPUs."""
    return [
        made_step(gpu, link, gpus)
        for gpu, link in (
            ("rtx-2080-ti", "pcie"),
            ("quadro-rtx-8000", "nvlink_bridge_pairs"),
            ("v100-sxm-32gb", "nvlink_sxm"),
            ("a100-sxm-40gb", "nvlink_sxm"),
        )
        for gpus in (2, 4)
    ]


def test_the_constants_are_found_again_within_what_the_rows_can_tell(
    steps: list[ScaledStep],
) -> None:
    found = fit(steps)
    assert mean_error(steps, found) <= 0.001
    assert abs(found.rank_spread - TRUE.rank_spread) <= 0.0025


def test_rows_without_stated_links_are_in_no_fit(steps: list[ScaledStep]) -> None:
    odd = made_step("rtx-3090", "pcie(bridge undocumented)", 2)
    wrong = ScaledStep(replace(odd.row, efficiency=0.2), small_gpt2_step(), Roofline())
    assert fit([*steps, wrong]) == fit(steps)


def test_a_gpu_that_is_left_out_does_not_change_its_own_constants(steps: list[ScaledStep]) -> None:
    fitted = without(steps, gpu_of)
    assert set(fitted) == {gpu_of(step) for step in steps}
    spoiled = [
        ScaledStep(replace(s.row, efficiency=0.1), small_gpt2_step(), Roofline())
        if gpu_of(s) == "rtx-2080-ti"
        else s
        for s in steps
    ]
    assert without(spoiled, gpu_of)["rtx-2080-ti"] == fitted["rtx-2080-ti"]


def test_equal_rows_are_compared_with_their_median(steps: list[ScaledStep]) -> None:
    first = steps[0]
    twin = ScaledStep(
        replace(first.row, efficiency=first.row.efficiency - 0.2), small_gpt2_step(), Roofline()
    )
    assert sorted(differences([first, twin, steps[1]])) == pytest.approx([0, 0.1, 0.1])
    assert slowdowns(steps).count("\n") == 3


def test_the_file_has_what_was_fitted() -> None:
    table = tomllib.loads(to_toml(TRUE, 8))
    assert OverlapConstants(table["slowdown"], table["rank_spread"]) == TRUE
