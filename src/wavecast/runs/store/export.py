"""Export of runs as a table that `read_runs`, and other programs, read back exactly."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from wavecast.errors import InvalidInput
from wavecast.files import refusing_unwritable, replacing
from wavecast.runs.run import COLUMNS, Run, record

SUFFIXES = (".csv", ".jsonl")


def export(runs: Iterable[Run], path: Path) -> int:
    """Write runs as CSV or JSON Lines, depending on the suffix, and return their number.

    The file is replaced when the new one is complete. An interrupted export changes nothing.

    Raises:
        InvalidInput: the file cannot be written, or has another suffix.
    """
    refuse_other_suffix(path)
    with (
        refusing_unwritable(path),
        replacing(path) as draft,
        draft.open("w", encoding="utf-8", newline="") as file,
    ):
        return write(runs, file, path.suffix)


def refuse_other_suffix(path: Path) -> None:
    """Raise InvalidInput unless a path has one of `SUFFIXES`."""
    if path.suffix not in SUFFIXES:
        raise InvalidInput(f"runs are exported as FILE.csv or FILE.jsonl, not {path}")


def write(runs: Iterable[Run], file: TextIO, suffix: str) -> int:
    """Write runs into an open file, and return their number."""
    count = 0
    rows = csv.writer(file, lineterminator="\n")
    if suffix == ".csv":
        rows.writerow(COLUMNS)
    for run in runs:
        values = record(run)
        if suffix == ".csv":
            rows.writerow("" if value is None else value for value in values.values())
        else:
            file.write(json.dumps(values, allow_nan=False) + "\n")
        count += 1
    return count
