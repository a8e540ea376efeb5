"""The range of a step's time, by what is not known about it.

How far the range of the GPU time reaches, in logarithms, is a sum over what it is made of
(`Makeup`): the share of each kind of op times a width of that kind. There is one set of widths for
each class of ignorance, which is how well the op models know the GPU (`Familiarity`). The host's
time has a range of its own, by whether the host was calibrated. `lab/score/ranges.py` fits the
widths by the interval score, each class shrunk towards all steps, and then multiplies those of a
class by one factor, with which ranges made without the GPU and the source of a step hold nine in
ten (split conformal prediction: Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random
World", 2005). A class that is not in the file has no range.

A measured step that is scaled to its GPU has a range of the same form, by its own classes
(`ScaledTo`), each with one width for all kinds.

`wavecast.steps.ranges` has the ranges of steps on several GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

import numpy as np

from wavecast.files import shipped_toml
from wavecast.hardware.devices import Device
from wavecast.hardware.hosts import (
    REFERENCE_HOST,
    GraphedHost,
    Host,
    HostModel,
    RecordedHost,
    usual_hosts,
)
from wavecast.ops import Kind
from wavecast.ops.attention import least_share
from wavecast.predictors.base import Familiarity, Scaler, Spread
from wavecast.predictors.wave import CONTRACTIONS
from wavecast.predictors.wave import SOURCE as BY_WAVES
from wavecast.steps.optimizer_step import Ranks
from wavecast.steps.timed_trace import TimedTrace
from wavecast.traces.arrays import encode
from wavecast.traces.graphs import XLA_CALL

FILE = "models/ranges.toml"
"""The shipped file, below `data/`."""


@dataclass(frozen=True, slots=True)
class Makeup:
    """What the predicted GPU time of a step is made of. The width of its range depends on it."""

    matmul: float
    """The share in matmuls and attention."""
    convolution: float
    """The share in convolutions."""
    recurrent: float
    """The share in recurrent layers."""
    memory: float
    """The share in all other ops, which mostly wait for memory."""

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares, which are multiplied by the widths of their kinds."""
        return self.matmul, self.convolution, self.recurrent, self.memory


_KINDS = {
    **dict.fromkeys(("matmul", "attention"), "matmul"),
    **{"convolution": "convolution", "rnn": "recurrent"},
}
"""The part of a makeup that each kind of op belongs to. All others wait for memory."""


def makeup_of(runs: Sequence[tuple[TimedTrace, int]]) -> Makeup:
    """What the GPU time of some traces is made of, each run so many times, without collectives."""
    parts = dict.fromkeys(("matmul", "convolution", "recurrent", "memory"), 0.0)
    for timed, times in runs:
        seconds = timed.op_s[:, 0] * timed.arrays.counts * times
        for kind, spent_s in zip(timed.work.kind_names, seconds.tolist(), strict=True):
            if kind != Kind.COLLECTIVE:
                parts[_KINDS.get(kind, "memory")] += spent_s
    total = sum(parts.values())
    if not total:
        return Makeup(matmul=0.0, convolution=0.0, recurrent=0.0, memory=1.0)
    return Makeup(**{name: spent_s / total for name, spent_s in parts.items()})


class ScaledTo(StrEnum):
    """How a measured step came to its GPU, on which the width of its range depends."""

    SAME = "same"
    """It is predicted for the GPU that it was measured on."""
    OTHER = "other"
    """It is scaled to another GPU of a vendor whose ops were measured."""


def scaling_of(scaler: Scaler, origin: Device, target: Device) -> ScaledTo | None:
    """How a scaler takes a measured step to its GPU; None if no steps tell how far off it is.

    One of the GPUs must be `measured`, as our H200 is, on which all these steps were recorded.
    """
    ways = [scaler.familiarity(gpu) for gpu in (origin, target)]
    if None in ways:
        return None
    if Familiarity.MEASURED not in ways or Familiarity.FOREIGN in ways:
        return None
    if origin == target:
        return ScaledTo.SAME
    return ScaledTo.OTHER


def share_by_kind(steps: Sequence[TimedTrace]) -> float:
    """The share of a scaled step's GPU time that was scaled by the method of its kind of op.

    The rest are ops of no known kind, and matmuls, convolutions and the like whose shapes are not
    known, so that waves scaled them.
    """
    own_s = all_s = 0.0
    for timed in steps:
        seconds = (timed.op_s[:, 0] * timed.arrays.counts).tolist()
        for kind, answer, spent_s in zip(
            timed.work.kind_names, timed.answers, seconds, strict=True
        ):
            by_waves = answer is not None and answer.source == BY_WAVES
            all_s += spent_s
            if kind != str(None) and not (by_waves and kind in CONTRACTIONS):
                own_s += spent_s
    return own_s / all_s if all_s else 0.0


@dataclass(frozen=True, slots=True)
class CoveredHosts:
    """The hosts that a range covers."""

    low: float
    """The time that the fastest of them takes, relative to the reference host's."""
    high: float
    """The same of the slowest of them."""
    names: tuple[str, ...]
    """The usual hosts among them (`wavecast calibrate --list`)."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many measured steps lay in ranges that were made without their GPU and source."""

    share: float
    """The share of all steps of the class."""
    least: float
    """The share of the set that did worst."""
    most: float
    """The share of the set that did best."""


@dataclass(frozen=True, slots=True)
class Widening:
    """The exponents of the low and the high end of a range, relative to the time.

    >>> Widening(below=2, above=1).widened(0.5, 1.25)
    (0.25, 1.25)
    """

    below: float
    above: float

    def widened(self, low: float, high: float) -> tuple[float, float]:
        """The ends of the widened range, relative to the step's time."""
        return low**self.below, high**self.above


@cache
def xla_widening() -> Widening:
    """The exponents of steps that XLA compiled, since all other ranges are of torch's steps."""
    table = shipped_toml("models/xla_ranges.toml")
    return Widening(table["below"], table["above"])


def spread_of(steps: Sequence[TimedTrace]) -> tuple[float, float]:
    """Low and high end of the GPU time of some traces, relative to it, from the ranges of ops.

    Errors of ops of one kind are taken as fully correlated, those of different kinds as
    independent. So the distances to the low and high ends add up within a kind, and their squares
    add up between kinds.
    """
    kind = steps[0].work.kind
    if len(steps) > 1:
        kind = encode([name for timed in steps for name in timed.work.kind_names])[1]
    columns = [timed.op_s.T * timed.arrays.counts for timed in steps]
    seconds, low, high = np.concatenate(columns, axis=1)
    below, above = (
        float(np.linalg.norm(np.bincount(kind, weights=distances)))
        for distances in (seconds - low, high - seconds)
    )
    total = float(seconds.sum()) or 1.0
    return max(1 - below / total, 0.0), 1 + above / total


def range_on_one_gpu(
    timed: TimedTrace, known: Familiarity | ScaledTo | None, makeup: Makeup, modelled: float
) -> tuple[float, float] | None:
    """The range of a step on one GPU; None where no measured steps gave one.

    No step that gave ranges ran as a CUDA graph.

    Args:
        timed: the step.
        known: how well the op models know the GPU, or how a measured step came to it. None if such
            steps were never compared with measured ones.
        makeup: what the GPU time is made of.
        modelled: the share of the GPU time for which op models answered; of a scaled step the
            share that was scaled by the method of its kind.
    """
    if known is None or isinstance(timed.host, GraphedHost) or modelled < least_modelled(known):
        return None
    gpu = gpu_factors(known, makeup)
    host = host_factors(known=is_known(timed.host, known))
    if gpu is None or host is None:
        return None
    if any(call.op.name == XLA_CALL for call in timed.arrays.calls[:1]):
        gpu = Spread(*xla_widening().widened(gpu.low, gpu.high))
    low = timed.play(gpu_factor=gpu.low * least_computed(timed), host_factor=host.low)
    high = timed.play(gpu_factor=gpu.high, host_factor=host.high)
    return low.seconds, high.seconds


def least_computed(timed: TimedTrace) -> float:
    """The share of the GPU time that is left if masks leave out all that data may close."""
    seconds = (timed.op_s[:, 0] * timed.arrays.counts).tolist()
    shares = (least_share(call.op) for call in timed.arrays.works)
    done = sum(spent_s * share for spent_s, share in zip(seconds, shares, strict=True))
    return done / sum(seconds) if any(seconds) else 1.0


def is_known(host: HostModel, known: Familiarity | ScaledTo) -> bool:
    """Whether a host was calibrated, or is the one on which the very step was measured."""
    return host.known or (isinstance(host, RecordedHost) and known is ScaledTo.SAME)


def least_modelled(known: Familiarity | ScaledTo = Familiarity.MEASURED) -> float:
    """The least share of a step's GPU time from op models, of the steps that gave ranges."""
    if not isinstance(known, ScaledTo):
        return float(_shipped()["modelled"])
    return float((_gpu_row(known) or {}).get("modelled", 0.0))


def gpu_factors(known: Familiarity | ScaledTo, makeup: Makeup) -> Spread | None:
    """The range of the GPU time, relative to it.

    Returns:
        None if nothing gave it.
    """
    row = _gpu_row(known)
    if row is None:
        return None
    below, above = (
        sum(width * getattr(makeup, name) for name, width in row[side].items())
        for side in ("below", "above")
    )
    return Spread(math.exp(-below), math.exp(above))


def host_factors(*, known: bool) -> Spread | None:
    """The range of the host's time, relative to it; None if nothing gave it."""
    row = _host_row(known)
    return None if row is None else Spread(math.exp(-row["below"]), math.exp(row["above"]))


def covered_hosts(host: HostModel) -> CoveredHosts | None:
    """The hosts that a range with this host covers.

    None for a host that was calibrated or measured, whose range is that of its own noise.

    >>> from wavecast.hardware.hosts import REFERENCE_HOST
    >>> "dgx-1" in covered_hosts(REFERENCE_HOST).names
    False
    """
    factors = host_factors(known=False)
    if not isinstance(host, Host) or host.known or factors is None:
        return None
    own = host.forward_s / REFERENCE_HOST.forward_s
    if not own:  # of a host that costs nothing
        return None
    low, high = own * factors.low, own * factors.high
    names = (usual.name for usual in usual_hosts().values() if low <= usual.factor <= high)
    return CoveredHosts(low, high, tuple(names))


def held(gpu_known: Familiarity | ScaledTo, *, known: bool, bound_by: str) -> Coverage | None:
    """How many measured steps lay in their ranges, of steps like this one.

    Args:
        gpu_known: how well the op models know the GPU, or how a measured step came to it.
        known: whether the host was calibrated.
        bound_by: "gpu", "host" or "both". For both, the figures of the one that held fewer.

    Returns:
        None if there are no such ranges.
    """
    gpu, host = _gpu_row(gpu_known), _host_row(known)
    if gpu is None or host is None:
        return None
    rows = {"gpu": [gpu], "host": [host]}.get(bound_by, [gpu, host])
    row = min(rows, key=lambda row: row["held"])
    return Coverage(row["held"], row["least"], row["most"])


def _gpu_row(known: Familiarity | ScaledTo) -> Mapping[str, Any] | None:
    part = "scaled" if isinstance(known, ScaledTo) else "gpu"
    row: Mapping[str, Any] | None = _shipped().get(part, {}).get(known)
    return row


def _host_row(known: bool) -> Mapping[str, Any] | None:
    row: Mapping[str, Any] | None = _shipped()["host"].get("known" if known else "unknown")
    return row


@cache
def _shipped() -> Mapping[str, Any]:
    return shipped_toml(FILE)


# The range of a step on several GPUs, by what its time is spent on and what is not known about it.
#
# While a rank computes, a step is as uncertain as one on one such GPU (`wavecast.steps.ranges`).
# What no op shows comes on top: the framework, the state of the network. That reaches as far as
# published steps need, in logarithms, and further for exposed communication and for steps with
# both tensor and pipeline ranks (`COMMUNICATION`, `LAYERED`). There is one width to each side. The
# two errors have nothing to do with each other, so their widths add up in squares.
# `lab/score/parallel_ranges.py` fits it, and judges each step by that of other sources. Hosts have
# the range that they have on one GPU.


PARALLEL_FILE = "models/parallel_ranges.toml"
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
    alone: Spread
    """The range of such work on one GPU."""
    hosts: Spread
    """The step's time with the fastest and the slowest hosts."""

    def ends(self, below: float, above: float) -> tuple[float, float]:
        """Low and high end, with such widths, in logarithms, for what no op shows.

        >>> alone, hosts = Spread(0.5, 2.0), Spread(0.9, 3.0)
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
    """Low and high end of a step's time; None where no measured steps gave a range."""
    parts = parts_of(ranks, makeup, seconds, host_s, exposed_s, idle_s)
    if parts is None:
        return None
    low, high = parts.ends(*_shipped_widths())
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
    hosts, factors = host_factors(known=ranks.alone.host.known), Spread(1.0, 1.0)
    if hosts is not None and host_s * hosts.high >= seconds / 2:
        fast, slow = (ranks.with_host(end).optimizer_step() for end in (hosts.low, hosts.high))
        factors = Spread(
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
def _shipped_widths() -> tuple[float, float]:
    table = shipped_toml(PARALLEL_FILE)
    return table["below"], table["above"]
