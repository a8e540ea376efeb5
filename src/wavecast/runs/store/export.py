"""Runs as a table that any of our readers, and any other program, reads back exactly."""

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
    """Write runs as CSV or JSON Lines, by the name of the file; gives how many.

    The file appears when it is whole: an export that is interrupted leaves what was there.

    Raises:
        InvalidInput: the file cannot be written, or is called otherwise.
    """
    if path.suffix not in SUFFIXES:
        raise InvalidInput(f"runs are exported as FILE.csv or FILE.jsonl, not {path}")
    with refusing_unwritable(path), replacing(path) as draft:
        with draft.open("w", encoding="utf-8", newline="") as file:
            return write(runs, file, path.suffix)


def write(runs: Iterable[Run], file: TextIO, suffix: str) -> int:
    """Write runs into an open file; gives how many."""
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
