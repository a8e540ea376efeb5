"""Does advice keep its word? Predicted gains against gains measured before and after each change.

    python -m lab score advice

Reads measurements/h200/advice.csv. Each change is made by `wavecast.advise`
in the step before; the gain is then compared with that of the step after, written by hand.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import wavecast
from lab import needs
from lab.places import H200
from lab.steps.advice import PAIRS, Pair
from wavecast.advice.proposals import proposal

GPU = "h200-sxm-141gb"
_NEEDS_A_BATCH = "batch"


@dataclass(frozen=True)
class ScoredAdvice:
    """The gain of one change, predicted and measured."""

    name: str
    change: str
    predicted: float
    measured: float
    low: float | None
    high: float | None
    saved: float
    """The predicted saving of memory, as a share of the peak."""
    saved_measured: float

    @property
    def points(self) -> float:
        """The error of the gain, in points of a hundred."""
        return 100 * abs(self.predicted - self.measured)

    @property
    def is_held(self) -> bool:
        """Whether the measured gain is in the range."""
        if self.low is None or self.high is None:
            return False
        return self.low <= self.measured <= self.high


def scored(names: Sequence[str] = ()) -> list[ScoredAdvice]:
    """The changes that were measured, or those of some names."""
    with (H200 / "advice.csv").open(encoding="utf-8") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    pairs = [pair for pair in PAIRS if pair.name in rows and (not names or pair.name in names)]
    return [_scored(pair, rows[pair.name]) for pair in pairs]


def _scored(pair: Pair, row: dict[str, str]) -> ScoredAdvice:
    if pair.change == _NEEDS_A_BATCH:  # another batch is another step, and no change of code
        before, after = (
            wavecast.predict(wavecast.trace(make, gpu=GPU, samples=samples), GPU)
            for make, samples in zip((pair.before, pair.after), pair.samples, strict=True)
        )
        suggestion = proposal((pair.change,), before, after)
    else:
        advice = wavecast.advise(pair.before, GPU, samples=pair.samples[0], changes=[pair.change])
        suggestion = advice.proposals[0]
    assert suggestion.gain is not None, suggestion.reason
    assert suggestion.after is not None
    assert suggestion.before.memory is not None
    assert suggestion.after.memory is not None
    measured = 1 - float(row["after_s"]) / float(row["before_s"])
    saved = 1 - suggestion.after.memory.peak_bytes / suggestion.before.memory.peak_bytes
    saved_measured = 1 - float(row["after_bytes"]) / float(row["before_bytes"])
    return ScoredAdvice(
        pair.name,
        pair.change,
        suggestion.gain,
        measured,
        suggestion.gain_low,
        suggestion.gain_high,
        saved,
        saved_measured,
    )


def main(given: Sequence[str] = ()) -> None:
    """Print a row for each change, and the mean error."""
    parser = needs.parser(__doc__)
    parser.add_argument("names", nargs="*", help="the pairs; all by default")
    rows = scored(parser.parse_args(given).names)
    for row in rows:
        held = "in range" if row.is_held else "outside"
        print(
            f"{row.name:24}{row.predicted:8.1%}{row.measured:8.1%}{row.points:7.1f} points  {held}"
            f"   memory {row.saved:7.1%}{row.saved_measured:8.1%}",
            flush=True,
        )
    faster = [row for row in rows if row.predicted > 0]
    wrong = [row.name for row in faster if row.measured < -0.005]
    print(f"mean error: {statistics.mean(row.points for row in rows):.1f} points")
    print(f"of changes that are proposed: {statistics.mean(r.points for r in faster):.1f} points")
    print(f"in the range: {sum(row.is_held for row in rows)} of {len(rows)}")
    print(f"proposed but slower: {', '.join(wrong) or 'none'}")
