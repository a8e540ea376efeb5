"""The physical bound: no op is faster than its FLOPs or its bytes allow (Williams et al., 2009)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from wavecast import ops
from wavecast.devices import Device
from wavecast.ops import Kind, Unit
from wavecast.prediction import Estimate
from wavecast.trace import Op


@dataclass(frozen=True, slots=True)
class Demand:
    """What an op asks of a GPU, whichever it is."""

    kind: Kind
    unit: Unit
    flops: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time of an op on a GPU, and what sets it."""

    seconds: float
    kind: Kind
    unit: Unit | None
    """The arithmetic unit that sets it; None: moving bytes does."""


@lru_cache(maxsize=65536)
def demand(op: Op) -> Demand | None:
    """What an op asks for, or None when there is no formula for it."""
    cost, kind, flops = ops.cost_of(op), ops.kind(op), ops.executed_flops(op)
    if cost is None or kind is None or flops is None:
        return None
    return Demand(kind, ops.unit(op), flops, cost.bytes)


def bound(op: Op, device: Device) -> Bound | None:
    """The roofline of an op on a GPU; None where formula or facts are missing."""
    wanted = demand(op)
    if wanted is None:
        return None
    if crossing_bytes := _crossing_bytes(op):
        if device.pcie_bytes_per_s is None:
            return None
        return Bound(crossing_bytes / device.pcie_bytes_per_s, wanted.kind, None)
    memory_s = wanted.nbytes / device.memory_bytes_per_s
    if not wanted.flops:
        return Bound(memory_s, wanted.kind, None)
    unit = available(wanted.unit, device)
    if unit is None:
        return None
    compute_s = wanted.flops / (device.rate(unit) or 1.0)
    if compute_s > memory_s:
        return Bound(compute_s, wanted.kind, unit)
    return Bound(memory_s, wanted.kind, None)


def available(unit: Unit, device: Device) -> Unit | None:
    """The unit on which this GPU runs what asks for `unit`: itself, or what stands in for it."""
    for candidate in (unit, *ops.fallbacks(unit)):
        if device.rate(candidate) is not None:
            return candidate
    return None


def _crossing_bytes(op: Op) -> int:
    """Bytes that an op moves between host and GPU memory."""
    if not op.outputs or op.base not in ("aten._to_copy", "aten.copy_"):
        return 0
    places = {t.device for t in (*op.inputs, *op.outputs)}
    return op.outputs[0].nbytes if len(places) > 1 else 0


@dataclass(frozen=True)
class Roofline:
    """Each op takes exactly as long as physics demands: the baseline that others must beat.

    Real ops take longer, small ones much longer, so the range is open upwards: `high_s` is
    what an op takes at `worst` of the bound.
    """

    worst: float = 0.1

    def predict(self, op: Op, device: Device) -> Estimate | None:
        """The roofline of the op."""
        least = bound(op, device)
        if least is None or least.seconds <= 0:
            return None
        return Estimate(least.seconds, least.seconds, least.seconds / self.worst, "roofline")
