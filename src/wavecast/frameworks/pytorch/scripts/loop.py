"""The training loop of a script while it runs: where steps end, and when enough of them ran."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture.tracing import StepWatch, check
from wavecast.frameworks.pytorch.capture.values.assumptions import Assumptions
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder, Recording
from wavecast.frameworks.pytorch.recording.structure import key_of, local_part
from wavecast.frameworks.pytorch.recording.user_lines import (
    failing_line,
    is_ours,
    is_users,
    line_of,
    source_line,
    user_line,
)
from wavecast.frameworks.pytorch.scripts.batches import Batches
from wavecast.frameworks.pytorch.scripts.checkpoints import ModuleCalls
from wavecast.frameworks.pytorch.scripts.periods import (
    LONGEST_PATTERN,
    SPREAD_OVER,
    Boundary,
    Candidates,
    EnoughSteps,
    LineOfCode,
    OptimizerSteps,
    Period,
    held_bytes,
    line_watched,
    outline,
    pattern_length,
    periods_of,
    vary_in_size,
    window,
)
from wavecast.frameworks.pytorch.scripts.program import Program
from wavecast.frameworks.pytorch.scripts.watching import PatienceClock
from wavecast.frameworks.stages import Watched
from wavecast.traces.script import OwnTime, ScriptLength
from wavecast.traces.step import Op, Phase

MOST_STEPS = 8
"""How many steps of a loop run at most, if no two of them in a row are equal."""


_MOST_PASSES = 256
"""How many backward passes run at most before an optimizer does."""
ENOUGH_EQUAL = 3
"""How many equal steps are enough, if others are between them."""
_MOST_AHEAD, _MOST_OPS_AHEAD = 40, 30_000
"""Up to which step, and for how many ops, a loop with equal steps is watched for rare work."""


def _reason_of(ended: SystemExit) -> str:
    """The error because of which a script ended itself, as the end of a message."""
    error = ended.__cause__ or ended.__context__
    if error is None:
        return ""
    message = str(error).strip().split("\n")[0]
    return f", after {type(error).__name__} at {failing_line(error)}: {message}"


class Loop(Watched):
    """The training loop of a script while it runs."""

    def __init__(self, recorder: OpRecorder, assumptions: Assumptions, steps: int | None) -> None:
        self.recorder = recorder
        self.assumptions = assumptions
        self.boundaries: list[Boundary] = []
        self.optimizers = OptimizerSteps(self._end_step)
        self.backwards = BackwardPasses(recorder, self._at_backward, self._is_by_hand)
        self.updates = WeightUpdates(recorder, self._update, self._weights)
        self.modules = ModuleCalls(recorder, self._begin_step)
        self.batches = Batches(recorder, self._begin_step)
        self.own_work = OwnWork(recorder)
        self.training: ScriptLength | None = None
        """How long the script trains, as far as the code around its loop says so."""
        self.stopped = False
        self.known: int | None = None
        """How many steps ran until two were equal. More may run, to look for rare work."""
        self._ops_known, self._length_known = 0, 1
        self.ended_by_itself = False
        """Whether the script ended before another step began, so that the last may lack its end."""
        self.cut_short = ""
        """Why the script was stopped before its step repeated; empty if it was not."""
        self._steps = steps
        self._until = False
        self._thread = threading.get_ident()
        self._watch = StepWatch()
        self._watches: list[StepWatch] = []
        """What each step did, in the order of `boundaries`."""
        self._notes: list[tuple[str, ...]] = []
        """The notes about each step, in the same order."""
        self._ended: Boundary | None = None
        """The last optimizer step, while nothing of the next step has run."""

    @contextmanager
    def watched(self, line: LineOfCode | None) -> Iterator[None]:
        """Notice the ends of steps, evaluation and batches inside the block."""
        self._until = line is not None
        with ExitStack() as stack:
            ends = self.optimizers.watched() if line is None else line_watched(line, self._at_line)
            stack.enter_context(self._watch.watch(self.recorder))
            stack.enter_context(self.backwards.watched())
            if line is None:
                stack.enter_context(self.updates.watched())
            stack.enter_context(self.modules.watched())
            stack.enter_context(self.batches.watched())
            stack.enter_context(self.own_work.watched())
            stack.enter_context(ends)
            yield

    def run(self, program: Program) -> None:
        """Run the script until it ends or enough of its steps were seen."""
        self.running = True
        try:
            program.run()
        except EnoughSteps:
            pass
        except SystemExit as error:
            if error.code not in (None, 0) and not (self.stopped or self.looks_ahead):
                raise CaptureError(
                    f"{program.shown} ended with sys.exit({error.code!r}) before its step repeated"
                    f"{_reason_of(error)}"
                ) from error
        except Exception:
            # Code that stopped the script on its way out may fail on what it did not finish.
            if not (self.stopped or self.looks_ahead):
                raise
        finally:
            self.running = False

    def why_endless(self) -> str:
        """Why the script may not come to an end; empty if nothing is known of that."""
        return self.assumptions.given.why_endless()

    @property
    def ops_recorded(self) -> int:
        """How many ops were recorded."""
        return len(self.recorder)

    @property
    def first_trained(self) -> int | None:
        """The ops before its first forward pass with gradients; None before that."""
        return self.modules.first_trained

    @property
    def looks_ahead(self) -> bool:
        """Whether the step that repeats is known, and further ones are looked at."""
        return self.known is not None

    def cut(self, why: str) -> None:
        """Stop the script here, although its step has not repeated; its own thread calls this."""
        self.running = False
        if not self.stopped:
            self.stopped, self.cut_short = True, why
            self.recorder.assign_roles()
        self.running = True
        raise EnoughSteps

    def length(self) -> int | None:
        """The number of optimizer steps that make one step of the loop; None if not known yet."""
        places = [boundary.place for boundary in self.boundaries]
        return pattern_length(places, self.optimizers.waiting)

    def ops(self, period: Period) -> tuple[Op, ...]:
        """The outline of a step."""
        return self.outline(period.begin, period.end)

    def outline(self, begin: int, end: int) -> tuple[Op, ...]:
        """The outline of the ops between two positions of the recording."""
        return outline(self.recorder.ops(begin, end))

    @cached_property
    def _recording(self) -> Recording:
        """All that was recorded, once the script has ended."""
        return self.recorder.recording()

    def _span(self, period: Period) -> tuple[int, int]:
        """The calls of a step in the recording."""
        begin, end = (len(self.recorder.ops(0, at)) for at in (period.begin, period.end))
        return begin, end

    def recorded(self, period: Period) -> Recording:
        """The calls and the memory of a step."""
        return window(self._recording, *self._span(period))

    def peak_bytes(self, periods: Sequence[Period]) -> dict[Period, int]:
        """The most memory that tensors take in each of these steps."""
        held = held_bytes(self._recording)
        spans = {period: self._span(period) for period in periods}
        return {period: max(held[slice(*span)], default=0) for period, span in spans.items()}

    def _updates(self, period: Period) -> int:
        """How many calls of a step are in its backward passes and optimizers."""
        calls = self._recording.calls[slice(*self._span(period))]
        return sum(call.phase in (Phase.BACKWARD, Phase.OPTIMIZER) for call in calls)

    def candidates(self, periods: Sequence[Period]) -> Candidates:
        """The steps that may stand for the loop."""
        return Candidates(
            periods,
            self.ops,
            self.is_whole,
            self._updates,
            may_be_short=self.batches.may_be_short,
            asked=self._steps is not None,
            is_spread=self.batches.is_spread,
        )

    def is_whole(self, period: Period) -> bool:
        """Whether no evaluation was left out in a step."""
        return not any(period.begin <= at < period.end for at in self.modules.skips)

    def finish(self) -> None:
        """Close the last step of a script that ended by itself."""
        if self._ended is not None:
            self._close(self._ended)
            self.ended_by_itself = True
        if not self.stopped:
            self.recorder.assign_roles()

    def notes(self, period: Period) -> list[str]:
        """The notes about a step. What can only be a mistake is an error."""
        whole = StepWatch()
        notes: list[str] = []
        for boundary, watch, own in zip(self.boundaries, self._watches, self._notes, strict=True):
            if period.begin < boundary.position <= period.end:
                whole.add(watch)
                notes += own
        return notes + check(whole, None)

    def _close(self, end: Boundary) -> None:
        """Note that a step is over."""
        self.boundaries.append(replace(end, position=len(self.recorder)))
        self._ended = None
        self._watches.append(self._watch.restart())
        self._notes.append(tuple(self.assumptions.notes))
        self.assumptions.notes.clear()

    def _end_step(self, optimizer: int, line: str) -> None:
        """Note an optimizer's step. What follows until the next batch belongs to the step."""
        self._begin_step()
        if not self.boundaries and self._ended is None:
            self.training = length_at(sys._getframe(1))
        self._ended = Boundary(len(self.recorder), optimizer, line)

    def _is_by_hand(self) -> bool:
        """Whether the script has no optimizer of torch, so that it changes its weights itself."""
        return self.optimizers.built == 0

    def _weights(self) -> set[int]:
        return self.backwards.leaves if self._is_by_hand() else set()

    def _at_backward(self) -> None:
        """Note a backward pass. Where no optimizer runs for many of them, none is awaited."""
        self._begin_step()
        without = not self.boundaries and self._ended is None and not self._until
        if without and len(self.backwards) >= _MOST_PASSES:
            self.stopped = True
            raise EnoughSteps

    def _update(self, line: str) -> None:
        """Note that weights were changed by hand, which ends a step as an optimizer does."""
        self._ended = Boundary(len(self.recorder), 0, line)

    def _at_line(self, line: str) -> None:
        self._ended = Boundary(len(self.recorder), 0, line)
        self._begin_step()

    def _begin_step(self) -> None:
        """Note that the next step begins: a batch is drawn, or the forward pass runs."""
        if threading.get_ident() != self._thread:
            return  # a thread that loads batches ahead; the exception would not end the script
        if self.stopped:  # the script caught the exception
            raise EnoughSteps
        self.assumptions.given.begin()
        if self._ended is None:
            return
        self._close(self._ended)
        if self._is_enough():
            self.recorder.assign_roles()
            self.stopped = True
            raise EnoughSteps

    def _is_enough(self) -> bool:
        if self.known is None:
            if not self._is_known():
                return False
            self.known, self._ops_known = len(self.boundaries), len(self.recorder)
            self._length_known = self.length() or 1
        last = self.early(self.periods())[-2:]
        are_equal = len(last) == 2 and self.ops(last[0]) == self.ops(last[1])
        is_done = self._until or self._steps is not None or not are_equal
        ops = len(self.recorder) - self._ops_known
        return is_done or len(self.boundaries) >= _MOST_AHEAD or ops >= _MOST_OPS_AHEAD

    def periods(self) -> list[Period]:
        """The steps that ran. Those after the loop was known are cut as those before."""
        if self.known is None:
            return periods_of(self.boundaries, self.length() or 1)
        later = len(self.boundaries) - self.known
        count = self.known + later - later % self._length_known
        return periods_of(self.boundaries[:count], self._length_known)

    def early(self, periods: list[Period]) -> list[Period]:
        """The steps among these that ran until the loop was known."""
        if self.known is None:
            return periods
        end = self.boundaries[self.known - 1].position
        return [period for period in periods if period.end <= end]

    def _is_known(self) -> bool:
        length = self.length()
        if length is None:
            # An optimizer for each parameter, which steps in the backward pass, is not rare.
            return len(self.boundaries) >= 2 * LONGEST_PATTERN + 4 * self.optimizers.built
        periods = periods_of(self.boundaries, length)
        if self._steps is not None:
            return len(periods) + 1 >= self._steps
        last = periods[-2:]
        if len(last) == 2 and not any(map(self.is_whole, last)):
            self.modules.skipping = False  # evaluation is a part of every step
        whole = [self.ops(period) for period in periods if self.is_whole(period)]
        if self.batches.is_spread and vary_in_size(whole):
            return len(periods) >= SPREAD_OVER
        in_a_row = len(last) == 2 and all(map(self.is_whole, last)) and whole[-1] == whole[-2]
        if in_a_row or (whole and whole.count(whole[-1]) >= ENOUGH_EQUAL):
            return True
        return len(periods) + 1 >= MOST_STEPS


# How long a script trains: the epochs or steps that the code around its loop has a name for.


_STEPS = ("max_train_steps", "max_steps", "max_iters", "num_train_steps", "total_steps", "n_iters")
_EPOCHS = ("num_train_epochs", "max_epochs", "num_epochs", "n_epochs", "nb_epochs", "epochs")
_HOLDERS = ("args", "opt", "opts", "cfg", "config", "conf", "hparams", "params", "self", "trainer")
"""The names of objects that have a script's settings."""


def length_at(frame: FrameType | None) -> ScriptLength | None:
    """The length of the training that runs in a frame and those that called it.

    The innermost frame counts that has such a name: a number of steps, or else of epochs.
    """
    while frame is not None:
        if not is_ours(frame.f_code.co_filename) and (length := _in(frame)) is not None:
            return length
        frame = frame.f_back
    return None


def _in(frame: FrameType) -> ScriptLength | None:
    """The length that the variables of a frame have."""
    values = frame.f_locals
    place = source_line(frame.f_code.co_filename, frame.f_lineno)
    try:
        for name, number in _found(values, _STEPS):
            return ScriptLength(f"{name} at {place}", steps=number)
        for name, number in _found(values, _EPOCHS):
            return ScriptLength(f"{name} at {place}", epochs=number)
        return None
    finally:
        # Up to Python 3.12 a function's frame keeps this copy, and with it tensors of old steps.
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(values) is dict:
            values.clear()


def _found(values: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    """The numbers above 0 that have one of these names, or that settings have under them."""
    for name in values:
        if name.lower() in names and _is_number(values[name]):
            yield name, values[name]
    for holder in _HOLDERS:
        held = values.get(holder)
        own = held if isinstance(held, Mapping) else getattr(held, "__dict__", {})
        for name in names:
            if _is_number(own.get(name)):
                yield f"{holder}.{name}", own[name]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12


# The time that a script's own Python takes between ops, as when it loads data or writes logs.
#
# Another thread looks a hundred times a second at what the script runs. Torch's code and ours are
# slower here than on a GPU, and the prediction has the host's time for them, so neither counts.
# Nor do short stretches between two ops, which are part of every step.


_TICK_S = 0.01
_SHORTEST_S = 0.03
"""A shorter stretch between two ops does not count."""
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"


class OwnWork:
    """Where a script's own Python spends its time, by the position in the recording."""

    def __init__(self, recorder: OpRecorder) -> None:
        self._recorder = recorder
        self._spent_s: defaultdict[tuple[int, str], float] = defaultdict(float)
        """The seconds at each line, by the ops recorded before and the line."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the present thread inside the block."""
        over = threading.Event()
        given = threading.get_ident(), PatienceClock(), over
        watch = threading.Thread(target=self._watch, args=given, daemon=True)
        watch.start()
        try:
            yield
        finally:
            over.set()
            watch.join()

    def _watch(self, thread: int, clock: PatienceClock, over: threading.Event) -> None:
        before_s = clock.spent_s(is_paused=False)
        while not over.wait(_TICK_S):
            line = _own_line(sys._current_frames().get(thread))
            now_s = clock.spent_s(is_paused=False)
            if line:
                self._spent_s[len(self._recorder), line] += now_s - before_s
            before_s = now_s

    def between(self, begin: int, end: int) -> OwnTime | None:
        """The time between two positions of the recording; None if it is too short to tell."""
        stretches: defaultdict[int, float] = defaultdict(float)
        lines: defaultdict[str, float] = defaultdict(float)
        within = [spent for spent in self._spent_s.items() if begin <= spent[0][0] < end]
        for (position, _), seconds in within:
            stretches[position] += seconds
        for (position, line), seconds in within:
            if stretches[position] >= _SHORTEST_S:
                lines[line] += seconds
        return OwnTime(sum(lines.values()), max(lines, key=lines.__getitem__)) if lines else None


def _own_line(frame: FrameType | None) -> str:
    """The innermost line of the user's code; empty if it runs torch, or code of ours."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return line_of(file, frame.f_lineno)
        if is_ours(file) or file.startswith(_TORCH):
            return ""
        frame = frame.f_back
    return ""


# Backward passes of a script, and weights that it changes by hand, without an optimizer.


class BackwardPasses:
    """Notices each backward pass.

    Args:
        notify: called before each.
        finds_leaves: whether to find the tensors that get gradients.
    """

    def __init__(
        self, recorder: OpRecorder, notify: Callable[[], None], finds_leaves: Callable[[], bool]
    ) -> None:
        self._recorder = recorder
        self._notify = notify
        self._finds_leaves = finds_leaves
        self.leaves: set[int] = set()
        """The memory of the tensors that get gradients."""
        self._seen: list[tuple[int, str]] = []
        """Where each began: its position in the recording, and its line."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the backward passes inside the block."""
        original = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            self._notify()
            self._seen.append((len(self._recorder), user_line()))
            if self._finds_leaves():
                self.leaves |= _leaves(tensors)
            original(tensors, *args, **kwargs)

        torch.autograd.backward = backward
        try:
            yield
        finally:
            torch.autograd.backward = original

    def count(self, begin: int, end: int) -> int:
        """How many began between two positions of the recording."""
        return sum(begin <= position < end for position, _ in self._seen)

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def last_line(self) -> str | None:
        """The line of the last one; None if there was none."""
        return self._seen[-1][1] if self._seen else None


def _leaves(tensors: Any) -> set[int]:
    """The memory of the leaves of a graph: the tensors that a backward pass gives gradients."""
    roots = tensors if isinstance(tensors, list | tuple) else (tensors,)
    waiting = [root.grad_fn for root in roots if isinstance(root, torch.Tensor)]
    seen, leaves = set(waiting), set()
    while waiting:
        node = waiting.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaves.add(key_of(local_part(variable)))
        for following, _ in () if node is None else node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return leaves


class WeightUpdates:
    """Notices ops that write to weights after a backward pass.

    Args:
        notify: called with the line of each such op.
        weights: the memory of the weights; empty while nobody wants to know.
    """

    def __init__(
        self, recorder: OpRecorder, notify: Callable[[str], None], weights: Callable[[], set[int]]
    ) -> None:
        self._recorder = recorder
        self._notify = notify
        self._weights = weights

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the ops inside the block."""
        watch = self._recorder.on_op

        def seen(func: Any, args: tuple[Any, ...], returned: list[Any]) -> None:
            if watch is not None:
                watch(func, args, returned)
            if func is None or not args or not func._schema.is_mutable:
                return
            if (weights := self._weights()) and _writes(args[0], weights):
                self._notify(user_line())

        self._recorder.on_op = seen
        try:
            yield
        finally:
            self._recorder.on_op = watch


def _writes(written: Any, weights: set[int]) -> bool:
    """Whether an op outside of autograd writes to one of the weights."""
    if torch._C._current_autograd_node() is not None:
        return False
    tensors = written if isinstance(written, list | tuple) else (written,)
    keys = {key_of(local_part(t)) for t in tensors if isinstance(t, torch.Tensor)}
    return not keys.isdisjoint(weights)
