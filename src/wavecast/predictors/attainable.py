"""The share of the roofline that ops of each kind attain, and a floor for small ops.

seconds = max over limits of (floor * kernels + bound / share)

The limits are memory and an arithmetic unit. Each kind of op has a share and a floor for each
limit, fitted by `lab/fit/attainable.py`. They do not depend on the GPU, so they apply to GPUs that
were never measured. The larger of the two sums counts. If only the limit with the larger bound
counted, an op could get slower on a better GPU, where the other limit takes over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from wavecast.files import shipped_toml
from wavecast.hardware.device import Device
from wavecast.predictors.base import Estimate, Predictor
from wavecast.predictors.roofline import Bound, Demand, demand, limits
from wavecast.traces.step import Op

CROSSING = "crossing/memory"
"""The group of copies between the host's memory and the GPU's."""


@dataclass(frozen=True, slots=True)
class Attained:
    """The share of the bound that ops of a kind attain, and the range of their real times."""

    share: float
    """The bound divided by the measured time, for large ops."""
    floor_s: float
    """The time of the smallest ops."""
    low: float
    """On GPUs left out of the fit, these ops took `low` to `high` times the estimate."""
    high: float
    ops: int
    """How many measured ops were in the fit."""
    gpus: int
    """On how many GPUs they were measured."""


@dataclass(frozen=True)
class Attainable(Predictor):
    """Predicts op times by one constant efficiency for each kind of op and limit."""

    shares: Mapping[str, Attained]
    """The constants by "kind/limit" ("matmul/tensor"); the limit is tensor cores, other cores or
    memory. "other" is for kinds that were not measured."""

    @classmethod
    @cache
    def shipped(cls) -> Attainable:
        """The fit that comes with the package."""
        shares = shipped_toml("models/attainable.toml")["shares"]
        return cls({name: Attained(**values) for name, values in shares.items()})

    def predict(self, op: Op, device: Device) -> Estimate | None:
        """The time of the slower limit, each at the share that its kind attains."""
        bounds, work = limits(op, device), demand(op)
        if not bounds or work is None:
            return None
        seconds, attained = 0.0, self.shares["other"]
        for limit in bounds:
            share = self._share(_group(work, limit))
            needed = share.floor_s * work.kernels + limit.seconds / share.share
            if needed > seconds:
                seconds, attained = needed, share
        if seconds <= 0:
            return None
        return Estimate(
            seconds=seconds,
            low_s=max(seconds * min(attained.low, 1.0), *(limit.seconds for limit in bounds)),
            high_s=seconds * max(attained.high, 1.0),
            source="attainable",
        )

    def _share(self, group: str) -> Attained:
        """The constants of a group, else of another limit of its kind, else "other"."""
        kind = group.partition("/")[0]
        for name in (group, f"{kind}/cores", f"{kind}/memory"):
            if name in self.shares:
                return self.shares[name]
        return self.shares["other"]


def group_of(op: Op, least: Bound) -> str:
    """The group of an op: its kind and the limit that sets its bound."""
    work = demand(op)
    assert work is not None  # it has a bound
    return _group(work, least)


def _group(work: Demand, limit: Bound) -> str:
    if work.crossing_bytes:
        return CROSSING
    kind = "depthwise" if work.depthwise else limit.kind
    if limit.unit is None:
        return f"{kind}/memory"
    return f"{kind}/tensor" if limit.unit.endswith("_tensor") else f"{kind}/cores"
