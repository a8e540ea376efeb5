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

PAGEABLE_BYTES_PER_S = 1.8e10
"""The fastest copy between the GPU and memory that is not pinned: the driver copies it once more.
Copies of 4 to 64 MB ran at 12 to 16 GB/s on our H200, and at 54 GB/s from pinned memory
(measurements/h200/host_copies.json)."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The work of an op, independent of the GPU."""

    kind: Kind
    unit: Unit
    """The arithmetic unit that the op is meant for."""
    flops: int
    """FLOPs that are executed; a multiply-add counts two."""
    nbytes: int
    """Bytes that are read and written."""
    crossing_bytes: int
    """Bytes that are copied between the host's memory and the GPU's."""
    pinned: bool
    """Whether these are copied from pinned memory."""
    kernels: int
    """Kernels that the op launches."""
    depthwise: bool
    """Whether it is a depthwise convolution."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time of an op on a GPU, and the limit that sets it."""

    seconds: float
    kind: Kind
    unit: Unit | None
    """The arithmetic unit that sets it; None if moving bytes does."""


@lru_cache(maxsize=1 << 16)
def demand(op: Op) -> Demand | None:
    """The work of an op; None if there is no formula for it."""
    cost, kind, flops = ops.cost_of(op), ops.kind(op), ops.executed_flops(op)
    if cost is None or kind is None or flops is None:
        return None
    return Demand(
        kind=kind,
        unit=ops.unit(op),
        flops=flops,
        nbytes=cost.bytes,
        crossing_bytes=_crossing_bytes(op),
        pinned=ops.copies_pinned(op),
        kernels=ops.kernels(op),
        depthwise=ops.is_depthwise(op),
    )


def _crossing_bytes(op: Op) -> int:
    if not op.outputs or op.base not in ("aten._to_copy", "aten.copy_"):
        return 0
    places = {t.device for t in (*op.inputs, *op.outputs)}
    return op.outputs[0].nbytes if len(places) > 1 else 0


def bound(op: Op, device: Device) -> Bound | None:
    """The roofline of an op on a GPU; None if the formula or the GPU's rate is not known."""
    return max(limits(op, device), key=lambda limit: limit.seconds, default=None)


def limits(op: Op, device: Device) -> tuple[Bound, ...]:
    """The bounds of memory and, if the op computes, of arithmetic; empty if facts are missing."""
    work = demand(op)
    if work is None:
        return ()
    if work.crossing_bytes:
        if device.pcie_bytes_per_s is None:
            return ()
        link = device.pcie_bytes_per_s
        link = link if work.pinned else min(link, PAGEABLE_BYTES_PER_S)
        return (Bound(work.crossing_bytes / link, work.kind, None),)
    memory = Bound(work.nbytes / device.memory_bytes_per_s, work.kind, None)
    if not work.flops:
        return (memory,)
    unit = available(work.unit, device)
    rate = None if unit is None else device.rate(unit)
    if rate is None:
        return ()
    return memory, Bound(work.flops / rate, work.kind, unit)


@dataclass(frozen=True)
class Roofline(Predictor):
    """Predicts that each op takes exactly its physical bound: a baseline for other predictors.

    Real ops take longer, and small ones much longer. So the low end of the range is the bound, and
    the high end is the time at a share of `worst` of the bound's rate.
    """

    worst: float = 0.1
    """The share of the bound's rate at the high end of the range."""

    def predict(self, op: Op, device: Device) -> Estimate | None:
        """The roofline of the op."""
        least = bound(op, device)
        if least is None or least.seconds <= 0:
            return None
        return Estimate(least.seconds, least.seconds, least.seconds / self.worst, "roofline")
