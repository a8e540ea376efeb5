"""Five figures for a set of predictions, and the file that keeps them for the accuracy page.

The five are the number of predictions, the mean error, the bias, the worst error and the share of
measured times within the predicted ranges. An error is predicted / measured - 1, so that +0.1 is
10% too long. The scoring commands record their figures in docs/appendix/accuracy.json, and
`python -m lab score summary` writes the table of docs/accuracy.md from it.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lab.places import DOCS

FILE = DOCS / "appendix" / "accuracy.json"
DIGITS = 6
"""Digits after the point in the file: enough for a table to round once, not twice."""


@dataclass(frozen=True)
class Figures:
    """The figures of one set. A figure that was not computed is None."""

    count: int
    mean: float
    """The mean size of the errors."""
    bias: float | None
    """The mean of the errors: above 0, predictions are too long."""
    worst: float | None
    """The largest size of an error."""
    in_range: float | None
    """The share of measured times within the predicted ranges."""
    median: float | None = None
    """The median size of the errors. The appendices show it; the file does not keep it."""

    def cells(self, digits: int = 0, worst_digits: int = 0) -> list[str]:
        """Mean, median, bias and worst error as cells of a table."""
        return [
            percent(self.mean, digits),
            percent(self.median, digits),
            percent(self.bias, digits, signed=True),
            percent(self.worst, worst_digits),
        ]


def figures(errors: Iterable[float], within: Iterable[bool | None] = ()) -> Figures:
    """The figures of at least one prediction.

    Args:
        errors: predicted / measured - 1 of each prediction.
        within: whether each measured time lies in its predicted range; None for a prediction
            without a range. Leave it out if unknown.

    Example:
        >>> figures([0.1, -0.3], [True, False])
        Figures(count=2, mean=0.2, bias=-0.1, worst=0.3, in_range=0.5, median=0.2)
    """
    signed, held = list(errors), [inside for inside in within if inside is not None]
    sizes = [abs(error) for error in signed]
    return Figures(
        count=len(signed),
        mean=statistics.mean(sizes),
        bias=statistics.mean(signed),
        worst=max(sizes),
        in_range=float(statistics.mean(held)) if held else None,
        median=statistics.median(sizes),
    )


def recorded(path: Path = FILE) -> dict[str, Figures]:
    """The figures of each set in the file, by the name of the set."""
    if not path.exists():
        return {}
    sets = json.loads(path.read_text(encoding="utf-8"))
    return {name: Figures(**kept) for name, kept in sets.items()}


def record(some: dict[str, Figures], path: Path = FILE) -> None:
    """Write the figures of these sets to the file; those of other sets stay."""
    sets = {name: _kept(figures) for name, figures in (recorded(path) | some).items()}
    lines = (f"  {json.dumps(name)}: {json.dumps(sets[name])}" for name in sorted(sets))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _kept(of_set: Figures) -> dict[str, float | None]:
    shares = {
        "mean": of_set.mean,
        "bias": of_set.bias,
        "worst": of_set.worst,
        "in_range": of_set.in_range,
    }
    rounded = {name: None if x is None else round(x, DIGITS) for name, x in shares.items()}
    return {"count": of_set.count, **rounded}


def percent(share: float | None, digits: int = 0, *, signed: bool = False) -> str:
    """A share as a cell of a table. A dash if it is unknown; a zero has no sign.

    Example:
        >>> percent(0.081, 1), percent(-0.033, signed=True), percent(None)
        ('8.1%', '-3%', '-')
    """
    if share is None:
        return "-"
    shown = f"{share:{'+' if signed else ''}.{digits}%}"
    return shown if shown.strip("+-.0%") else shown.lstrip("+-")
