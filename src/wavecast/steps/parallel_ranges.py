"""Ranges of steps on several GPUs: what the ranges of the ops give, widened.

The ranges of ops hold nine in ten times of single ops. A whole step on a cluster also depends on
what no op shows: the framework, the host, the state of the network. So the range is widened as much
as published steps need (lab/fit/parallel_ranges.py).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from wavecast.files import shipped_toml


@dataclass(frozen=True, slots=True)
class Widening:
    """The exponents of the low and the high end of a range, both relative to the step's time.

    >>> Widening(below=2, above=1).widened(0.5, 1.25)
    (0.25, 1.25)
    """

    below: float
    above: float

    def widened(self, low: float, high: float) -> tuple[float, float]:
        """The ends of the widened range, relative to the step's time."""
        return low**self.below, high**self.above


@functools.cache
def shipped_widening() -> Widening:
    """The exponents that were fitted to published steps."""
    table = shipped_toml("models/parallel_ranges.toml")
    return Widening(table["below"], table["above"])
