"""The ops of a step against the limits of a GPU: arithmetic intensity and attained rates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wavecast import ops
from wavecast.hardware.device import Device
from wavecast.hardware.rates import available
from wavecast.predictors.roofline import demand
from wavecast.steps.timetable import Work


@dataclass(frozen=True)
class RooflinePoint:
    """All calls of one op on one arithmetic unit, taken together."""

    name: str
    """The op, without its overload."""
    kind: str
    unit: str
    """The arithmetic unit on which the GPU runs it: "bf16_tensor"."""
    calls: int
    seconds: float
    flops: int
    nbytes: int

    @property
    def intensity(self) -> float:
        """FLOPs per byte that is moved."""
        return self.flops / self.nbytes if self.nbytes else 0.0

    @property
    def flops_per_s(self) -> float:
        """The rate that it attains."""
        return self.flops / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_s(self) -> float:
        """The memory traffic that it attains."""
        return self.nbytes / self.seconds if self.seconds else 0.0

    def attained(self, gpu: Device) -> float | None:
        """The share of the roof above it that it attains; None if the GPU's rate is unknown."""
        rate = gpu.rate(self.unit)
        if rate is None or not self.seconds:
            return None
        least_s = max(self.flops / rate, self.nbytes / gpu.memory_bytes_per_s)
        return least_s / self.seconds


def roofline_points(works: Iterable[Work], gpu: Device) -> tuple[RooflinePoint, ...]:
    """The ops of a step, longest first; those without a formula or traffic are left out."""
    points: dict[tuple[str, str], RooflinePoint] = {}
    for op, _, _, gpu_s, count in works:
        needed = demand(op)
        unit = None if needed is None else available(needed.unit, gpu)
        if needed is None or unit is None or not needed.nbytes or needed.crossing_bytes:
            continue
        so_far = points.get((op.base, unit)) or RooflinePoint(
            op.base, str(ops.kind(op)), unit, 0, 0.0, 0, 0
        )
        points[op.base, unit] = RooflinePoint(
            op.base,
            so_far.kind,
            unit,
            so_far.calls + count,
            so_far.seconds + gpu_s,
            so_far.flops + needed.flops * count,
            so_far.nbytes + needed.nbytes * count,
        )
    return tuple(sorted(points.values(), key=lambda point: -point.seconds))
