"""Results of the suite: a row whose numbers cannot be is refused, with its line."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from wavecast.errors import InvalidInput
from wavecast.runs.suite_results import SuiteResult, read_results, write_results

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
