"""What a prediction says about a step, in a few figures that can be kept and compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from wavecast import ops
from wavecast.results import Brief, Shown
from wavecast.steps.prediction import Prediction, Share
from wavecast.traces.step import Op, Trace

MODULE_DEPTH = 3
"""How many levels of module names the GPU time is broken down to."""
NO_KIND, NO_TYPE = "other", "none"
WAITS = "waits"
"""The name of waits of the host among the ops of `StepSummary.lines`."""


@dataclass(frozen=True, repr=False)
class StepSummary(Brief):
    """The figures of one predicted step on one GPU, and the parts of its GPU time.

    ```python
    summary = summary_of(wavecast.predict(trace, "l4"))
    summary.seconds, summary.kernels, summary.ops[0].name
    ```
    """

    gpu: str
    seconds: float
    """One iteration."""
    gpu_s: float
    """The time in which the GPU is busy."""
    host_s: float
    """The time that the host needs to issue the step."""
    bound_by: str
    kernels: int
    """The least number of kernels that the step launches."""
    syncs: int
    """The number of calls at which the host waits for the GPU."""
    needed_bytes: int | None = None
    """The memory that the GPU must have. None when the trace has no allocations."""
    peak_bytes: int | None = None
    """The peak of allocated memory. None where `needed_bytes` is."""
    fits: bool | None = None
    low_s: float | None = None
    high_s: float | None = None
    samples: int | None = None
    unit: str = "samples"
    unpredicted_share: float = 0.0
    """How much of the step could not be predicted, from 0 to 1."""
    fingerprint: str = ""
    """A hash of the calls without the names of modules. Equal steps have equal ones."""
    framework: str = ""
    """The framework that traced the step, and its version."""
    kinds: tuple[Share, ...] = ()
    """The GPU time by kind of op, longest first."""
    types: tuple[Share, ...] = ()
    """The GPU time by the data type of the first tensor of each op."""
    ops: tuple[Share, ...] = ()
    modules: tuple[Share, ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)
    """The bytes of each kind of memory at the peak."""
    notes: tuple[str, ...] = ()
    lines: Mapping[str, Mapping[str, int]] = field(default_factory=dict, compare=False)
    """The calls of each op by line of code, as far as the trace names lines; also those of waits,
    under `waits`."""

    @property
    def throughput(self) -> float | None:
        """Samples (or other units) per second; None when their number is unknown."""
        return None if self.samples is None else self.samples / self.seconds


def summary_of(prediction: Prediction) -> StepSummary:
    """The figures of a prediction."""
    trace, memory = prediction.trace, prediction.memory
    return StepSummary(
        gpu=prediction.device.id,
        seconds=prediction.seconds,
        gpu_s=prediction.gpu_s,
        host_s=prediction.host_s,
        bound_by=prediction.bound_by,
        kernels=sum(ops.kernels(op) * times for op, times in trace.counts.items()),
        syncs=len(trace.arrays.syncs),
        needed_bytes=None if memory is None else memory.needed_bytes,
        peak_bytes=None if memory is None else memory.peak_bytes,
        fits=prediction.fits,
        low_s=prediction.low_s,
        high_s=prediction.high_s,
        samples=trace.samples,
        unit=trace.unit,
        unpredicted_share=prediction.unpredicted_share,
        fingerprint=fingerprint_of(trace),
        framework=trace.framework,
        kinds=prediction.by_label(lambda op: str(ops.kind(op) or NO_KIND)),
        types=prediction.by_label(_type),
        ops=prediction.by_op(),
        modules=prediction.by_module(MODULE_DEPTH),
        memory={} if memory is None else {k: n for k, n in memory.by_kind.items() if n},
        notes=tuple(dict.fromkeys((*trace.notes, *prediction.notes))),
        lines=_lines(trace),
    )


def _lines(trace: Trace) -> dict[str, dict[str, int]]:
    """The calls of each op by line of code."""
    counts: dict[str, dict[str, int]] = {}
    for call in trace:
        for name in (call.op.base, WAITS) if call.syncs else (call.op.base,):
            if call.line:
                calls = counts.setdefault(name, {})
                calls[call.line] = calls.get(call.line, 0) + 1
    return counts


def fingerprint_of(trace: Trace) -> str:
    """A hash of the calls of a step: ops, shapes, phases, streams and waits, not module names."""
    digest = hashlib.sha256()
    positions = {op: index for index, op in enumerate(trace.counts)}
    for op in positions:
        tensors = [
            [f"{t.dtype}{t.shape}{t.strides or ''}{t.device}" for t in side]
            for side in (op.inputs, op.outputs)
        ]
        digest.update(f"{op.name} {tensors} {op.attrs!r}\n".encode())
    for call in trace:
        digest.update(f"{positions[call.op]} {call.phase} {call.stream} {call.syncs}\n".encode())
    return digest.hexdigest()[:16]


def _type(op: Op) -> str:
    """The data type that an op works on: that of its first tensor on the GPU."""
    on_gpu = (t.dtype for t in (*op.inputs, *op.outputs) if t.device != "cpu")
    return next(on_gpu, NO_TYPE)


def spent(shares: Sequence[Share], name: str) -> float:
    """The part of the GPU time that has this name, between 0 and 1."""
    total_s = float(np.sum([share.gpu_s for share in shares]))
    own_s = sum(share.gpu_s for share in shares if share.name == name)
    return own_s / total_s if total_s else 0.0


# Two predicted steps side by side: what became slower or faster, and which ops and modules.


WORTH_A_ROW_S = 1e-6
"""The least change of a part's time that tables show: a microsecond."""
_WORTH_A_LINE = 0.001
"""The least change of a part's time, as a share of the GPU time, that counts as a change."""
_WORTH_A_NOTE = 0.1
"""The least change of a data type's share of the GPU time that a remark mentions."""


@dataclass(frozen=True)
class PartChange:
    """One part of a step, such as an op or a module, before and after."""

    name: str
    calls_before: int
    calls_after: int
    before_s: float
    """Its GPU time before, in seconds."""
    after_s: float
    renamed_to: str = ""
    """The name that it has after, if only its name changed."""

    @property
    def delta_s(self) -> float:
        """The GPU time that was added; negative if it became less."""
        return self.after_s - self.before_s

    @property
    def is_added(self) -> bool:
        """Whether the step before did not have it."""
        return not self.calls_before

    @property
    def is_gone(self) -> bool:
        """Whether the step after does not have it."""
        return not self.calls_after


@dataclass(frozen=True, repr=False)
class StepComparison(Shown):
    """Two steps on one GPU; `compare` makes it.

    ```python
    change = wavecast.compare(wavecast.predict(old, "l4"), wavecast.predict(new, "l4"))
    change.time_ratio, change.ops[0].name, change.remarks
    ```
    """

    before: StepSummary
    after: StepSummary

    @property
    def time_ratio(self) -> float:
        """The time of the step after, divided by that before."""
        return self.after.seconds / self.before.seconds

    @property
    def memory_ratio(self) -> float | None:
        """The peak of memory after, divided by that before; None when one of them is unknown."""
        if not self.before.peak_bytes or self.after.peak_bytes is None:
            return None
        return self.after.peak_bytes / self.before.peak_bytes

    @property
    def is_same_step(self) -> bool:
        """Whether both ran the same ops in the same order; names of modules may differ."""
        return bool(self.before.fingerprint) and self.before.fingerprint == self.after.fingerprint

    @cached_property
    def ops(self) -> tuple[PartChange, ...]:
        """The ops whose number of calls or GPU time changed, largest change first."""
        return self._changes(self.before.ops, self.after.ops)

    @cached_property
    def kinds(self) -> tuple[PartChange, ...]:
        """The kinds of ops that changed, largest change first."""
        return self._changes(self.before.kinds, self.after.kinds)

    @cached_property
    def types(self) -> tuple[PartChange, ...]:
        """The data types in which more or less was computed, largest change first."""
        return self._changes(self.before.types, self.after.types)

    @cached_property
    def modules(self) -> tuple[PartChange, ...]:
        """The modules that changed, largest change first; those that got another name last."""
        return _renamed(self._changes(self.before.modules, self.after.modules))

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        """What a reader should know beside the numbers, in whole sentences."""
        remarks = []
        for name in sorted({part.name for part in self.types}):
            old, new = spent(self.before.types, name), spent(self.after.types, name)
            if abs(new - old) >= _WORTH_A_NOTE:
                remarks.append(f"{name} takes {new:.0%} of the GPU time, before {old:.0%}")
        return (*self._about_sameness(), *remarks, *self._about_waits())

    def _changes(self, before: Sequence[Share], after: Sequence[Share]) -> tuple[PartChange, ...]:
        least_s = _WORTH_A_LINE * max(self.before.gpu_s, self.after.gpu_s)
        return tuple(
            part
            for part in _paired(before, after)
            if part.calls_before != part.calls_after or abs(part.delta_s) > least_s
        )

    def _about_sameness(self) -> list[str]:
        if self.is_same_step:
            return ["both steps run the same ops, with the same shapes and in the same order"]
        if self.before.bound_by != self.after.bound_by:
            return [
                f"the step is bound by {self.after.bound_by} now, before by {self.before.bound_by}"
            ]
        return []

    def _about_waits(self) -> list[str]:
        old, new = self.before.syncs, self.after.syncs
        if old == new:
            return []
        return [f"the host waits for the GPU {_times(new)} in a step, before {_times(old)}"]


def compare(before: Prediction, after: Prediction) -> StepComparison:
    """The comparison of two predicted steps, usually on the same GPU.

    ```python
    wavecast.compare(wavecast.predict(old, "l4"), wavecast.predict(new, "l4")).time_ratio
    ```
    """
    return StepComparison(summary_of(before), summary_of(after))


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _paired(before: Sequence[Share], after: Sequence[Share]) -> list[PartChange]:
    """All parts of both steps; the one whose time changed most comes first."""
    old = {share.name: share for share in before}
    new = {share.name: share for share in after}
    parts = []
    for name in {**old, **new}:
        left, right = old.get(name, Share(name, 0, 0.0)), new.get(name, Share(name, 0, 0.0))
        parts.append(PartChange(name, left.calls, right.calls, left.gpu_s, right.gpu_s))
    return sorted(parts, key=lambda part: (-abs(part.delta_s), part.name))


def _renamed(parts: Iterable[PartChange]) -> tuple[PartChange, ...]:
    """The parts, in which one that is gone and an equal one that was added are a renamed one."""
    kept: list[PartChange] = []
    waiting: dict[tuple[int, str], list[PartChange]] = {}
    renamed: list[PartChange] = []
    for part in sorted(parts, key=lambda part: (not part.is_gone, part.name)):
        if part.is_gone:
            waiting.setdefault((part.calls_before, f"{part.before_s:.6g}"), []).append(part)
            continue
        equals = waiting.get((part.calls_after, f"{part.after_s:.6g}"), [])
        if part.is_added and equals:
            old = equals.pop(0)
            calls, seconds = old.calls_before, old.before_s
            renamed.append(PartChange(old.name, calls, calls, seconds, seconds, part.name))
        else:
            kept.append(part)
    kept += [part for gone in waiting.values() for part in gone]
    kept.sort(key=lambda part: (-abs(part.delta_s), part.name))
    return (*kept, *sorted(renamed, key=lambda part: part.name))
