"""How long iterations of unchanged scripts take, predicted against measured.

    python -m lab score unchanged_scripts [--write]

Reads measurements/h200/unchanged_scripts.csv and unchanged_predictions.csv, which was committed
before the scripts were measured, and the predictions of a later
version (unchanged_predictions_again.csv), made with the measured times known. Data loading is not
predicted; scripts that wait for it are counted with that error. `--write` puts the table into
docs/howto/run-your-script.md.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean, median

from lab.pages import heading
from lab.places import DOCS, H200
from lab.scores import ScoreTable
from lab.steps.scripts import CASES, LARGE

MARK = "unchanged scripts"
PAGE = DOCS / "howto" / "run-your-script.md"


@dataclass(frozen=True)
class TimedScript:
    """A script, measured and predicted."""

    name: str
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float
    again_s: float
    """What a later version predicts, with the measured time known."""

    @property
    def error(self) -> float:
        """How far off the prediction is, as a share of the measured time."""
        return self.predicted_s / self.measured_s - 1

    @property
    def later_error(self) -> float:
        """The same for the later version."""
        return self.again_s / self.measured_s - 1

    @property
    def within(self) -> bool:
        """Whether the range holds what was measured."""
        return self.low_s <= self.measured_s <= self.high_s


def _read(name: str) -> dict[str, dict[str, str]]:
    with (H200 / name).open(newline="", encoding="utf-8") as file:
        return {row["script"]: row for row in csv.DictReader(file)}


def scripts() -> Iterator[TimedScript]:
    """The scripts that were both measured and predicted."""
    measured = _read("unchanged_scripts.csv")
    again = _read("unchanged_predictions_again.csv")
    for name, row in _read("unchanged_predictions.csv").items():
        measured_s = measured.get(name, {}).get("measured_s")
        if measured_s and row["predicted_s"]:
            predicted, *ends = (float(row[key] or 0) for key in ("predicted_s", "low_s", "high_s"))
            later = float(again[name]["predicted_s"])
            yield TimedScript(name, float(measured_s), predicted, ends[0], ends[1], later)


def table() -> Iterator[str]:
    """The table of the scripts, and the figures of those that do not wait for data."""
    kinds = {case.name: case.like for case in (*LARGE, *CASES)}
    every = list(scripts())
    yield from heading("script | measured | predicted | error | range | later version | error", "l")
    for script in every:
        times = f"{script.measured_s * 1e3:.1f} ms | {script.predicted_s * 1e3:.1f} ms"
        spread = f"{script.low_s * 1e3:.1f} to {script.high_s * 1e3:.1f} ms"
        later = f"{script.again_s * 1e3:.1f} ms | {script.later_error:+.0%}"
        yield f"| {kinds[script.name]} | {times} | {script.error:+.0%} | {spread} | {later} |"
    errors = [abs(script.error) for script in every]
    later_errors = [abs(script.later_error) for script in every]
    inside = sum(script.within for script in every)
    yield ""
    yield (
        f"{len(every)} scripts: {mean(errors):.0%} on average, median {median(errors):.0%}, worst "
        f"{max(errors):.0%}; {inside} are in their range. The later "
        f"version: {mean(later_errors):.0%}, median {median(later_errors):.0%}, worst "
        f"{max(later_errors):.0%}."
    )


def tables() -> Iterator[ScoreTable]:
    """The table of the page."""
    yield ScoreTable("\n".join(table()), PAGE, MARK)
