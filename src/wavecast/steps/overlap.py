"""What several GPUs cost beyond kernels and collectives: they disturb and await each other.

While a collective runs, kernels are slower, since it takes part of the GPU. And the ranks of a step
never end at the same moment: a collective begins when the slowest rank has come.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from wavecast.files import shipped_toml
from wavecast.hardware.links import LinkKind


@dataclass(frozen=True, slots=True)
class OverlapConstants:
    """The fitted constants (lab/fit/overlap.py)."""

    slowdown: Mapping[str, float]
    """A kernel takes 1 + this times as long beside a collective: between boards with NVLink
    ("nvlink"), and between cards ("pcie"), joined by bridges or not."""
    rank_spread: float
    """The standard deviation of a step's time among ranks, as a share of it."""

    def slowdown_on(self, link: LinkKind) -> float:
        """How much longer kernels take beside a collective in a machine with such links."""
        return self.slowdown["pcie" if link in (LinkKind.PCIE, LinkKind.BRIDGES) else "nvlink"]

    def waiting(self, ranks: int) -> float:
        """The time that ranks wait for the slowest of them, as a share of a step."""
        return self.rank_spread * expected_maximum(ranks)


@functools.cache
def shipped_overlap() -> OverlapConstants:
    """The constants that were fitted to measured scaling."""
    table = shipped_toml("models/overlap.toml")
    return OverlapConstants(table["slowdown"], table["rank_spread"])


@functools.cache
def expected_maximum(count: int) -> float:
    """About how many standard deviations the largest of some normal values lies above their mean.

    It is Blom's approximation of the largest normal order statistic, within 0.01 up to millions.

    >>> round(expected_maximum(2), 2), round(expected_maximum(1024), 1)
    (0.57, 3.2)
    """
    if count <= 1:
        return 0.0
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
