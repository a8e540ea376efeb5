"""The slides' multi-GPU tables, as shipped: MG-1 and MG-2 of the papers' requirements."""

from __future__ import annotations

import statistics

import pytest

import wavecast
from wavecast.errors import UnknownName
from wavecast.runs.regression.layer_times import (
    EXPERIMENTS,
    errors_of,
    mean_error,
    published_errors,
)


@pytest.mark.parametrize(
    ("experiment", "cells", "mean", "median", "largest"),
    [
        ("power", 4, 10.39, 9.19, 18.09),
        ("gpu_number", 18, 13.27, 12.19, 24.75),
        ("inner_modules", 12, 20.03, 18.90, 27.95),
        ("batch_size", 68, 7.62, 6.28, 27.63),
    ],
)
def test_the_tables_have_the_slides_means(
    experiment: str, cells: int, mean: float, median: float, largest: float
) -> None:
    errors = errors_of(experiment)
    assert len(errors) == cells
    assert 100 * mean_error(experiment) == pytest.approx(mean, abs=0.006)
    assert 100 * statistics.median(errors) == pytest.approx(median, abs=0.006)
    assert 100 * max(errors) == pytest.approx(largest)


def test_a_batch_row_has_fourteen_columns_and_every_gpu_is_known() -> None:
    cells = [c for c in published_errors() if c.experiment == "batch_size"]
    alexnet = [c for c in cells if (c.network, c.framework) == ("AlexNet", "PyTorch")]
    assert len({(c.gpu, c.gpus) for c in alexnet}) == 14
    for name in {c.gpu for c in published_errors() if c.gpu}:
        assert wavecast.device(name).fp32_flops > 1e12


def test_errors_of_more_modules_fall_for_two_and_four_gpus() -> None:
    by_gpus = {
        gpus: [c.error for c in published_errors() if c.most_modules and c.gpus == gpus]
        for gpus in (1, 2, 4)
    }
    assert by_gpus[2][0] == pytest.approx(0.2795)
    assert by_gpus[2] == sorted(by_gpus[2], reverse=True)
    assert by_gpus[4] == sorted(by_gpus[4], reverse=True)
    assert by_gpus[1] != sorted(by_gpus[1], reverse=True)


def test_each_experiment_is_an_axis() -> None:
    assert {c.experiment for c in published_errors()} == set(EXPERIMENTS)
    with pytest.raises(UnknownName, match='no experiment "depth"; the slides have power'):
        errors_of("depth")
