"""Where a step's time goes on a GPU, and how well it is used (TBD, Zhu et al., IISWC 2018).

The same questions of a measured step, by its kernels, and of a predicted one, by its ops:
utilisation of the GPU, of its arithmetic units, idle time by cause, memory by kind, and the long
kernels that use the GPU badly. FLOPs are counted by the hardware where a measurement has them, and
computed from shapes elsewhere; a `Profile` says how much of its time rests on which.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from wavecast import ops
from wavecast.footprint.kinds import peak_by_tbd_kind
from wavecast.footprint.workspaces.estimate import with_workspaces
from wavecast.hardware.device import Device
from wavecast.hardware.rates import available
from wavecast.ops import Kind, Unit
from wavecast.steps.prediction import Prediction
from wavecast.traces import kernel_names, overlap
from wavecast.traces.step import Call, Kernel, Measurement, Trace

CAUSES = ("host", "synchronisation", "communication", "input")
"""Why a GPU may stand still."""


@dataclass(frozen=True, slots=True)
class ProfiledWork:
    """A kernel of a measured step, or an op of a predicted one."""

    name: str
    seconds: float
    flops: float | None
    """None: nobody knows; not zero."""
    nbytes: float | None
    unit: Unit | None
    """The arithmetic unit that its FLOPs run on."""
    counted: bool = False
    """Whether the hardware counted FLOPs and bytes."""


@dataclass(frozen=True)
class KernelShare:
    """All runs of one kernel, or one op, together."""

    name: str
    runs: int
    seconds: float
    share: float
    """Of the GPU's active time."""
    utilisation: float | None
    """Of its arithmetic unit's peak; None where FLOPs are not known."""
    intensity: float | None
    """FLOPs per byte of memory."""
    attained: float | None
    """Of the roofline: what it needs at least over what it took."""
    bound_by: str | None
    """What sets the roofline here: "memory" or "compute"."""


@dataclass(frozen=True)
class Profile:
    """One training step on one GPU, looked at."""

    name: str
    device: Device
    measured: bool
    seconds: float
    gpu_s: float
    """Time in which at least one kernel ran (TBD, eq. 1)."""
    host_s: float | None
    idle_s: Mapping[str, float]
    """Time in which none ran, by cause."""
    works: tuple[ProfiledWork, ...]
    memory_bytes: Mapping[str, int | None]
    """The most ever allocated of each of `TBD_KINDS`; None: not recorded."""
    samples: int | None = None
    unit: str = "samples"
    cpu_utilisation: float | None = None
    """Of all cores of the host (TBD, eq. 3); None: not measured."""
    issued_by: str = ""
    """The host that a prediction assumes."""
    notes: tuple[str, ...] = ()

    @property
    def throughput(self) -> float | None:
        """Samples (or other `unit`) per second."""
        return self.samples / self.seconds if self.samples and self.seconds else None

    @property
    def gpu_utilisation(self) -> float:
        """Active over elapsed time (TBD, eq. 1)."""
        return self.gpu_s / self.seconds if self.seconds else 0.0

    @cached_property
    def utilisation(self) -> Mapping[str, float]:
        """Of "fp32" cores and "tensor" cores, over the GPU's active time (TBD, eq. 2)."""
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
        """The part of the GPU's active time whose FLOPs are known."""
        return _share(self.works, lambda work: work.flops is not None)

    @property
    def counted_share(self) -> float:
        """The part of it whose FLOPs the hardware counted."""
        return _share(self.works, lambda work: work.counted)

    @cached_property
    def kernels(self) -> tuple[KernelShare, ...]:
        """All kernels by name, longest first."""
        groups: dict[str, list[ProfiledWork]] = {}
        for work in self.works:
            groups.setdefault(work.name, []).append(work)
        total = sum(work.seconds for work in self.works) or 1.0
        found = (_together(name, group, total, self.device) for name, group in groups.items())
        return tuple(sorted(found, key=lambda each: -each.seconds))

    def wasteful(self, count: int = 5) -> tuple[KernelShare, ...]:
        """The longest kernels that use the GPU less than the average one (TBD, tables V and VI)."""
        known = [
            each
            for each in self.kernels
            if each.utilisation is not None and not kernel_names.is_copy(each.name)
        ]
        total = sum(each.seconds for each in known)
        if not total:
            return ()
        average = sum((each.utilisation or 0.0) * each.seconds for each in known) / total
        return tuple(each for each in known if (each.utilisation or 0.0) < average)[:count]


def profile_measured(name: str, trace: Trace, device: Device) -> Profile:
    """What a measured trace shows."""
    kernels = [kernel for call in trace for kernel in call.kernels]
    whole = trace.measurement
    busy_s = overlap.busy_s(kernels)
    gpu_s = whole.gpu_s if whole and whole.gpu_s is not None else busy_s
    seconds = whole.seconds if whole and whole.seconds is not None else busy_s
    return Profile(
        name=name,
        device=device,
        measured=True,
        seconds=seconds,
        gpu_s=min(gpu_s, seconds),
        host_s=whole.host_s if whole else None,
        idle_s=_idle(trace.calls, max(0.0, seconds - gpu_s), _begins_idle(whole)),
        works=tuple(work for call in trace for work in _works(call)),
        memory_bytes=peak_by_tbd_kind(trace),
        samples=trace.samples,
        unit=trace.unit,
        cpu_utilisation=_cpu_utilisation(whole),
        notes=trace.notes,
    )


def _cpu_utilisation(whole: Measurement | None) -> float | None:
    if whole is None or not whole.seconds or whole.cpu_s is None or not whole.cores:
        return None
    return whole.cpu_s / (whole.cores * whole.seconds)


def profile_predicted(name: str, prediction: Prediction) -> Profile:
    """What a prediction says of a step that nobody ran."""
    trace = with_workspaces(prediction.trace, prediction.device)
    idle_s = max(0.0, prediction.seconds - prediction.gpu_s)
    # Without its waits the step would take as long as the slower of host and GPU, which stands
    # still between kernels, too.
    step = prediction.step
    unhurried_s = max(0.0, max(step.host_s, step.gpu_s) - prediction.gpu_s)
    host_s = min(idle_s, unhurried_s)
    works = (
        ProfiledWork(call.op.base, seconds, *_demand(call), unit=_unit(call))
        for call, seconds in zip(trace, prediction.call_s, strict=True)
        if seconds
    )
    return Profile(
        name=name,
        device=prediction.device,
        measured=False,
        seconds=prediction.seconds,
        gpu_s=prediction.gpu_s,
        host_s=prediction.host_s,
        idle_s={"host": host_s, "synchronisation": idle_s - host_s},
        works=tuple(works),
        memory_bytes=peak_by_tbd_kind(trace),
        samples=trace.samples,
        unit=trace.unit,
        issued_by=prediction.host.name,
        notes=trace.notes,
    )


def _works(call: Call) -> Iterable[ProfiledWork]:
    """The kernels of a call; its work is shared by their times among those that do it.

    What only converts, reduces or fills on the side of a product (a convolution, an attention)
    does none of it.
    """
    flops, nbytes = _demand(call)
    unit = _unit(call)
    doing = [kernel for kernel in call.kernels if kernel_names.is_product(kernel.name)]
    doing = doing or [k for k in call.kernels if not kernel_names.is_copy(k.name)]
    doing_s = sum(kernel.seconds for kernel in doing)
    does = set(map(id, doing))  # a recurrent layer has thousands
    for kernel in call.kernels:
        if kernel.flops is not None and kernel.dram_bytes is not None:
            yield ProfiledWork(
                kernel.name, kernel.seconds, kernel.flops, kernel.dram_bytes, unit, True
            )
        elif flops is None or nbytes is None:
            yield ProfiledWork(kernel.name, kernel.seconds, flops, nbytes, unit)
        else:
            share = kernel.seconds / doing_s if doing_s and id(kernel) in does else 0.0
            yield ProfiledWork(kernel.name, kernel.seconds, share * flops, share * nbytes, unit)


def _demand(call: Call) -> tuple[float | None, float | None]:
    flops, cost = ops.executed_flops(call.op), ops.cost_of(call.op)
    return flops, None if cost is None else float(cost.bytes)


def _unit(call: Call) -> Unit | None:
    return ops.unit(call.op) if ops.has_shapes(call.op) else None


def _rate(unit: Unit | None, device: Device) -> float | None:
    there = None if unit is None else available(unit, device)
    return None if there is None else device.rate(there)


def _on_tensor_cores(unit: Unit | None, device: Device) -> bool:
    there = None if unit is None else available(unit, device)
    return there is not None and there.endswith("_tensor")


def _share(works: Sequence[ProfiledWork], chosen: Callable[[ProfiledWork], bool]) -> float:
    total = sum(work.seconds for work in works)
    return sum(work.seconds for work in works if chosen(work)) / total if total else 0.0


def _together(
    name: str, group: Sequence[ProfiledWork], total_s: float, device: Device
) -> KernelShare:
    seconds = sum(work.seconds for work in group)
    known = all(work.flops is not None and work.nbytes is not None for work in group)
    flops = sum(work.flops or 0.0 for work in group)
    nbytes = sum(work.nbytes or 0.0 for work in group)
    compute_s = sum((work.flops or 0.0) / (_rate(work.unit, device) or math.inf) for work in group)
    memory_s = nbytes / device.memory_bytes_per_s
    return KernelShare(
        name=name,
        runs=len(group),
        seconds=seconds,
        share=seconds / total_s,
        utilisation=compute_s / seconds if known and seconds else None,
        intensity=flops / nbytes if known and nbytes else None,
        attained=max(compute_s, memory_s) / seconds if known and seconds else None,
        bound_by=("compute" if compute_s > memory_s else "memory") if known else None,
    )


def _begins_idle(whole: Measurement | None) -> bool:
    """Whether the recorded iteration began on an idle GPU, as one that is taken apart does."""
    return whole is not None and whole.recorded_s is not None


def _idle(calls: Sequence[Call], idle_s: float, from_start: bool) -> dict[str, float]:
    """Idle time by cause, shared out as the recorded gaps between kernels have it.

    A gap belongs to the host, unless the call before it waited for the GPU (the queue was empty
    because of the wait), or data was on its way (input), or another GPU was (communication).
    `from_start`: what lies before the first kernel is a gap, too.
    """
    gaps = dict.fromkeys(CAUSES, 0.0)
    runs = sorted(
        (interval, index, kernel)
        for index, call in enumerate(calls)
        for kernel in call.kernels
        if (interval := overlap.interval_of(kernel)) is not None
    )
    waited = [i for i, call in enumerate(calls) if call.syncs]
    end = runs[0][0][0] if runs and not from_start else 0.0
    last = 0
    for (begin, finish), index, kernel in runs:
        if begin > end:
            gaps[_cause(calls, waited, last, index, kernel)] += begin - end
        if finish > end:
            end, last = finish, index
    total = sum(gaps.values())
    if not total:
        return gaps | {"host": idle_s}
    return {cause: idle_s * gap / total for cause, gap in gaps.items()}


def _cause(
    calls: Sequence[Call], waited: Sequence[int], last: int, following: int, kernel: Kernel
) -> str:
    if kernel_names.copies_to_gpu(kernel.name):
        return "input"
    collective = (ops.kind(calls[i].op) is Kind.COLLECTIVE for i in (last, following))
    if any(collective):
        return "communication"
    first = bisect.bisect_left(waited, last)
    return "synchronisation" if first < len(waited) and waited[first] <= following else "host"
