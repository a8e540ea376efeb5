"""The lines of code at which a step does more than before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wavecast.steps.comparison import WORTH_A_ROW_S, PartChange, StepComparison
from wavecast.steps.summary import WAITS

_MOST_OF_AN_OP = 3
_MOST = 10


@dataclass(frozen=True)
class CodePlace:
    """A line of code, and what it does in a step that it did not do before, or less often."""

    file: str
    """The file, relative to the present folder."""
    line: int
    """The number of the line."""
    op: str
    """The op that it calls; `waits` where the host waits for the GPU there."""
    calls: int
    """How many of these calls a step has now at this line."""
    delta_s: float = 0.0
    """The GPU time that all calls of the op take in addition, in seconds; 0 for a wait."""

    @property
    def text(self) -> str:
        """What happens there, in a few words."""
        times = "once" if self.calls == 1 else f"{self.calls} times"
        if self.op == WAITS:
            return f"the host waits for the GPU here {times} in a step"
        return f"{self.op} is called here {times} in a step"


@dataclass(frozen=True)
class ChangedLines:
    """The lines that changed since a commit."""

    since: str
    """The commit."""
    lines: Mapping[str, Sequence[range]] = field(default_factory=dict)
    """Ranges of lines by file, relative to the present folder; an empty list is a new file."""

    def has(self, file: str, line: int) -> bool:
        """Whether a line is among them."""
        if file not in self.lines:
            return False
        return not self.lines[file] or any(line in some for some in self.lines[file])


def new_places(
    comparison: StepComparison, changed: ChangedLines | None = None
) -> tuple[CodePlace, ...]:
    """The lines of waits and ops that are new or that became more, the costliest op first.

    Lines that did not change since the baseline are named only if all that the line does is new.

    Args:
        comparison: the step before and after.
        changed: the lines that changed. None if that is not known.
    """
    found: list[CodePlace] = []
    old, new = comparison.before, comparison.after
    if new.syncs > old.syncs:
        waits = PartChange(WAITS, old.syncs, new.syncs, 0.0, 0.0)
        found += _places_of(waits, new.lines.get(WAITS, {}), changed)
    for part in comparison.ops:
        if part.delta_s >= WORTH_A_ROW_S:
            found += _places_of(part, new.lines.get(part.name, {}), changed)
    return tuple(found[:_MOST])


def _places_of(
    part: PartChange, lines: Mapping[str, int], changed: ChangedLines | None
) -> list[CodePlace]:
    every = [_place(part, line, calls) for line, calls in lines.items()]
    if changed is not None:
        on_changed = [place for place in every if changed.has(place.file, place.line)]
        every = on_changed or (every if part.is_added else [])
    return sorted(every, key=lambda place: -place.calls)[:_MOST_OF_AN_OP]


def _place(part: PartChange, line: str, calls: int) -> CodePlace:
    file, _, number = line.rpartition(":")
    return CodePlace(file, int(number), part.name, calls, part.delta_s)
