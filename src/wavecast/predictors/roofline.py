"""The physical bound: no op is faster than its FLOPs or its bytes allow (Williams et al., 2009)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from wavecast import ops
from wavecast.hardware.device import Device
from wavecast.hardware.rates import available
from wavecast.ops import Kind, Unit
from wavecast.predictors.base import Estimate, Predictor
from wavecast.traces.step import Op


@dataclass(frozen=True, slots=True)
class Demand:
    """What an op asks of a GPU, whichever it is."""

    kind: Kind
    unit: Unit
    flops: int
    nbytes: int
    crossing_bytes: int
    """Bytes that move between the host's memory and the GPU's."""
    kernels: int
    depthwise: bool


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time of an op on a GPU, and what sets it."""

    seconds: float
    kind: Kind
    unit: Unit | None
    """The arithmetic unit that sets it; None: moving bytes does."""


@lru_cache(maxsize=1 << 16)
def demand(op: Op) -> Demand | None:
    """What an op asks for, or None when there is no formula for it."""
    cost, kind, flops = ops.cost_of(op), ops.kind(op), ops.executed_flops(op)
    if cost is None or kind is None or flops is None:
        return None
    return Demand(
        kind=kind,
        unit=ops.unit(op),
        flops=flops,
        nbytes=cost.bytes,
        crossing_bytes=_crossing_bytes(op),
        kernels=ops.kernels(op),
        depthwise=ops.is_depthwise(op),
    )


def _crossing_bytes(op: Op) -> int:
    if not op.outputs or op.base not in ("aten._to_copy", "aten.copy_"):
        return 0
    places = {t.device for t in (*op.inputs, *op.outputs)}
    return op.outputs[0].nbytes if len(places) > 1 else 0


def bound(op: Op, device: Device) -> Bound | None:
    """The roofline of an op on a GPU; None where formula or facts are missing."""
    return max(limits(op, device), key=lambda limit: limit.seconds, default=None)


def limits(op: Op, device: Device) -> tuple[Bound, ...]:
    """What memory, then arithmetic needs for an op; empty where formula or facts are missing."""
    wanted = demand(op)
    if wanted is None:
        return ()
    if wanted.crossing_bytes:
        if device.pcie_bytes_per_s is None:
            return ()
        return (Bound(wanted.crossing_bytes / device.pcie_bytes_per_s, wanted.kind, None),)
    memory = Bound(wanted.nbytes / device.memory_bytes_per_s, wanted.kind, None)
    if not wanted.flops:
        return (memory,)
    unit = available(wanted.unit, device)
    rate = None if unit is None else device.rate(unit)
    if rate is None:
        return ()
    return memory, Bound(wanted.flops / rate, wanted.kind, unit)


@dataclass(frozen=True)
class Roofline(Predictor):
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
