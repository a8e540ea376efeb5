"""The table of all published steps on several GPUs."""

from __future__ import annotations

from pathlib import Path

from lab.score.distributed_summary import read_judged, table

ROW = {"n_gpu": 16, "n_experts": None, "task": "pretrain", "qc": None, "precision": "bf16"}
TABLE = [
    {**ROW, "row_id": "a", "source": "NVIDIA/NeMo"},
    {**ROW, "row_id": "b", "source": "NVIDIA/NeMo", "precision": "fp8"},
    {**ROW, "row_id": "c", "source": "NVIDIA/NeMo", "n_experts": 8},
    {**ROW, "row_id": "d", "source": "mlcommons/training_results_v3.1", "precision": "fp8"},
    {**ROW, "row_id": "e", "source": "VIA-Research/vTrain"},
]


def test_tuned_sources_are_taken_together_without_mixtures(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    times = {"a": 1.1, "b": 0.8, "c": 5.0, "d": 1.3, "e": 0.9}
    rows = [f"{name},{predicted},1.0" for name, predicted in times.items()]
    path.write_text("\n".join(["row_id,predicted_s,measured_s", *rows]))
    lines = table(read_judged([path], TABLE))
    assert "| tuned sources, 16 bits | 1 | 10.0% | 10.0% | +10% |" in lines
    assert "| tuned sources, 16 and 8 bits | 3 | 20.0% | 20.0% | +10% |" in lines
    assert "| vTrain, several machines | 1 | 10.0% | 10.0% | -10% |" in lines
    assert any(line.startswith("| MLPerf | 1 |") for line in lines)
