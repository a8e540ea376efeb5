"""The range of a step on several GPUs, by what its time is spent on and what is not known about it.

How far it reaches, in logarithms, is a sum. While a rank computes, it is as uncertain as a step on
one such GPU (`wavecast.steps.ranges`), and what no op shows comes on top: the framework, the state
of the network. That has a width for each part of the step (`Spending`): computing, exposed
communication, the bubble of a pipeline. Steps with both tensor and pipeline ranks, and steps of
which no option says how the framework runs them, have a width more. There is one set of widths for
one machine and one for several. `lab/score/parallel_ranges.py` fits them to published steps, as
ranges on one GPU are: by the interval score, with the source of a step left out. Hosts have the
range that they have on one GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from wavecast.files import shipped_toml
from wavecast.hardware.cluster import Cluster
from wavecast.parallel.strategy import Parallel
from wavecast.steps.optimizer_step import Ranks
from wavecast.steps.ranges import Factors, Makeup, gpu_factors, host_factors

FILE = "models/parallel_ranges.toml"
"""The shipped file, below `data/`."""
CLASSES = ("machine", "machines")
"""The classes: all ranks in one machine, or in several."""


@dataclass(frozen=True, slots=True)
class Spending:
    """What the time of a step on several GPUs is spent on, and what is not known about it.

    The width of its range is a sum over these: each share, or 1 for what holds, times a width.
    """

    computing: float
    """The share in which the busiest rank computes, or waits for its host."""
    communication: float
    """The share in which a rank only communicates."""
    bubble: float
    """The share in which the busiest stage of a pipeline waits for others."""
    layered: float
    """1 if both layers and the model are divided (tensor and pipeline ranks). What frameworks do
    beside the model then differs most."""
    unstated: float
    """1 if no option says how the framework runs the step."""

    @classmethod
    def of(cls, strategy: Parallel, seconds: float, exposed_s: float, idle_s: float) -> Spending:
        """What a step is spent on.

        Args:
            strategy: how it is spread.
            seconds: its time.
            exposed_s: the time in which a rank only communicates.
            idle_s: the time in which the busiest stage of a pipeline waits for others.
        """
        bubble = min(idle_s / seconds, 1.0)
        communication = min(exposed_s / seconds, 1.0 - bubble)
        return cls(
            computing=1.0 - bubble - communication,
            communication=communication,
            bubble=bubble,
            layered=float(strategy.tensor > 1 and strategy.pipeline > 1),
            unstated=float(not strategy.habits),
        )


@dataclass(frozen=True, slots=True)
class RangeParts:
    """What the range of a step on several GPUs is made of; all times are relative to the step's."""

    known: str
    """Its class, one of `CLASSES`."""
    spending: Spending
    alone: Factors
    """The range of such work on one GPU."""
    hosts: Factors
    """The step's time with the fastest and the slowest hosts."""

    def ends(self, below: float, above: float) -> tuple[float, float]:
        """Low and high end, where they reach so far, in logarithms, beyond those of one GPU.

        >>> alone, hosts = Factors(0.5, 2.0), Factors(0.9, 3.0)
        >>> RangeParts("machine", Spending(1, 0, 0, 0, 0), alone, hosts).ends(0.0, 0.0)
        (0.5, 3.0)
        """
        low = self.alone.low**self.spending.computing * math.exp(-below)
        high = self.alone.high**self.spending.computing * math.exp(above)
        return min(low, self.hosts.low), max(high, self.hosts.high)


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
    row = _shipped()[parts.known]
    low, high = parts.ends(*(_reach(row[side], parts.spending) for side in ("below", "above")))
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
    spending = Spending.of(strategy, seconds, exposed_s, idle_s)
    return RangeParts(class_of(strategy, predictor.cluster), spending, alone, factors)


def class_of(strategy: Parallel, cluster: Cluster) -> str:
    """The class of a step: whether all its ranks are in one machine, or in one NVLink domain."""
    one, several = CLASSES
    return one if strategy.gpus <= cluster.domain_gpus else several


def _reach(widths: Mapping[str, float], spending: Spending) -> float:
    return sum(width * float(getattr(spending, name)) for name, width in widths.items())


@cache
def _shipped() -> Mapping[str, Any]:
    return shipped_toml(FILE)
