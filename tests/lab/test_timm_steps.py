"""timm's tables: models that were timed under a name that means another network today."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from lab.measured.public_steps.timm_steps import cases

pytest.importorskip("torch")


def test_a_model_that_timm_has_corrected_is_built_as_it_was_timed(tmp_path: Path) -> None:
    row = {
        "family": "ecaresnext",
        "layout": "nhwc",
        "precision": "amp_fp16",
        "compiled": "",
        "torch": "1.12",
        "batch": 256,
        "img_size": 224,
        "step_ms": 100.0,
    }
    models = {"ecaresnext50t_32x4d": 15.41, "ecaresnext26t_32x4d": 15.41}
    built = {}
    for name, params_m in models.items():
        with (tmp_path / "timm_train.csv").open("w") as file:
            written = row | {"model": name, "params_m": params_m}
            writer = csv.DictWriter(file, list(written))
            writer.writeheader()
            writer.writerow(written)
        case = next(cases(tmp_path))
        assert case.model == name
        built[name] = (case.make_step.args[0], dict(case.options).get("built"))  # type: ignore[attr-defined]
    assert built == {
        "ecaresnext50t_32x4d": ("ecaresnext26t_32x4d", "ecaresnext26t_32x4d"),
        "ecaresnext26t_32x4d": ("ecaresnext26t_32x4d", None),
    }
