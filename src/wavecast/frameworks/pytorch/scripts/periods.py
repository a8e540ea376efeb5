"""The step that repeats, found among the optimizer steps of a script and cut out of a recording."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.optim import optimizer as optimizer_hooks

from wavecast.errors import InvalidInput
from wavecast.frameworks.pytorch.recording.recorder import Recording
from wavecast.frameworks.pytorch.recording.user_lines import user_line
from wavecast.frameworks.replacements import replacing
from wavecast.ops.costs import cost_of, kind
from wavecast.ops.registry import Kind
from wavecast.traces.editing import Edit, compacted
from wavecast.traces.step import Allocation, Op, Role, Trace

LONGEST_PATTERN = 64
"""How many optimizer steps a step of the loop has at most."""
SPREAD_OVER = 16
"""How many steps of different sizes stand for an epoch."""
_AWAITED = 16
"""How many optimizer steps to wait for an optimizer that has not stepped yet."""
_VARIED = 1.1
"""Steps vary if the one with most FLOPs has this many times those of the one with fewest."""
_NUMBERS = frozenset({"other", "value", "alpha", "beta", "scalar", "scalars", "fill_value"})
"""Attributes whose numbers an op computes with, so that its time does not depend on them."""
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
    if waiting and len(places) < _AWAITED:
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
    left_out: tuple[str, ...] = ()
    """What other steps also do, in words."""

    def is_most_of(self, steps: Candidates, after: int) -> bool:
        """Whether at least half of the steps after a number are as the chosen one."""
        later = [period for period in steps.periods if period.number > after]
        chosen = steps.ops_of(self.period)
        return 2 * sum(steps.ops_of(period) == chosen for period in later) >= len(later)


@dataclass(frozen=True)
class Candidates:
    """The steps to choose from, at least one.

    Args:
        ops_of: the ops of a step, as `outline` returns them.
        is_whole: whether all ops of a step were run.
        updates_of: how many calls of a step are in its backward passes and optimizers.
        may_be_short: whether some steps may have a smaller batch than others.
        asked: whether the user said how many steps to run.
        is_spread: whether their batches come from all over an epoch.
    """

    periods: Sequence[Period]
    ops_of: Callable[[Period], tuple[Op, ...]]
    is_whole: Callable[[Period], bool]
    updates_of: Callable[[Period], int]
    may_be_short: bool = False
    asked: bool = False
    is_spread: bool = False


def vary_in_size(outlines: Sequence[tuple[Op, ...]]) -> bool:
    """Whether steps run the same ops on tensors of different sizes."""
    different = set(outlines)
    return len(different) > 1 and len({tuple(op.name for op in ops) for ops in different}) == 1


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
        if name not in ("step", "event", "stream", *_NUMBERS) and not _is_float(value)
    )
    return op if len(kept) == len(op.attrs) else replace(op, attrs=kept)


def _is_float(value: object) -> bool:
    values = value if isinstance(value, tuple) else (value,)
    return any(isinstance(item, float) for item in values)


def choose(steps: Candidates) -> Choice:
    """The step that stands for the loop.

    It is the most frequent one; with smaller batches among others, that of the full batch; with
    steps that also evaluate or log, one that does not. If all differ, or most of many do, it is
    the one in the middle by its FLOPs. If their batches come from all over an epoch, it is the one
    nearest to the mean, which makes the epoch's time right.
    """
    candidates = [p for p in steps.periods if steps.is_whole(p)] or list(steps.periods)
    equal: dict[tuple[Op, ...], list[Period]] = {}
    for period in candidates:
        equal.setdefault(steps.ops_of(period), []).append(period)
    times = max(map(len, equal.values()))
    work = {ops: _work(ops) for ops in equal}
    flops = [flops for flops, _ in work.values()]
    varies = max(flops) > _VARIED * min(flops)
    works = {p: work[ops] for ops, ps in equal.items() for p in ps}
    are_many = steps.is_spread or (len(candidates) >= SPREAD_OVER and not steps.asked)
    if are_many and varies and vary_in_size(tuple(equal)):
        return _mean(candidates, works, steps)
    if times == 1 or (steps.asked and varies and 2 * times < len(candidates)):
        return _median(candidates, works, steps)
    repeated = [ops for ops in equal if len(equal[ops]) > 1]
    chosen = max(repeated, key=lambda ops: len(equal[ops]))
    if steps.may_be_short:
        alike = [ops for ops in repeated if _computing(ops) == _computing(chosen)]
        chosen = max(alike, key=lambda ops: (work[ops][0], len(equal[ops])))
    counts = {ops: Counter(ops) for ops in equal}

    def adds_to(more: tuple[Op, ...], fewer: tuple[Op, ...]) -> bool:
        """Whether a step does all that another does and more, but does not train more."""
        updates = (steps.updates_of(equal[ops][0]) for ops in (more, fewer))
        return counts[fewer] < counts[more] and len(set(updates)) == 1

    since = equal[chosen][0].number  # a kind that came only before, as in a warm-up, is over
    again = (ops for ops in repeated if equal[ops][-1].number > since)
    chosen = min((ops for ops in again if adds_to(chosen, ops)), key=len, default=chosen)
    numbers = tuple(period.number for period in equal[chosen])
    others = len(candidates) - len(numbers)
    reason = f"steps {listed(numbers)} are equal" + (
        f"; {others} of {len(candidates)} differ" if others else ""
    )
    left_out = tuple(
        f"{len(ops) - len(chosen)} more ops of {'steps' if equal[ops][1:] else 'step'} "
        f"{listed([period.number for period in equal[ops]])}, "
        "such as logging, evaluation or a rollout"
        for ops in equal
        if adds_to(ops, chosen)
    )
    if not left_out:
        times_larger = max(work.values())[0] / work[chosen][0] if work[chosen][0] else 1.0
        if times_larger > _VARIED:
            reason += f", one of them with {times_larger:.3g} times the FLOPs"
        # Shorter batches are expected; to run more steps would not tell more of them.
        if varies and not steps.asked and (times_larger > _VARIED or not steps.may_be_short):
            reason += _MORE
    return Choice(equal[chosen][-1], numbers, reason, left_out)


def seen_ahead(choice: Choice, steps: Candidates) -> Choice:
    """A choice among the first steps, with what others do besides, now that more of them ran.

    Work that comes every few steps is named with its period. If most of the later steps are of
    another kind, as after a warm-up, the choice is made again among all.
    """
    if not choice.is_most_of(steps, after=max(choice.equal)):
        choice = choose(steps)
        if not choice.is_most_of(steps, after=choice.equal[0]):
            return choice
    chosen, kinds = steps.ops_of(choice.period), dict[tuple[Op, ...], list[int]]()
    for period in steps.periods:
        if period.number > choice.equal[0]:
            kinds.setdefault(steps.ops_of(period), []).append(period.number)
    last = steps.periods[-1].number
    kinds.pop(chosen, None)
    rare = (_rare(ops, seen, chosen, last) for ops, seen in _apart(kinds, chosen).items())
    return replace(choice, left_out=tuple(filter(None, rare)))


def cycle_of(choice: Choice, steps: Candidates) -> list[Period]:
    """The last steps after which all kinds of steps come again, seen twice at least.

    Empty if all steps are equal, if they have no such order, or if not all of their ops were run.
    """
    periods = [period for period in steps.periods if period.number >= choice.equal[0]]
    kinds = [steps.ops_of(period) for period in periods]
    lengths = range(1, len(kinds) // 2 + 1)
    length = next((n for n in lengths if kinds[n:] == kinds[:-n]), 1)
    last = periods[-length:]
    return last if length > 1 and all(map(steps.is_whole, last)) else []


def _apart(
    kinds: Mapping[tuple[Op, ...], list[int]], chosen: tuple[Op, ...]
) -> dict[tuple[Op, ...], list[int]]:
    """The kinds of steps and their numbers. A step that does the work of several is of each."""
    usual, usual_work = Counter(op.name for op in chosen), _work(chosen)[0]
    more = {ops: Counter(op.name for op in ops) - usual for ops in kinds}
    work = {ops: _work(ops)[0] - usual_work for ops in kinds}
    apart = dict[tuple[Op, ...], list[int]]()
    for ops in sorted(kinds, key=lambda ops: (more[ops].total(), -work[ops])):
        parts = [part for part in apart if more[part] and more[part] <= more[ops]]
        is_sum = bool(parts) and sum((more[part] for part in parts), Counter()) == more[ops]
        for part in parts if is_sum else ():
            apart[part] = sorted(apart[part] + kinds[ops])
        if not is_sum or work[ops] != sum(work[part] for part in parts):
            apart[ops] = kinds[ops]
    return apart


def _rare(ops: tuple[Op, ...], seen: list[int], chosen: tuple[Op, ...], last: int) -> str | None:
    """What some steps do that the chosen one does not, and how often they come."""
    work, usual = _work(ops)[0], _work(chosen)[0]
    names, usual_names = (Counter(op.name for op in step_ops) for step_ops in (ops, chosen))
    more = (names - usual_names).total()
    if not more and (names != usual_names or work == usual):
        return None
    times = f"{work / usual:.3g} times the FLOPs" if usual and work != usual else ""
    what = f"{more} more ops" if more else "other sizes"
    what = " and ".join(filter(None, (what, times)))
    apart = {after - before for before, after in pairwise(seen)}
    if len(apart) == 1:
        shown = listed(seen) if len(seen) <= _MOST_LISTED else f"{seen[0]} to {seen[-1]}"
        return f"{what} in every {_ordinal(*apart)} step ({shown})"
    word = "step" if len(seen) == 1 else "steps"
    return f"{what} in {word} {listed(seen)}; {last} steps do not tell how often they come"


def _ordinal(number: int) -> str:
    is_teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if is_teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


_MOST_LISTED = 4
_MORE = "; to see more of them, add --steps 100"


def _computing(ops: Sequence[Op]) -> list[str]:
    """The names of the ops that compute. Loaders that work ahead copy in another step."""
    return [op.name for op in ops if (cost := cost_of(op)) is not None and cost.flops]


def _median(
    candidates: Sequence[Period], work: Mapping[Period, tuple[float, float]], steps: Candidates
) -> Choice:
    """The step in the middle by its work."""
    by_work = sorted(candidates, key=work.__getitem__)
    chosen = by_work[len(by_work) // 2]
    if len(candidates) == 1:
        return Choice(chosen, (chosen.number,), "it is the only one that ran after the first")
    least, most = (f"{work[p][0]:.3g}" for p in (by_work[0], by_work[-1]))
    shown = f"{least} to {most} FLOPs" if least != most else f"about {most} FLOPs each"
    all_or_most = "all" if len(set(work.values())) == len(candidates) else "most"
    reason = (
        f"{all_or_most} of steps {listed(tuple(p.number for p in candidates))} differ "
        f"({shown}), and it is the median"
    )
    if least != most and not steps.asked:
        reason += _MORE
    return Choice(chosen, (chosen.number,), reason)


def _mean(
    candidates: Sequence[Period], work: Mapping[Period, tuple[float, float]], steps: Candidates
) -> Choice:
    """The step that is nearest to the mean by its work."""
    flops = [work[period][0] for period in candidates]
    mean = sum(flops) / len(flops)
    chosen = min(candidates, key=lambda period: abs(work[period][0] - mean))
    equal = tuple(period.number for period in candidates if work[period] == work[chosen])
    numbers = listed(tuple(period.number for period in candidates))
    return Choice(
        chosen,
        equal,
        f"steps {numbers}{', from all over the epoch,' if steps.is_spread else ''} differ in size "
        f"({min(flops):.3g} to {max(flops):.3g} FLOPs), and it is the nearest to their mean",
    )


def listed(numbers: Sequence[int]) -> str:
    """Numbers in words: "2 and 3", "2, 4 and 6", "2 to 8 and 10"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [
        word
        for run in runs
        for word in ([f"{run[0]} to {run[-1]}"] if len(run) > 3 else map(str, run))
    ]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _work(ops: Sequence[Op]) -> tuple[float, float]:
    """The FLOPs and the bytes of ops."""
    costs = [
        (cost, times) for op, times in Counter(ops).items() if (cost := cost_of(op)) is not None
    ]
    return (
        float(sum(cost.flops * times for cost, times in costs)),
        float(sum(cost.bytes * times for cost, times in costs)),
    )


def held_bytes(recording: Recording) -> list[int]:
    """The bytes that are allocated during each call."""
    changes = [0] * (len(recording.calls) + 1)
    for memory in recording.allocations:
        changes[memory.born or 0] += memory.nbytes
        if memory.freed is not None:
            changes[memory.freed] -= memory.nbytes
    return list(accumulate(changes))[:-1]


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


# Where the steps of a training loop end: at optimizer steps, or at a line that the user names.


class EnoughSteps(BaseException):
    """Raised inside a script to stop it. It is no `Exception`, so that scripts do not catch it."""


@dataclass(frozen=True)
class Boundary:
    """The end of a step of the loop."""

    position: int
    """The number of ops recorded before it. The next step begins with the next batch."""
    optimizer: int
    """Which of the script's optimizers, in the order of their first steps."""
    line: str
    """The line of the user's code."""

    @property
    def place(self) -> tuple[int, str]:
        """What is equal for boundaries that repeat each other."""
        return self.optimizer, self.line


class OptimizerSteps:
    """Notices each outermost optimizer step and the optimizers that have not stepped yet."""

    def __init__(self, notify: Callable[[int, str], None]) -> None:
        self._notify = notify
        self._depth = 0
        self._built: weakref.WeakSet[Any] = weakref.WeakSet()
        self._numbers: dict[int, int] = {}
        self._stepped: list[Any] = []

    @property
    def built(self) -> int:
        """How many optimizers the script has."""
        return len(self._built)

    @property
    def waiting(self) -> bool:
        """Whether the script built an optimizer that has not stepped yet."""
        return any(id(optimizer) not in self._numbers for optimizer in self._built)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Call `notify` with the number of the optimizer and the line after each step."""
        build = torch.optim.Optimizer.__init__

        def counted_init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            build(optimizer, *args, **kwargs)
            self._built.add(optimizer)

        with (
            optimizer_hooks.register_optimizer_step_pre_hook(self._enter),
            optimizer_hooks.register_optimizer_step_post_hook(self._leave),
            replacing() as replace,
        ):
            replace(torch.optim.Optimizer, __init__=counted_init)
            yield
            self._stepped.clear()

    def _enter(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._depth += 1

    def _leave(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._depth -= 1
        if self._depth:
            return
        if id(optimizer) not in self._numbers:
            self._numbers[id(optimizer)] = len(self._numbers)
            self._stepped.append(optimizer)  # its id is unique only while it lives
        self._notify(self._numbers[id(optimizer)], user_line())


@dataclass(frozen=True)
class LineOfCode:
    """A line of a file."""

    file: Path
    number: int

    @classmethod
    def parse(cls, text: str) -> LineOfCode:
        """The line that a text such as `train.py:41` names."""
        file, _, number = text.rpartition(":")
        if not file or not number.isdigit() or not int(number):
            raise InvalidInput(f"{text!r} names no line; write FILE:LINE, such as train.py:41")
        if not Path(file).is_file():
            raise InvalidInput(f"there is no file {file}, so no line {text}")
        return cls(Path(file).resolve(), int(number))


@contextmanager
def line_watched(line: LineOfCode, notify: Callable[[str], None]) -> Iterator[None]:
    """Call `notify` each time that a line is about to run."""
    codes: dict[CodeType, bool] = {}

    def has_line(code: CodeType) -> bool:
        if code not in codes:
            file = Path(code.co_filename)
            codes[code] = (
                file.name == line.file.name
                and file.resolve() == line.file
                and any(number == line.number for _, _, number in code.co_lines())
            )
        return codes[code]

    def at_call(frame: FrameType, _event: str, _arg: Any) -> Any:
        return at_line if has_line(frame.f_code) else None

    def at_line(frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "line" and frame.f_lineno == line.number:
            notify(user_line())
        return at_line

    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        yield
    finally:
        sys.settrace(before)
