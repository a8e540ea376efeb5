"""The checks of the papers fail when an equation or a rule is changed: they can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import wavecast
from lab.measured import run_grid
from lab.score import papers
from wavecast.hardware import occupancy
from wavecast.predictors import mixed_precision
from wavecast.predictors.wave import equations
from wavecast.regression.layers import published_errors
from wavecast.regression.layers.complexities import NetworkLayer
from wavecast.steps import larger_batch

REQUIREMENTS = {one.id: one for one in papers.requirements()}


def scaled(function: Callable[..., Any], factor: float = 1.1) -> Callable[..., Any]:
    return lambda *given, **named: factor * function(*given, **named)


MUTATIONS = {
    "HB-1 equation 2": ("HB-1", equations, "wave_ratio", scaled(equations.wave_ratio)),
    "HB-1 equation 1": ("HB-1", equations, "whole_wave_ratio", scaled(equations.whole_wave_ratio)),
    "HB-1 the exponents": (
        "HB-1",
        equations,
        "mixed_ratio",
        lambda memory, compute, gamma: memory ** (1 - gamma) * compute**gamma,
    ),
    "HB-2 equation 3": ("HB-2", equations, "gamma", scaled(equations.gamma)),
    "HB-17 three times": ("HB-17", mixed_precision, "CONTRACTION_SPEEDUP", 2.0),
    "HB-17 twice": ("HB-17", mixed_precision, "OTHER_SPEEDUP", 1.0),
    "HB-17 which kernels": (
        "HB-17",
        mixed_precision,
        "is_gemm_or_convolution",
        lambda name: "gemm" in name,
    ),
    "HB-4 occupancy": ("HB-4", occupancy, "blocks_per_sm", scaled(occupancy.blocks_per_sm, 2)),
    "HB-16 the line": (
        "HB-16",
        wavecast,
        "extrapolate_batch",
        lambda points, batch: larger_batch.extrapolate_batch(points, 2 * batch),
    ),
    "PL-1, PL-2 operations": ("PL-2", NetworkLayer, "ops", scaled(NetworkLayer.ops, 2)),
    "PL-1 of a layer": ("PL-1", NetworkLayer, "ops", scaled(NetworkLayer.ops, 2)),
    "E2E-2 the grid": ("E2E-2", run_grid, "PRINTED", run_grid.PRINTED[1:]),
    "MG-2 the mean": ("MG-2", published_errors, "mean_error", scaled(published_errors.mean_error)),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_changed_formula_fails_its_check(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    requirement, module, attribute, changed = MUTATIONS[name]
    checks = [check for check in REQUIREMENTS[requirement].checks if check.kind == "python"]
    assert checks
    assert not [missing for check in checks for missing in check.failures()]
    monkeypatch.setattr(module, attribute, changed)
    assert [missing for check in checks for missing in check.failures()]
