"""Where a step's time goes on a GPU, and how well it is used (TBD, Zhu et al., IISWC 2018).

The same questions of a measured step, by its kernels, and of a predicted one, by its ops:
utilisation of the GPU, of its arithmetic units, idle time by cause, memory by kind, and the long
kernels that use the GPU badly. FLOPs are counted by the hardware where a measurement has them, and
computed from shapes elsewhere; a `Profile` says how much of its time rests on which.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from wavecast import intervals, ops
from wavecast.columns import peak_bytes
from wavecast.devices import Device
from wavecast.ops import Kind, Unit
from wavecast.prediction import Prediction
from wavecast.predictors.roofline import available
from wavecast.trace import Allocation, Call, Kernel, Measurement, Phase, Role, Trace
from wavecast.workspaces.estimate import with_workspaces

CAUSES = ("host", "synchronisation", "communication", "input")
"""Why a GPU may stand still."""

_MOVES = ("Memcpy", "Memset")
"""What no arithmetic unit does."""

_PRODUCT = re.compile(
    r"gemm|gemv|conv(?!ert)|xmma|cutlass|winograd|fft|nvjet|dgrad|wgrad|fprop|flash|fmha|sdpa"
    r"|attention|persist"
)
"""Kernels that do the work of products, convolutions, attention and recurrent layers."""

MEMORY_KINDS = ("weights", "weight gradients", "feature maps", "workspace", "dynamic")
"""TBD, section III-D3."""


@dataclass(frozen=True, slots=True)
class Work:
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
class Kernels:
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
    works: tuple[Work, ...]
    memory_bytes: Mapping[str, int | None]
    """The most ever allocated of each of `MEMORY_KINDS`; None: not recorded."""
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
    def kernels(self) -> tuple[Kernels, ...]:
        """All kernels by name, longest first."""
        groups: dict[str, list[Work]] = {}
        for work in self.works:
            groups.setdefault(work.name, []).append(work)
        total = sum(work.seconds for work in self.works) or 1.0
        found = (_together(name, group, total, self.device) for name, group in groups.items())
        return tuple(sorted(found, key=lambda each: -each.seconds))

    def wasteful(self, count: int = 5) -> tuple[Kernels, ...]:
        """The longest kernels that use the GPU less than the average one (TBD, tables V and VI)."""
        known = [
            each
            for each in self.kernels
            if each.utilisation is not None and not each.name.startswith(_MOVES)
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
    busy_s = intervals.busy_s(kernels)
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
        memory_bytes=memory_by_kind(trace),
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
        Work(call.op.base, seconds, *_demand(call), unit=_unit(call))
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
        memory_bytes=memory_by_kind(trace),
        samples=trace.samples,
        unit=trace.unit,
        issued_by=prediction.host.name,
        notes=trace.notes,
    )


def memory_by_kind(trace: Trace) -> dict[str, int | None]:
    """The most that each kind of memory ever takes (TBD, section III-D3).

    Feature maps are what the forward pass leaves for the backward pass; dynamic is what else comes
    and goes, and the optimizer's state; workspace is what libraries take for themselves: measured,
    or added by `with_workspaces`.
    """
    if not trace.allocations:
        return dict.fromkeys(MEMORY_KINDS)
    backward = next((i for i, c in enumerate(trace) if c.phase is Phase.BACKWARD), len(trace))
    groups: dict[str, list[Allocation]] = {kind: [] for kind in MEMORY_KINDS}
    for each in trace.allocations:
        groups[_memory_kind(each, backward)].append(each)
    found: dict[str, int | None] = {kind: peak_bytes(group) for kind, group in groups.items()}
    return found if groups["workspace"] else found | {"workspace": None}


def _memory_kind(allocation: Allocation, backward: int) -> str:
    if allocation.role in (Role.PARAMETER, Role.BUFFER):
        return "weights"
    if allocation.role is Role.GRADIENT:
        return "weight gradients"
    if allocation.role is Role.WORKSPACE:
        return "workspace"
    if allocation.role is Role.INTERMEDIATE:
        born = allocation.born if allocation.born is not None else 0
        crosses = born < backward and (allocation.freed is None or allocation.freed > backward)
        return "feature maps" if crosses else "dynamic"
    return "feature maps" if allocation.role is Role.INPUT else "dynamic"


def _works(call: Call) -> Iterable[Work]:
    """The kernels of a call; its work is shared by their times among those that do it.

    What only converts, reduces or fills on the side of a product (a convolution, an attention)
    does none of it.
    """
    flops, nbytes = _demand(call)
    unit = _unit(call)
    doing = [kernel for kernel in call.kernels if _PRODUCT.search(kernel.name)]
    doing = doing or [k for k in call.kernels if not k.name.startswith(_MOVES)]
    doing_s = sum(kernel.seconds for kernel in doing)
    does = set(map(id, doing))  # a recurrent layer has thousands
    for kernel in call.kernels:
        if kernel.flops is not None and kernel.dram_bytes is not None:
            yield Work(kernel.name, kernel.seconds, kernel.flops, kernel.dram_bytes, unit, True)
        elif flops is None or nbytes is None:
            yield Work(kernel.name, kernel.seconds, flops, nbytes, unit)
        else:
            share = kernel.seconds / doing_s if doing_s and id(kernel) in does else 0.0
            yield Work(kernel.name, kernel.seconds, share * flops, share * nbytes, unit)


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


def _share(works: Sequence[Work], chosen: Callable[[Work], bool]) -> float:
    total = sum(work.seconds for work in works)
    return sum(work.seconds for work in works if chosen(work)) / total if total else 0.0


def _together(name: str, group: Sequence[Work], total_s: float, device: Device) -> Kernels:
    seconds = sum(work.seconds for work in group)
    known = all(work.flops is not None and work.nbytes is not None for work in group)
    flops = sum(work.flops or 0.0 for work in group)
    nbytes = sum(work.nbytes or 0.0 for work in group)
    compute_s = sum((work.flops or 0.0) / (_rate(work.unit, device) or math.inf) for work in group)
    memory_s = nbytes / device.memory_bytes_per_s
    return Kernels(
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
        if (interval := intervals.interval_of(kernel)) is not None
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
    if kernel.name.startswith("Memcpy HtoD"):
        return "input"
    collective = (ops.kind(calls[i].op) is Kind.COLLECTIVE for i in (last, following))
    if any(collective):
        return "communication"
    first = bisect.bisect_left(waited, last)
    return "synchronisation" if first < len(waited) and waited[first] <= following else "host"
