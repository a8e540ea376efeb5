"""How well were steps of other unseen families predicted before they ran on our H200?

    python -m lab score blind_5 [--write]

Reads measurements/h200/blind_5 and blind_6, the halves of the test: `predictions.json`, committed
before anything was measured, and `rows.jsonl.gz` (`lab collect step_times blind_5`). `--write` puts
the tables into docs/appendix/accuracy-blind.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from lab import needs
from lab.places import H200
from lab.score.blind_4 import tell

HALVES = (H200 / "blind_5", H200 / "blind_6")


def main(given: Sequence[str] = ()) -> None:
    """Print the tables, and write them into the page if asked."""
    tell(
        [half for half in HALVES if (half / "rows.jsonl.gz").exists()],
        "fifth test",
        needs.parser(__doc__),
        given,
    )
