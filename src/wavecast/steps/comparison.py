"""Two predicted steps side by side: what became slower or faster, and which ops and modules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from wavecast.showing import Shown
from wavecast.steps.prediction import Prediction
from wavecast.steps.shares import Share
from wavecast.steps.summary import StepSummary, spent, summary_of

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
        return (*self._about_sameness(), *self._about_types(), *self._about_waits())

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

    def _about_types(self) -> list[str]:
        remarks = []
        for name in sorted({part.name for part in self.types}):
            old, new = spent(self.before.types, name), spent(self.after.types, name)
            if abs(new - old) >= _WORTH_A_NOTE:
                remarks.append(f"{name} takes {new:.0%} of the GPU time, before {old:.0%}")
        return remarks

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

    Args:
        before: the step as it was.
        after: the step as it is.
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
