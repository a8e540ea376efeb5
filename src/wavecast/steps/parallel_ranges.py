"""The range of a step on several GPUs, by what its time is spent on and what is not known about it.

While a rank computes, a step is as uncertain as one on one such GPU (`wavecast.steps.ranges`). What
no op shows comes on top: the framework, the state of the network. That reaches as far as published
steps need, in logarithms, and further for exposed communication and for steps with both tensor and
pipeline ranks (`COMMUNICATION`, `LAYERED`). There is one width to each side. The two errors have
nothing to do with each other, so their widths add up in squares.
`lab/score/parallel_ranges.py` fits it, and judges each step by that of other sources. Hosts have
the range that they have on one GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from wavecast.files import shipped_toml
from wavecast.steps.optimizer_step import Ranks
from wavecast.steps.ranges import Factors, Makeup, gpu_factors, host_factors

FILE = "models/parallel_ranges.toml"
"""The shipped file, below `data/`."""
COMMUNICATION, LAYERED = 1.0, 1 / 3
"""How much further a range reaches for a step that only communicates, and for one of which both the
layers and the model are divided. Assumed: widths that were fitted to them described the sources,
and were worse for sources left out (lab/notes)."""


@dataclass(frozen=True, slots=True)
class RangeParts:
    """What the range of a step on several GPUs is made of; all times are relative to the step's."""

    computing: float
    """The share in which the busiest rank computes, or waits for its host."""
    weight: float
    """How much further than others it reaches beyond the range of one GPU."""
    alone: Factors
    """The range of such work on one GPU."""
    hosts: Factors
    """The step's time with the fastest and the slowest hosts."""

    def ends(self, below: float, above: float) -> tuple[float, float]:
        """Low and high end, with such widths, in logarithms, for what no op shows.

        >>> alone, hosts = Factors(0.5, 2.0), Factors(0.9, 3.0)
        >>> RangeParts(1.0, 1.0, alone, hosts).ends(0.0, 0.0)
        (0.5, 3.0)
        """
        own_below, own_above = self.own
        low = math.exp(-math.hypot(own_below, self.weight * below))
        high = math.exp(math.hypot(own_above, self.weight * above))
        return min(low, self.hosts.low), max(high, self.hosts.high)

    @property
    def own(self) -> tuple[float, float]:
        """How far down and up the range of one GPU reaches, in logarithms."""
        low, high = math.log(self.alone.low), math.log(self.alone.high)
        return -self.computing * low, self.computing * high


def range_on_several_gpus(
    ranks: Ranks, makeup: Makeup, seconds: float, host_s: float, exposed_s: float, idle_s: float
) -> tuple[float, float] | None:
    """Low and high end of a step's time; None where no measured steps gave a range.

    Args:
        ranks: what the ranks run.
        makeup: what the GPU time is made of.
        seconds: the time of the step.
        host_s: the time that a host needs to issue it.
        exposed_s: the time in which a rank only communicates.
        idle_s: the time in which the busiest stage of a pipeline waits for others.
    """
    parts = parts_of(ranks, makeup, seconds, host_s, exposed_s, idle_s)
    if parts is None:
        return None
    low, high = parts.ends(*_shipped())
    return seconds * low, seconds * high


def parts_of(
    ranks: Ranks, makeup: Makeup, seconds: float, host_s: float, exposed_s: float, idle_s: float
) -> RangeParts | None:
    """What the range is made of, from the arguments of `range_on_several_gpus`.

    Hosts that have time to spare change nothing, so steps are only played with other hosts where
    the slowest ones would come near to the step's time.
    """
    predictor, strategy = ranks.predictor, ranks.spread.strategy
    familiarity = predictor.kernels.familiarity(predictor.device)
    alone = None if familiarity is None else gpu_factors(familiarity, makeup)
    if alone is None:
        return None
    hosts, factors = host_factors(known=ranks.alone.host.known), Factors(1.0, 1.0)
    if hosts is not None and host_s * hosts.high >= seconds / 2:
        fast, slow = (ranks.with_host(end).optimizer_step() for end in (hosts.low, hosts.high))
        factors = Factors(
            (fast.ranks_s + fast.waiting_s) / seconds, (slow.ranks_s + slow.waiting_s) / seconds
        )
    lost = min(exposed_s / seconds, 1.0)
    layered = strategy.tensor > 1 and strategy.pipeline > 1
    return RangeParts(
        computing=max(1.0 - lost - idle_s / seconds, 0.0),
        weight=1.0 + COMMUNICATION * lost + LAYERED * layered,
        alone=alone,
        hosts=factors,
    )


@cache
def _shipped() -> tuple[float, float]:
    table = shipped_toml(FILE)
    return table["below"], table["above"]
