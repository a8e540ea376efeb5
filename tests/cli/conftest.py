"""What several tests of the command line need."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile.commands import write_files
from made import step


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A small step that was traced and saved."""
    path = tmp_path / "step.json.gz"
    step().save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where wrong commands run: good files, bad files, and none of the user's own."""
    monkeypatch.chdir(tmp_path)
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "none"))
    for name in ("DEVICES", "RUNS", "HOST"):
        monkeypatch.delenv(f"WAVECAST_{name}", raising=False)
    write_files(tmp_path)
    return tmp_path
