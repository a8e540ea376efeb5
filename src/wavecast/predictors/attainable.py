"""The roofline at the share of it that ops of each kind attain, and a floor for small ones.

seconds = max over limits of (floor * kernels + bound / share)

The limits are memory and an arithmetic unit, and each has its own share and floor, constants per
kind of op, fitted by `lab/fit/attainable.py`; they know nothing of the GPU, so they carry over
to one never seen. The largest counts, and not the share of the limit that sets the bound: else
an op would get slower on a better GPU where the other limit takes over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from wavecast.files import shipped_toml
from wavecast.hardware.device import Device
from wavecast.ops import is_depthwise
from wavecast.predictors.base import Estimate, Predictor
from wavecast.predictors.roofline import Bound, demand, limits
from wavecast.traces.step import Op


@dataclass(frozen=True, slots=True)
class Attained:
    """The share of the bound that ops of a kind reach, and the range of their real times."""

    share: float
    floor_s: float
    """What the smallest of them take."""
    low: float
    """On GPUs left out of the fit these ops took `low` to `high` times the estimate in all."""
    high: float
    ops: int
    """How many measured ops this rests on."""
    gpus: int
    """On how many GPUs."""


@dataclass(frozen=True)
class Attainable(Predictor):
    """Constant efficiencies per kind of op."""

    shares: Mapping[str, Attained]
    """By "kind/limit": tensor cores, other cores or memory, as in "matmul/tensor"; "other" for
    kinds that nobody measured."""

    @classmethod
    def shipped(cls) -> Attainable:
        """The fit that comes with the package."""
        return _shipped()

    def predict(self, op: Op, device: Device) -> Estimate | None:
        """The slowest of the op's limits, each at the share its kind attains."""
        least, wanted = limits(op, device), demand(op)
        if not least or wanted is None:
            return None
        seconds, attained = 0.0, self.shares["other"]
        for limit in least:
            share = self._share(_group(wanted.depthwise, limit))
            needed = share.floor_s * wanted.kernels + limit.seconds / share.share
            if needed > seconds:
                seconds, attained = needed, share
        if seconds <= 0:
            return None
        return Estimate(
            seconds=seconds,
            low_s=max(seconds * min(attained.low, 1.0), *(limit.seconds for limit in least)),
            high_s=seconds * max(attained.high, 1.0),
            source="attainable",
        )

    def _share(self, group: str) -> Attained:
        """The nearest that was measured: this limit, another of the kind, anything."""
        kind = group.partition("/")[0]
        for name in (group, f"{kind}/cores", f"{kind}/memory"):
            if name in self.shares:
                return self.shares[name]
        return self.shares["other"]


def group_of(op: Op, least: Bound) -> str:
    """The ops an op is counted with: its kind and what limits it."""
    return _group(is_depthwise(op), least)


def _group(depthwise: bool, limit: Bound) -> str:
    kind = "depthwise" if depthwise else limit.kind
    if limit.unit is None:
        return f"{kind}/memory"
    return f"{kind}/tensor" if limit.unit.endswith("_tensor") else f"{kind}/cores"


@cache
def _shipped() -> Attainable:
    card = shipped_toml("models/attainable.toml")
    shares = {name: Attained(**values) for name, values in card["shares"].items()}
    return Attainable(shares)
