"""What several tests of the command line need."""

from __future__ import annotations

from pathlib import Path

import pytest
from made import step


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A small step that was traced and saved."""
    path = tmp_path / "step.json.gz"
    step().save(path)
    return path
