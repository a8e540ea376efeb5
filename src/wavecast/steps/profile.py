"""Where the time of a step goes on a GPU, and how well the GPU is used.

The figures are those of TBD (Zhu et al., IISWC 2018): utilisation of the GPU and of its arithmetic
units, idle time by cause, memory by kind, and the long kernels that use the GPU badly. FLOPs are
those that the hardware counted where a measurement has them, else computed from shapes; a `Profile`
says how much of its time rests on which.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from wavecast.errors import InvalidInput
from wavecast.hardware.device import Device
from wavecast.hardware.rates import available
from wavecast.ops import Unit
from wavecast.predictors.base import refuse_impossible
from wavecast.showing import Shown
from wavecast.traces import kernel_names


@dataclass(frozen=True, slots=True)
class ProfiledWork:
    """One run of a kernel in a measured step, or one call of an op in a predicted step."""

    name: str
    seconds: float
    """Its GPU time."""
    flops: float | None
    """The FLOPs that it executes. None when unknown, which is not 0."""
    nbytes: float | None
    """The bytes of GPU memory that it reads and writes. None when unknown."""
    unit: Unit | None
    """The arithmetic unit that its FLOPs run on. None when unknown."""
    counted: bool = False
    """Whether the hardware counted FLOPs and bytes; else they are computed from shapes."""


@dataclass(frozen=True)
class KernelShare:
    """All runs of one kernel, or all calls of one op, taken together."""

    name: str
    runs: int
    seconds: float
    """The GPU time of all runs."""
    share: float
    """The fraction of all kernels' time, 0 to 1."""
    utilisation: float | None
    """FLOP/s divided by the peak of its arithmetic unit. None when its FLOPs are unknown."""
    intensity: float | None
    """FLOPs per byte of GPU memory traffic. None when unknown."""
    attained: float | None
    """The roofline's lower bound of its time, divided by its time. None when unknown."""
    bound_by: str | None
    """What sets the roofline's bound: "memory" or "compute". None when unknown."""


@dataclass(frozen=True, repr=False)
class Profile(Shown):
    """The profile of one training step on one GPU."""

    name: str
    device: Device
    measured: bool
    """True for a measured step, False for a predicted one."""
    seconds: float
    """One iteration by the wall clock."""
    gpu_s: float
    """Seconds in which at least one kernel ran (TBD, eq. 1)."""
    host_s: float | None
    """Seconds that the host needs to issue one iteration. None when unknown."""
    idle_s: Mapping[str, float]
    """Seconds in which no kernel ran, by cause (`idle.CAUSES`)."""
    works: tuple[ProfiledWork, ...]
    """The kernels (or, in a prediction, the ops) in the order in which they were issued."""
    memory_bytes: Mapping[str, int | None]
    """The peak of the memory of each of `TBD_KINDS`. None when it was not recorded."""
    samples: int | None = None
    """Samples per iteration. None when unknown."""
    unit: str = "samples"
    cpu_utilisation: float | None = None
    """The busy share of all cores of the host (TBD, eq. 3). None when it was not measured."""
    issued_by: str = ""
    """The name of the host that a prediction assumes; empty for a measurement."""
    notes: tuple[str, ...] = ()
    unpredicted: Mapping[str, int] = field(default_factory=dict)
    """The number of calls of each op that was not predicted and counts as 0 s, by op name."""
    unpredicted_share: float = 0.0
    """The share of these ops in the step's work, as in `Prediction`."""

    def __post_init__(self) -> None:
        refuse_impossible(f"the step of {self.name} on {self.device.id}", self.seconds)
        if not 0 <= self.gpu_s <= self.seconds * (1 + 1e-9):
            raise InvalidInput(
                f"the GPU is busy for {self.gpu_s:g} s in a step of {self.seconds:g} s of "
                f"{self.name} on {self.device.id}, which cannot be; measure the step again"
            )

    @property
    def throughput(self) -> float | None:
        """Samples (or other `unit`) per second."""
        return self.samples / self.seconds if self.samples and self.seconds else None

    @property
    def gpu_utilisation(self) -> float:
        """The share of the iteration in which a kernel ran, 0 to 1 (TBD, eq. 1)."""
        return self.gpu_s / self.seconds if self.seconds else 0.0

    @cached_property
    def utilisation(self) -> Mapping[str, float]:
        """Utilisation of "fp32" cores and "tensor" cores while the GPU is busy (TBD, eq. 2)."""
        used = {"fp32": 0.0, "tensor": 0.0}
        for work in self.works:
            rate = _rate(work.unit, self.device)
            if work.flops and rate:
                used["tensor" if _on_tensor_cores(work.unit, self.device) else "fp32"] += (
                    work.flops / rate
                )
        return {name: seconds / self.gpu_s if self.gpu_s else 0.0 for name, seconds in used.items()}

    @property
    def known_share(self) -> float:
        """The share of all kernels' time whose FLOPs are known, 0 to 1."""
        return _share(self.works, lambda work: work.flops is not None)

    @property
    def counted_share(self) -> float:
        """The share of all kernels' time whose FLOPs the hardware counted, 0 to 1."""
        return _share(self.works, lambda work: work.counted)

    @cached_property
    def kernels(self) -> tuple[KernelShare, ...]:
        """All kernels by name, longest first."""
        groups: dict[str, list[ProfiledWork]] = {}
        for work in self.works:
            groups.setdefault(work.name, []).append(work)
        total_s = sum(work.seconds for work in self.works) or 1.0
        shares = (_kernel_share(name, runs, total_s, self.device) for name, runs in groups.items())
        return tuple(sorted(shares, key=lambda kernel: -kernel.seconds))

    def wasteful(self, count: int = 5) -> tuple[KernelShare, ...]:
        """The longest kernels of below-average utilisation, at most `count` (TBD, tables V, VI)."""
        rated = [
            kernel
            for kernel in self.kernels
            if kernel.utilisation is not None and not kernel_names.is_copy(kernel.name)
        ]
        total_s = sum(kernel.seconds for kernel in rated)
        if not total_s:
            return ()
        average = sum((kernel.utilisation or 0.0) * kernel.seconds for kernel in rated) / total_s
        return tuple(kernel for kernel in rated if (kernel.utilisation or 0.0) < average)[:count]


def _rate(unit: Unit | None, device: Device) -> float | None:
    used = None if unit is None else available(unit, device)
    return None if used is None else device.rate(used)


def _on_tensor_cores(unit: Unit | None, device: Device) -> bool:
    used = None if unit is None else available(unit, device)
    return used is not None and used.endswith("_tensor")


def _share(works: Sequence[ProfiledWork], chosen: Callable[[ProfiledWork], bool]) -> float:
    total = sum(work.seconds for work in works)
    return sum(work.seconds for work in works if chosen(work)) / total if total else 0.0


def _kernel_share(
    name: str, runs: Sequence[ProfiledWork], total_s: float, device: Device
) -> KernelShare:
    seconds = sum(work.seconds for work in runs)
    complete = all(work.flops is not None and work.nbytes is not None for work in runs)
    flops = sum(work.flops or 0.0 for work in runs)
    nbytes = sum(work.nbytes or 0.0 for work in runs)
    compute_s = sum((work.flops or 0.0) / (_rate(work.unit, device) or math.inf) for work in runs)
    memory_s = nbytes / device.memory_bytes_per_s
    return KernelShare(
        name=name,
        runs=len(runs),
        seconds=seconds,
        share=seconds / total_s,
        utilisation=compute_s / seconds if complete and seconds else None,
        intensity=flops / nbytes if complete and nbytes else None,
        attained=max(compute_s, memory_s) / seconds if complete and seconds else None,
        bound_by=("compute" if compute_s > memory_s else "memory") if complete else None,
    )
