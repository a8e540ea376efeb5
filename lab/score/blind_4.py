"""How well were 24 steps of unseen families predicted before they ran on our H200?

    python -m lab score blind_4 [--write]

Reads measurements/h200/blind_4: `predictions.json`, committed before anything was measured, and
`rows.jsonl.gz` (`lab collect step_times blind_4`). `--write` puts the tables into
docs/appendix/accuracy-blind.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lab import needs
from lab.places import H200
from lab.score import pages
from lab.score.blind_3 import BlindStep, predicted, table


def rows(folder: Path) -> list[dict[str, Any]]:
    """All that `lab collect step_times` wrote: steps and rounds of the host benchmark."""
    with gzip.open(folder / "rows.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def measured(folder: Path) -> dict[str, Any]:
    """What was measured of each step, by its name."""
    return {row["step"]: row for row in rows(folder) if "step" in row}


def steps(folder: Path) -> Iterator[BlindStep]:
    """The steps that were measured."""
    found = measured(folder)
    for name, told in predicted(folder).items():
        if name in found:
            yield BlindStep.of(name, told, found[name], found[name].get("peak_bytes"))


def tell(
    folders: Sequence[Path], mark: str, parser: argparse.ArgumentParser, given: Sequence[str]
) -> None:
    """Print the tables of a test, and write them below its mark in the page if asked."""
    parser.add_argument("--write", action="store_true", help="write them into the page")
    args = parser.parse_args(given)
    text = "\n".join(table([step for folder in folders for step in steps(folder)]))
    print(text)
    if args.write:
        pages.write(pages.APPENDIX / "accuracy-blind.md", mark, text)


def main(given: Sequence[str] = ()) -> None:
    """Print the tables, and write them into the page if asked."""
    tell([H200 / "blind_4"], "fourth test", needs.parser(__doc__), given)
