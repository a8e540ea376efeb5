"""Traces of steps that were made without a GPU, before the steps were measured: one tar file."""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path

from lab.measured.campaigns import loose_traces
from wavecast import Trace


def read_traces(archive: Path) -> dict[str, Trace]:
    """The traces of an archive with one file NAME.json.gz for each step, by name."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
        return loose_traces(Path(folder))
