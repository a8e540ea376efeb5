"""The step that repeats, found among the optimizer steps of a script and cut out of a recording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, pairwise

from wavecast.frameworks.pytorch.recording.recorded import Recording
from wavecast.frameworks.pytorch.scripts.boundaries import Boundary
from wavecast.ops.costs import cost_of, kind
from wavecast.ops.registry import Kind
from wavecast.traces.editing import Edit
from wavecast.traces.step import Allocation, Op, Role, Trace
from wavecast.traces.values import compacted

LONGEST_PATTERN = 64
"""How many optimizer steps to wait for an optimizer that has not stepped yet."""
_MADE_IN_A_STEP = (Role.INTERMEDIATE, Role.WEIGHT_COPY)


@dataclass(frozen=True)
class Period:
    """One step of the loop: the entries of the recording from `begin` to before `end`."""

    number: int
    """Its number in the loop. The first step, which creates the optimizer's state, is 1."""
    begin: int
    end: int


def pattern_length(places: Sequence[Hashable], waiting: bool) -> int | None:
    """After how many optimizer steps the loop repeats itself; None while this is not known.

    Args:
        places: the optimizer and line of each step so far.
        waiting: whether an optimizer was built that has not stepped yet.
    """
    if waiting and len(places) < LONGEST_PATTERN:
        return None
    kinds = set(places)
    for length in range(len(kinds), len(places) // 2 + 1):
        last = places[-length:]
        if (
            places[-1] == places[-1 - length]
            and set(last) == kinds
            and list(places[-2 * length : -length]) == list(last)
        ):
            return length
    # A loop that has begun after another one, as after a warm-up: the last two steps agree.
    if len(places) >= LONGEST_PATTERN and places[-1] == places[-2]:
        return 1
    return None


def periods_of(boundaries: Sequence[Boundary], length: int) -> list[Period]:
    """The complete steps of the loop after the first one, in order.

    Args:
        boundaries: the ends of all optimizer steps so far.
        length: the number of optimizer steps of one step of the loop.
    """
    ends = [boundary.position for boundary in boundaries]
    first = (len(ends) - 1) % length
    marks = ends[first::length]
    return [
        Period(number, begin, end) for number, (begin, end) in enumerate(pairwise(marks), start=2)
    ]


@dataclass(frozen=True)
class Choice:
    """The step that stands for the loop."""

    period: Period
    equal: tuple[int, ...]
    """The numbers of the steps with the same ops."""
    reason: str


def outline(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Ops without the numbers that change from step to step but cost nothing.

    Learning rates and bias corrections are such numbers, the offsets of views, the numbers of
    events and streams, and that of the step, which the optimizers of bitsandbytes hand to their
    kernels.
    """
    return tuple(map(_outlined, ops))


@lru_cache(maxsize=1 << 16)
def _outlined(op: Op) -> Op:
    if kind(op) is Kind.VIEW:
        return replace(op, attrs=())
    kept = tuple(
        (name, value)
        for name, value in op.attrs
        if name not in ("step", "event", "stream") and not _is_float(value)
    )
    return op if len(kept) == len(op.attrs) else replace(op, attrs=kept)


def _is_float(value: object) -> bool:
    values = value if isinstance(value, tuple) else (value,)
    return any(isinstance(item, float) for item in values)


def choose(
    periods: Sequence[Period],
    ops_of: Callable[[Period], tuple[Op, ...]],
    is_whole: Callable[[Period], bool],
) -> Choice:
    """The most frequent step; if all differ, the one in the middle by its FLOPs.

    Args:
        periods: the steps to choose from, at least one.
        ops_of: the ops of a step, as `outline` returns them.
        is_whole: whether all ops of a step were run.
    """
    candidates = [period for period in periods if is_whole(period)] or list(periods)
    ops = {period: ops_of(period) for period in candidates}
    [(frequent, times), *_] = Counter(ops.values()).most_common(1)
    if times > 1:
        equal = [period for period in candidates if ops[period] == frequent]
        others = len(candidates) - times
        numbers = tuple(period.number for period in equal)
        rest = f"; {others} of {len(candidates)} differ" if others else ""
        return Choice(equal[-1], numbers, f"steps {listed(numbers)} are equal{rest}")
    by_work = sorted(candidates, key=lambda period: _work(ops[period]))
    chosen = by_work[len(by_work) // 2]
    if len(candidates) == 1:
        reason = "it is the only one that ran after the first"
    else:
        least, most = (f"{_work(ops[p])[0]:.3g}" for p in (by_work[0], by_work[-1]))
        work = f"{least} to {most} FLOPs" if least != most else f"about {most} FLOPs each"
        reason = (
            f"all of steps {listed(tuple(p.number for p in candidates))} differ "
            f"({work}), and it is the median"
        )
    return Choice(chosen, (chosen.number,), reason)


def listed(numbers: Sequence[int]) -> str:
    """Numbers in words: "2 and 3", "2, 4 and 6", "2 to 8"."""
    if len(numbers) > 3 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return " and ".join(filter(None, (", ".join(map(str, numbers[:-1])), str(numbers[-1]))))


def _work(ops: Sequence[Op]) -> tuple[float, float]:
    """The FLOPs and the bytes of ops."""
    costs = [
        (cost, times) for op, times in Counter(ops).items() if (cost := cost_of(op)) is not None
    ]
    return (
        float(sum(cost.flops * times for cost, times in costs)),
        float(sum(cost.bytes * times for cost, times in costs)),
    )


def window(recording: Recording, begin: int, end: int) -> Recording:
    """The calls from `begin` to before `end`, and the memory that exists while they run."""

    def cut(memory: Allocation) -> Allocation | None:
        born = -1 if memory.born is None else memory.born
        if born >= end or (memory.freed is not None and memory.freed <= begin):
            return None
        before = born < begin
        return replace(
            memory,
            born=None if before else born,
            freed=None if memory.freed is None or memory.freed >= end else memory.freed,
            role=Role.INPUT if before and memory.role in _MADE_IN_A_STEP else memory.role,
        )

    edit = Edit(Trace(recording.calls, recording.allocations, values=recording.values))
    edit.remove(chain(range(begin), range(end, len(recording.calls))))
    edit.change_memory(cut)
    part = compacted(edit.trace())
    return Recording(part.calls, part.allocations, part.values)
