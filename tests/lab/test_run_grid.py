"""lab.collect.run_grid continues where it stopped and keeps the rows that it timed before."""

from __future__ import annotations

import csv
import gc
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.collect import run_grid
from lab.measured.run_grid import BATCHES, ITERATIONS, NETS

VARIANT = "testing graph fp32"


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The nets and batches that were started; nothing is computed."""
    seen: list[tuple[str, int]] = []

    def started(net: str, batch: int, *_: Any) -> Any:
        seen.append((net, batch))
        return lambda: None

    monkeypatch.setattr(run_grid, "started", started)
    monkeypatch.setattr(run_grid, "settle", lambda *_: None)
    monkeypatch.setattr(gc, "collect", lambda: 0)  # slow, and there is nothing to free here
    return seen


def _run(monkeypatch: pytest.MonkeyPatch, out: Path) -> list[dict[str, str]]:
    command = ["run_grid", str(out), "--device", "cpu", "--variants", VARIANT]
    monkeypatch.setattr(sys, "argv", command)
    run_grid.main()
    with (out / "runs.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_what_is_there_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: list[tuple[str, int]]
) -> None:
    whole = _run(monkeypatch, tmp_path)
    assert len(whole) == len(NETS) * len(BATCHES) * len(ITERATIONS)
    assert len(starts) == 24
    starts.clear()
    assert _run(monkeypatch, tmp_path) == whole
    assert not starts


def test_a_start_that_was_cut_off_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: list[tuple[str, int]]
) -> None:
    whole = _run(monkeypatch, tmp_path)
    table = tmp_path / "runs.csv"
    lines = table.read_text(encoding="utf-8").splitlines(keepends=True)
    table.write_text("".join(lines[:-3]), encoding="utf-8")
    cut = starts[-1]
    starts.clear()
    again = _run(monkeypatch, tmp_path)
    assert starts == [cut]
    same = ("net", "batch", "iterations", "start", "order")
    assert [[row[name] for name in same] for row in again] == [
        [row[name] for name in same] for row in whole
    ]
    kept = len(ITERATIONS) * 23
    assert again[:kept] == whole[:kept]


def test_rows_of_another_plan_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: list[tuple[str, int]]
) -> None:
    _run(monkeypatch, tmp_path)
    table = tmp_path / "runs.csv"
    other = table.read_text(encoding="utf-8").replace("googlenet", "vgg16")
    table.write_text(other, encoding="utf-8")
    with pytest.raises(SystemExit, match="another plan"):
        _run(monkeypatch, tmp_path)
    assert table.read_text(encoding="utf-8") == other
