"""Published compiled rows: which eager row each is compared with, and what is printed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.measured.compiled_rows import CompiledRow, neusight_rows, timm_rows
from lab.score.compiled_public import ScoredCompiled, sampled, table

pandas = pytest.importorskip("pandas")

TIMM = {
    **{"gpu": "RTX 4090", "mode": "infer", "precision": "amp_fp16", "layout": "nhwc"},
    **{"torch": "2.1.0", "compiled": False, "model": "resnet50", "family": "resnet"},
    **{"batch": 256, "img_size": 224, "step_ms": 60.0},
}
NEUSIGHT = {
    **{"gpu": "A100-PCIE-40GB", "model": "bert_large", "mode": "inf", "seq_len": 512},
    **{"batch": 8, "fused": False, "parallelism": "none", "e2e_ms": 205.5},
}


def timm(folder: Path, *changes: dict[str, Any]) -> list[CompiledRow]:
    rows = pandas.DataFrame([{**TIMM, **change} for change in changes])
    rows.to_parquet(folder / "timm_infer.parquet")
    rows[:0].to_parquet(folder / "timm_train.parquet")
    return list(timm_rows(folder))


def test_a_compiled_row_stands_beside_the_eager_one_of_its_layout(tmp_path: Path) -> None:
    (row,) = timm(
        tmp_path,
        {"layout": "nchw", "step_ms": 70.0},
        {"batch": 128, "step_ms": 32.0},
        {"compiled": True, "step_ms": 50.0},
        {"gpu": "RTX 5090", "step_ms": 30.0},
        {"model": "resnet18", "step_ms": 20.0},
    )
    assert row.eager is not None
    assert (row.compiled.gpu, row.eager.batch, row.eager.layout) == ("rtx-4090", 128, "nhwc")
    assert row.gain == pytest.approx((256 / 50) / (128 / 32))


def test_a_compiled_row_without_an_eager_one_has_no_gain(tmp_path: Path) -> None:
    (row,) = timm(tmp_path, {"compiled": True}, {"precision": "amp_bf16"})
    assert row.eager is None
    assert row.gain is None


def test_the_gain_of_neusight_is_that_of_the_same_step(tmp_path: Path) -> None:
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"fused": True, "e2e_ms": 174.8},
        {"batch": 16, "e2e_ms": 396.5},
    )
    table_ = pandas.DataFrame([{**NEUSIGHT, **change} for change in changes])
    table_.to_parquet(tmp_path / "end_to_end.parquet")
    (row,) = neusight_rows(tmp_path)
    assert row.gain == pytest.approx(205.5 / 174.8)
    assert ("compiled", 1) in row.compiled.options


def test_rows_are_sampled_by_gpu_and_errors_printed(tmp_path: Path) -> None:
    names = [f"net{i}" for i in range(10)]
    pairs = ({"model": m, "compiled": c} for m in names for c in (False, True))
    rows = timm(tmp_path, *pairs)
    chosen = sampled(rows, 5)
    assert [row.compiled.model for row in chosen] == names[::2]
    alone = replace(chosen[0], eager=None)
    text = table(
        [ScoredCompiled(chosen[0], 0.1, 0.21, 0.1), ScoredCompiled(alone, -0.3, None, None)]
    )
    assert (
        "| timm net0, batch 256 | rtx-4090 | torch 2.1.0 | +10.0% | +21.0% | 1.00 | 1.10 |" in text
    )
    assert "2 steps** | rtx-4090 | | 20.0% | 21.0% |" in text
