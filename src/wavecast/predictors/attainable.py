"""The roofline at the share of it that ops of each kind attain, and a floor for small ones.

seconds = floor + bound / share

The shares are constants per kind and limit (compute by unit, or memory), fitted by
`training/attainable.py`; they know nothing of the GPU, so they carry over to one never seen.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from wavecast import ops
from wavecast.devices import Device
from wavecast.prediction import Estimate
from wavecast.predictors.roofline import Bound, bound
from wavecast.trace import Op


@dataclass(frozen=True, slots=True)
class Attained:
    """The share of the bound that ops of a kind reach, and the range of their real times."""

    share: float
    low: float
    """In steps with 90% of their time these ops together took `low` to `high` of the estimate."""
    high: float
    ops: int
    """How many measured ops this rests on."""


@dataclass(frozen=True)
class Attainable:
    """Constant efficiencies per kind of op."""

    shares: Mapping[str, Attained]
    """By "kind/limit", such as "matmul/bf16_tensor" or "norm/memory"; "other" for the rest."""
    floor_s: float
    """What the smallest kernel takes."""

    @classmethod
    def shipped(cls) -> Attainable:
        """The fit that comes with the package."""
        return _shipped()

    def predict(self, op: Op, device: Device) -> Estimate | None:
        """The bound of the op at the share its kind attains."""
        least = bound(op, device)
        if least is None:
            return None
        attained = self._share(op, least)
        seconds = self.floor_s * ops.kernels(op) + least.seconds / attained.share
        return Estimate(
            seconds=seconds,
            low_s=max(least.seconds, seconds * attained.low),
            high_s=max(seconds, seconds * attained.high),
            source="attainable",
        )

    def _share(self, op: Op, least: Bound) -> Attained:
        """The nearest that was measured: this unit, another of its sort, this kind, anything."""
        group = group_of(op, least)
        kind, _, limit = group.partition("/")
        sibling = "bf16_tensor" if limit.endswith("_tensor") else "fp32"
        for name in (group, f"{kind}/{sibling}", f"{kind}/memory"):
            if name in self.shares:
                return self.shares[name]
        return self.shares["other"]


def group_of(op: Op, least: Bound) -> str:
    """The ops an op is counted with: its kind and what limits it."""
    kind = "depthwise" if ops.is_depthwise(op) else str(least.kind)
    return f"{kind}/{least.unit or 'memory'}"


@cache
def _shipped() -> Attainable:
    text = resources.files("wavecast").joinpath("data/models/attainable.toml").read_text("utf-8")
    card = tomllib.loads(text)
    shares = {name: Attained(**values) for name, values in card["shares"].items()}
    return Attainable(shares, card["floor_s"])
