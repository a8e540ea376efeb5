"""The share of the roofline that ops of each kind attain, and a floor for small ops.

    seconds = max over limits of (floor * kernels + bound / share)

The limits are memory and an arithmetic unit. Each kind of op has a share and a floor for each
limit, fitted by `lab/fit/attainable.py`. They do not depend on the GPU, so they apply to GPUs that
were never measured. The larger of the two sums counts, because an op could get slower on a better
GPU if the sum of the larger bound did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

from wavecast import ops
from wavecast.files import shipped_toml
from wavecast.hardware.devices import AMPERE_SHARE, Device, available
from wavecast.ops import Kind, Unit
from wavecast.predictors.base import Estimate, Predictor
from wavecast.traces.step import Op

CROSSING = "crossing/memory"
"""The group of copies between the host's memory and the GPU's."""


@dataclass(frozen=True, slots=True)
class Attained:
    """The share of the bound that ops of a kind attain, and the range of their real times."""

    share: float
    """The bound divided by the measured time, for large ops."""
    floor_s: float
    low: float
    """On GPUs left out of the fit, these ops took `low` to `high` times the estimate."""
    high: float
    ops: int
    gpus: int


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


# The physical bound: no op is faster than its FLOPs or its bytes allow (Williams et al., 2009).


PAGEABLE_BYTES_PER_S = 1.8e10
"""The fastest copy between the GPU and memory that is not pinned, since the driver copies it once
more: 12 to 16 GB/s on our H200, which has 54 GB/s from pinned memory
(measurements/h200/host_copies.json)."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The work of an op, independent of the GPU."""

    kind: Kind
    unit: Unit
    flops: int
    """FLOPs that are executed; a multiply-add counts two."""
    nbytes: int
    crossing_bytes: int
    """Bytes that are copied between the host's memory and the GPU's."""
    pinned: bool
    """Whether these are copied from pinned memory."""
    kernels: int
    depthwise: bool


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

    The bound is the low end of the range; the high end is at a share of `worst` of its rate.
    """

    worst: float = 0.1
    """The share of the bound's rate at the high end of the range."""

    def predict(self, op: Op, device: Device) -> Estimate | None:
        """The roofline of the op."""
        least = bound(op, device)
        if least is None or least.seconds <= 0:
            return None
        return Estimate(least.seconds, least.seconds, least.seconds / self.worst, "roofline")


# The time of FlashAttention's first kernels (2022), which frameworks of 2023 ran.
#
# No times of them are public, only how much of an A100's peak they attained: 30 to 50% in the
# forward pass, 25 to 35% in the backward pass (Dao, "FlashAttention-2", 2023, section 1). We take
# the middle of each, also for the version in Triton.


FIRST = "first_flash"
"""The attribute of attention that these kernels compute."""


@dataclass(frozen=True, slots=True)
class _Attained:
    low: float
    high: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


_FORWARD, _BACKWARD = _Attained(0.30, 0.50), _Attained(0.25, 0.35)


def first_flash(op: Op, device: Device, later: Estimate | None) -> Estimate | None:
    """The time of attention by the first kernels; None if a rate of the GPU is not known.

    It is at least `later`, the time of FlashAttention 2: both wait for the same things where
    sequences are few or short.
    """
    bounds = limits(op, device)
    if not bounds:
        return later
    peak = AMPERE_SHARE.get((device.compute_capability or (0,))[0], 1.0)
    attained = _BACKWARD if "backward" in op.base else _FORWARD
    memory_s = max(limit.seconds for limit in bounds if limit.unit is None)
    compute_s = max((limit.seconds for limit in bounds if limit.unit is not None), default=0.0)
    shares = (attained.middle, attained.high, attained.low)
    middle, low, high = (max(memory_s, compute_s / (peak * share)) for share in shares)
    if later is not None and later.seconds >= middle:
        return later
    return Estimate(middle, low, high, "FlashAttention 1") if middle > 0 else None
