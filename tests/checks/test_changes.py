"""Small changes to three models, each caught or rightly ignored by `wavecast check`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from checks.changes import BETTER, CHANGES, IGNORED, SOURCE, WORSE, Change
from shell import Outcome, run

pytest.importorskip("torch")

CODES = {WORSE: 1, BETTER: 0, IGNORED: 0}


def checked(folder: Path, source: str, *arguments: str) -> Outcome:
    for name in ("wavecast.toml", "wavecast-baseline.toml"):
        shutil.copy(SOURCE.parent / name, folder / name)
    (folder / SOURCE.name).write_text(source, encoding="utf-8")
    return run("check", "--config", folder / "wavecast.toml", *arguments)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.what)
def test_a_small_change_gets_the_verdict_that_it_deserves(change: Change, tmp_path: Path) -> None:
    done = checked(tmp_path, change.source(), "--target", change.target, "--json")
    record = json.loads(done.out)
    expected = change.found or change.verdict
    assert (record["outcome"], done.code) == (expected, CODES[expected]), done.out[:3000]
    if expected != IGNORED:
        named = {
            figure["name"]
            for step in record["steps"]
            for figure in step["figures"]
            if figure["outcome"] == expected
        }
        assert set(change.figures) <= named


def test_there_are_at_least_25_changes_of_three_models() -> None:
    assert len(CHANGES) >= 25
    assert {change.target for change in CHANGES} == {"vision", "language", "ranking"}
    assert {change.verdict for change in CHANGES} == {WORSE, BETTER, IGNORED}
