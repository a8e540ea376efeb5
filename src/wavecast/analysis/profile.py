"""Where the time of a step goes on a GPU, and how well the GPU is used.

The figures are those of TBD (Zhu et al., IISWC 2018): utilisation of the GPU and of its arithmetic
units, idle time by cause, memory by kind, and the long kernels that use the GPU badly. FLOPs are
those that the hardware counted where a measurement has them, else computed from shapes; a `Profile`
says how much of its time rests on which.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.footprint.memory import peak_by_tbd_kind
from wavecast.footprint.workspaces import with_workspaces
from wavecast.hardware.devices import Device, available
from wavecast.ops import Kind, Unit
from wavecast.predictors.attainable import demand
from wavecast.results import Shown, checked
from wavecast.steps.player import Work
from wavecast.steps.prediction import Prediction
from wavecast.steps.request import refuse_impossible_measurement
from wavecast.traces import file, kernel_names
from wavecast.traces.step import Call, Kernel, Measurement, Trace


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
    exposed_s: float = 0.0
    """Seconds in which the GPU communicates and computes nothing."""
    idle_at: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """Where the GPU idles longest for a cause: a line, module or op, and its share in the cause."""

    def __post_init__(self) -> None:
        what = f"the step of {self.name} on {self.device.id}"
        checked(self, what, ("seconds", "gpu_s", "host_s", "idle_s", "memory_bytes"))
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


def profile_measured(name: str, trace: Trace, device: Device) -> Profile:
    """The profile of a measured trace; `device` is the GPU on which it was measured."""
    kernels = [kernel for call in trace for kernel in call.kernels]
    whole = trace.measurement
    if whole is not None:
        refuse_impossible_measurement(trace, whole)
    busy_s = file.busy_s(kernels)
    gpu_s = whole.gpu_s if whole and whole.gpu_s is not None else busy_s
    seconds = whole.seconds if whole and whole.seconds is not None else busy_s
    # An iteration whose parts were recorded began on an idle GPU.
    from_start = whole is not None and whole.recorded_s is not None
    return Profile(
        name=name,
        device=device,
        measured=True,
        seconds=seconds,
        gpu_s=min(gpu_s, seconds),
        host_s=whole.host_s if whole else None,
        idle_s=idle_by_cause(trace.calls, max(0.0, seconds - gpu_s), from_start=from_start),
        works=tuple(work for call in trace for work in _works(call)),
        memory_bytes=peak_by_tbd_kind(trace),
        samples=trace.samples,
        unit=trace.unit,
        cpu_utilisation=_cpu_utilisation(whole),
        notes=(*trace.notes, *_note_of_overrun(gpu_s, seconds)),
        exposed_s=_exposed_s(trace),
        idle_at=idle_places(trace.calls, from_start=from_start),
    )


def _note_of_overrun(gpu_s: float, seconds: float) -> Iterator[str]:
    """That the GPU's work took longer than the step, if a utilisation above 100% would be shown."""
    if seconds and round(gpu_s / seconds, 2) > 1:
        yield (
            f"the GPU utilisation was measured as {gpu_s / seconds:.0%} and is shown as 100%: its "
            "work and the step were timed in different iterations, and kernels take longer where "
            "a profiler records them, or beside those of the next step"
        )


def _exposed_s(trace: Trace) -> float:
    """The time in which a collective runs on the GPU and nothing else."""
    own: tuple[list[Kernel], list[Kernel]] = [], []
    for call in trace:
        for kernel in call.kernels:
            own[kernel_names.is_collective(kernel.name)].append(kernel)
    computing, every = (file.busy_s(kernels) for kernels in (own[0], [*own[0], *own[1]]))
    return every - computing if own[1] else 0.0


def _cpu_utilisation(whole: Measurement | None) -> float | None:
    if whole is None or not whole.seconds or whole.cpu_s is None or not whole.cores:
        return None
    return whole.cpu_s / (whole.cores * whole.seconds)


def _name(call: Call) -> str:
    """The name of an op; for a fused kernel also its line of source and what was fused."""
    if ops.kind(call.op) is not Kind.FUSED:
        return call.op.base
    at = f" at {call.line}" if call.line else ""
    return f"{call.op.base}{at}: {call.op.attr('fused', '')}".rstrip(": ")


def profile_predicted(name: str, prediction: Prediction) -> Profile:
    """The profile of a predicted step; on several GPUs, of one rank over all its micro-batches."""
    trace = with_workspaces(prediction.fullest, prediction.device)
    works = [
        ProfiledWork(_name(call), seconds, *_demand(call), unit=_unit(call))
        for timed, times in prediction.runs
        for call, seconds in zip(timed.trace, timed.call_s, strict=True)
        for _ in range(times)
        if seconds
    ]
    return Profile(
        name=name,
        device=prediction.device,
        measured=False,
        seconds=prediction.seconds,
        gpu_s=_busy_s(prediction),
        host_s=prediction.host_s,
        idle_s=_idle_by_cause(prediction),
        works=tuple(works),
        memory_bytes=peak_by_tbd_kind(trace),
        samples=prediction.samples,
        unit=trace.unit,
        issued_by=prediction.host.name,
        notes=(*trace.notes, *(f"on {prediction.name}: {n}" for n in prediction.notes)),
        unpredicted=prediction.unpredicted,
        unpredicted_share=prediction.unpredicted_share,
        exposed_s=0.0 if prediction.parallel is None else prediction.exposed_s,
        idle_at=_waiting_at(prediction.trace),
    )


def _waiting_at(trace: Trace) -> dict[str, tuple[str, float]]:
    """The line of source at which the host waits for the GPU most often."""
    lines = Counter(call.line for call in trace if call.syncs and call.line)
    if not lines:
        return {}
    [(line, times)] = lines.most_common(1)
    return {"synchronisation": (line, times / lines.total())}


def _busy_s(prediction: Prediction) -> float:
    """The time in which kernels run: on several GPUs, with collectives beside them."""
    return prediction.gpu_s if prediction.parallel is None else prediction.step.gpu_s


def _idle_by_cause(prediction: Prediction) -> dict[str, float]:
    """The time in which no kernel runs, by cause."""
    lost_s = {}
    if prediction.parallel is not None:
        lost_s = {
            "communication": prediction.exposed_s,
            "pipeline bubble": prediction.idle_s,
            "slowest rank": prediction.waiting_s,
        }
    step, busy_s = prediction.step, _busy_s(prediction)
    idle_s = max(0.0, prediction.seconds - busy_s - sum(lost_s.values()))
    # Without synchronisations the step would take as long as the slower of host and GPU (gaps
    # between kernels included). That much idle time is the host's; the rest is synchronisation.
    host_s = min(idle_s, max(0.0, max(step.host_s, step.gpu_s) - busy_s))
    return {"host": host_s, "synchronisation": idle_s - host_s, **lost_s}


def _works(call: Call) -> Iterable[ProfiledWork]:
    """The kernels of a call, with its FLOPs and bytes shared out in proportion to their times.

    In a call with matmuls (a convolution, an attention) only the product kernels share
    them: kernels that convert, reduce or fill beside them get none.
    """
    flops, nbytes = _demand(call)
    unit = _unit(call)
    shares = [kernel_names.is_product(kernel.name) for kernel in call.kernels]
    if not any(shares):
        shares = [not kernel_names.is_copy(kernel.name) for kernel in call.kernels]
    pairs = list(zip(call.kernels, shares, strict=True))
    sharing_s = sum(kernel.seconds for kernel, takes_part in pairs if takes_part)
    for kernel, takes_part in pairs:
        if kernel.flops is not None and kernel.dram_bytes is not None:
            yield ProfiledWork(
                kernel.name, kernel.seconds, kernel.flops, kernel.dram_bytes, unit, True
            )
        elif flops is None or nbytes is None:
            known = 0.0 if _computes_nothing(kernel) else flops
            yield ProfiledWork(kernel.name, kernel.seconds, known, nbytes, unit)
        else:
            share = kernel.seconds / sharing_s if sharing_s and takes_part else 0.0
            yield ProfiledWork(kernel.name, kernel.seconds, share * flops, share * nbytes, unit)


def _demand(call: Call) -> tuple[float | None, float | None]:
    """FLOPs and bytes of a call; None where there is no formula.

    Collectives, copies and fills compute nothing; so much is known of them in any case.
    """
    flops, cost = ops.executed_flops(call.op), ops.cost_of(call.op)
    if flops is None and call.kernels and all(map(_computes_nothing, call.kernels)):
        flops = 0
    return flops, None if cost is None else float(cost.bytes)


def _computes_nothing(kernel: Kernel) -> bool:
    return kernel_names.is_copy(kernel.name) or kernel_names.is_collective(kernel.name)


def _unit(call: Call) -> Unit | None:
    return ops.unit(call.op) if ops.has_shapes(call.op) else None


# Why the GPU idled in a measured step: gaps between kernels, by cause.


CAUSES = ("host", "synchronisation", "communication", "input")
"""The causes of a GPU's idle time."""


def idle_by_cause(calls: Sequence[Call], idle_s: float, *, from_start: bool) -> dict[str, float]:
    """The idle seconds of a step by cause, in proportion to the recorded gaps between kernels.

    A gap is caused by "input" if a copy to the GPU follows it, by "communication" if a collective
    is next to it, and by "synchronisation" if the host waited for the GPU before it, so that the
    queue was empty. Otherwise the cause is the "host".

    Args:
        calls: the recorded calls with their kernels.
        idle_s: the idle time to distribute, in seconds.
        from_start: whether the time before the first kernel is a gap, too.
    """
    gaps = dict.fromkeys(CAUSES, 0.0)
    for cause, _, gap_s in _gaps(calls, from_start=from_start):
        gaps[cause] += gap_s
    total = sum(gaps.values())
    if not total:
        return gaps | {"host": idle_s}
    return {cause: idle_s * gap / total for cause, gap in gaps.items()}


def idle_places(calls: Sequence[Call], *, from_start: bool) -> dict[str, tuple[str, float]]:
    """Where the GPU waits longest for each cause, and its share in the gaps of the cause.

    A place is the line of source that issued the kernel after a gap, else its module, else its op.
    """
    gaps: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for cause, call, gap_s in _gaps(calls, from_start=from_start):
        gaps[cause][call.line or call.module or call.op.base] += gap_s
    longest = {cause: max(places, key=places.__getitem__) for cause, places in gaps.items()}
    return {
        cause: (place, gaps[cause][place] / sum(gaps[cause].values()))
        for cause, place in longest.items()
    }


def _gaps(calls: Sequence[Call], *, from_start: bool) -> Iterator[tuple[str, Call, float]]:
    """The gaps between kernels: the cause, the call after it, and its seconds."""
    runs = sorted(
        (
            (interval, index, kernel)
            for index, call in enumerate(calls)
            for kernel in call.kernels
            if (interval := file.interval_of(kernel)) is not None
        ),
        key=lambda run: run[:2],  # kernels that run together have no order of their own
    )
    waiting = [i for i, call in enumerate(calls) if call.syncs]
    end = runs[0][0][0] if runs and not from_start else 0.0
    last = 0
    for (begin, finish), index, kernel in runs:
        if begin > end:
            yield _cause(calls, waiting, last, index, kernel), calls[index], begin - end
        if finish > end:
            end, last = finish, index


def _cause(
    calls: Sequence[Call], waiting: Sequence[int], last: int, following: int, kernel: Kernel
) -> str:
    """The cause of the gap between call `last` and a kernel of call `following`.

    `waiting` holds the positions of the calls after which the host waits for the GPU, in order.
    """
    if kernel_names.copies_to_gpu(kernel.name):
        return "input"
    if any(ops.kind(calls[i].op) is Kind.COLLECTIVE for i in (last, following)):
        return "communication"
    first = bisect.bisect_left(waiting, last)
    return "synchronisation" if first < len(waiting) and waiting[first] <= following else "host"


# The ops of a step against the limits of a GPU: arithmetic intensity and attained rates.


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
