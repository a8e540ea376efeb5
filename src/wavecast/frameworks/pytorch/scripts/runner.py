"""The function that runs a training script until its step repeats itself."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.pytorch.capture.assumptions import Assumptions
from wavecast.frameworks.pytorch.capture.checks import StepWatch, check
from wavecast.frameworks.pytorch.capture.given_values import Given, GivenValues
from wavecast.frameworks.pytorch.capture.process_groups import RankPlace
from wavecast.frameworks.pytorch.capture.tracing import DEFAULT_CAPABILITY, explaining, pretending
from wavecast.frameworks.pytorch.capture.uncompiled import CompilesCode
from wavecast.frameworks.pytorch.compiled.tracing import (
    compiler_for,
    followed,
    with_notes,
)
from wavecast.frameworks.pytorch.recording.recorded import Recording
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.structure import Structure
from wavecast.frameworks.pytorch.recording.user_lines import failing_line, programs_forgotten
from wavecast.frameworks.pytorch.scripts.batches import Batches
from wavecast.frameworks.pytorch.scripts.boundaries import (
    Boundary,
    EnoughSteps,
    LineOfCode,
    OptimizerSteps,
    line_watched,
)
from wavecast.frameworks.pytorch.scripts.checkpoints import checkpoints_kept
from wavecast.frameworks.pytorch.scripts.evaluation import ModuleCalls
from wavecast.frameworks.pytorch.scripts.overlay import Overlay
from wavecast.frameworks.pytorch.scripts.periods import (
    LONGEST_PATTERN,
    Choice,
    Period,
    choose,
    outline,
    pattern_length,
    periods_of,
    window,
)
from wavecast.frameworks.pytorch.scripts.program import Program
from wavecast.frameworks.pytorch.scripts.redirection import redirected
from wavecast.frameworks.pytorch.scripts.watching import Watcher
from wavecast.hardware.device import Device
from wavecast.hardware.families import family
from wavecast.ops.costs import cost_of
from wavecast.traces.script import ScriptPart, ScriptRun
from wavecast.traces.step import Op, Trace

if TYPE_CHECKING:
    from wavecast.frameworks.pytorch.compiled.compiling import StepCompiler

MOST_STEPS = 8
"""How many steps of a loop run at most, if no two of them in a row are equal."""


ENOUGH_EQUAL = 3
"""How many equal steps are enough, if others are between them."""


def run(
    program: Program,
    *,
    gpu: Device | None = None,
    capability: tuple[int, int] | None = None,
    steps: int | None = None,
    until: str | None = None,
    samples: int | None = None,
    progress: Callable[[int], None] | None = None,
    assume: Mapping[str, Given] | None = None,
    ranks: int | None = None,
    watcher: Watcher | None = None,
) -> ScriptRun:
    """Run a script as on a machine with a GPU, and return the step that repeats.

    Args:
        program: the script and its arguments.
        gpu: the GPU for which to choose kernels and to compile. None for the usual one of the
            compute capability.
        capability: the compute capability, if no GPU is given.
        steps: how many steps to run. None to stop when two in a row are equal.
        until: `FILE:LINE`. A step ends each time that this line is reached, instead of at the end
            of an optimizer step.
        samples: how many samples a step takes. None to count those that a data loader gives.
        progress: called with the number of ops recorded so far.
        assume: values and sizes that depend on data, by `FILE:LINE`.
        ranks: how many ranks the script's own parallel code has. The first of them runs.
        watcher: looks at the script while it runs, and may cut it short. None if nobody does.
    """
    program.check()
    if steps is not None and steps < 1:
        raise InvalidInput(f"steps is {steps}; it must be at least 1")
    line = None if until is None else LineOfCode.parse(until)
    if gpu is not None:
        capability = family(gpu)
    capability = DEFAULT_CAPABILITY if capability is None else capability

    def attempt(compiler: StepCompiler | None, stops: bool) -> ScriptRun:
        assumptions = Assumptions(GivenValues(assume), stops)
        recorder = OpRecorder(Structure())
        recorder.on_call = progress
        loop = _Loop(recorder, assumptions, steps)
        place = None if ranks is None else RankPlace(ranks)
        pretence = pretending(capability, recorder, assumptions, place, compiler)
        with nullcontext() if watcher is None else watcher.watching(loop):
            _repeat(program, loop, pretence, line)
        if line is not None and not loop.boundaries:
            raise CaptureError(f"{program.shown} ended, and line {until} was not reached")
        return _result(program, loop, capability, samples)

    if not program.mentions("compile"):
        try:
            return attempt(None, stops=True)
        except CompilesCode:
            pass  # a library compiles something: run the script again, with a compiler
    compiler, reason = compiler_for(gpu, capability, compiled=False)
    done, why = followed(partial(attempt, stops=False), compiler)
    return replace(done, trace=with_notes(done.trace, None if why else compiler, why or reason))


def _repeat(
    program: Program,
    loop: _Loop,
    pretence: AbstractContextManager[Any],
    line: LineOfCode | None,
) -> None:
    """Run a script until its loop has repeated itself."""
    with tempfile.TemporaryDirectory(prefix="wavecast-") as scratch:
        overlay = Overlay(Path(scratch))
        # The files of the script are known until its errors are explained.
        with programs_forgotten(), explaining("the script"), ExitStack() as stack:
            stack.enter_context(pretence)
            stack.enter_context(loop.recorder.step())
            stack.enter_context(loop.watched(line))
            stack.enter_context(checkpoints_kept(loop.recorder))
            stack.enter_context(redirected(overlay))
            loop.run(program)
            loop.finish()


def _reason_of(ended: SystemExit) -> str:
    """The error because of which a script ended itself, as the end of a message."""
    error = ended.__cause__ or ended.__context__
    if error is None:
        return ""
    message = str(error).strip().split("\n")[0]
    return f", after {type(error).__name__} at {failing_line(error)}: {message}"


class _Loop:
    """The training loop of a script while it runs."""

    def __init__(self, recorder: OpRecorder, assumptions: Assumptions, steps: int | None) -> None:
        self.recorder = recorder
        self.assumptions = assumptions
        self.boundaries: list[Boundary] = []
        self.optimizers = OptimizerSteps(self._end_step)
        self.modules = ModuleCalls(recorder, self._begin_step)
        self.batches = Batches(recorder, self._begin_step)
        self.stopped = False
        self.running = False
        """Whether the script's own code is running."""
        self.cut_short = ""
        """Why the script was stopped before its step repeated; empty if it was not."""
        self._steps = steps
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
        with ExitStack() as stack:
            ends = self.optimizers.watched() if line is None else line_watched(line, self._at_line)
            stack.enter_context(self._watch.watch(self.recorder))
            stack.enter_context(self.modules.watched())
            stack.enter_context(self.batches.watched())
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
            if error.code not in (None, 0) and not self.stopped:
                raise CaptureError(
                    f"{program.shown} ended with sys.exit({error.code!r}) before its step repeated"
                    f"{_reason_of(error)}"
                ) from error
        except Exception:
            # Code that stopped the script on its way out may fail on what it did not finish.
            if not self.stopped:
                raise
        finally:
            self.running = False

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

    def recorded(self, period: Period) -> Recording:
        """The calls and the memory of a step."""
        begin, end = (len(self.recorder.ops(0, at)) for at in (period.begin, period.end))
        return window(self.recorder.recording(), begin, end)

    def is_whole(self, period: Period) -> bool:
        """Whether no evaluation was left out in a step."""
        return not any(period.begin <= at < period.end for at in self.modules.skips)

    def finish(self) -> None:
        """Close the last step of a script that ended by itself."""
        if self._ended is not None:
            self._close(self._ended)
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
        self._ended = Boundary(len(self.recorder), optimizer, line)

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
        in_a_row = len(last) == 2 and all(map(self.is_whole, last)) and whole[-1] == whole[-2]
        if in_a_row or (whole and whole.count(whole[-1]) >= ENOUGH_EQUAL):
            return True
        return len(periods) + 1 >= MOST_STEPS


def _result(
    program: Program, loop: _Loop, capability: tuple[int, int], samples: int | None
) -> ScriptRun:
    if not loop.boundaries:
        if loop.cut_short:
            raise CaptureError(f"{program.shown} {loop.cut_short}")
        raise CaptureError(
            f"{program.shown} ended without an optimizer step (torch.optim); name the line that "
            "ends a step of its loop with --until FILE:LINE (until=), or write a make_step function"
        )
    length = loop.length() or 1
    periods = periods_of(loop.boundaries, length)
    if periods:
        choice = choose(periods, loop.ops, loop.is_whole)
    else:
        first = loop.modules.first_trained or 0
        reason = "it is the only one that ran, and it also creates the optimizer's state"
        choice = Choice(Period(1, first, loop.boundaries[-1].position), (1,), reason)
    period = choice.period
    recording = loop.recorded(period)
    if not recording.calls:
        raise CaptureError(
            f"the step of {program.shown} at {loop.boundaries[-1].line} ran no op on the GPU; "
            "move the model and its inputs there, as for training on a GPU"
        )
    loop.assumptions.given.check_used()
    loop.assumptions.notes.clear()  # those of what ran after the last step
    for note in loop.notes(period):
        loop.assumptions.note(note)
    loop.assumptions.note_machine()
    if not loop.is_whole(period):
        loop.assumptions.note("evaluation inside of the step was left out, as in all of its steps")
    trace = Trace(
        **vars(recording),
        framework=f"torch {torch.__version__.split('+')[0]}",
        capability=capability,
        samples=samples or loop.batches.samples(period.begin, period.end),
        notes=tuple(loop.assumptions.notes),
        asks_capability=loop.assumptions.asks_capability,
    )
    return ScriptRun(
        script=program.shown,
        trace=trace,
        line=loop.boundaries[-1].line,
        step=period.number,
        steps=len(periods) + 1,
        equal=choice.equal,
        choice=choice.reason + (f"; the script {loop.cut_short}" if loop.cut_short else ""),
        once=_parts(loop, choice),
    )


def _parts(loop: _Loop, choice: Choice) -> tuple[ScriptPart, ...]:
    """What ran outside of the repeated step: set-up, and evaluation."""
    period = choice.period
    first = loop.boundaries[0].position
    in_step = [e for e in loop.modules.evaluations if period.begin <= e.begin < period.end]
    evaluations = [] if in_step else loop.modules.evaluations
    set_up = Counter(loop.outline(0, first)) if period.begin >= first else Counter()
    parts: dict[str, list[float]] = {}
    for evaluation in evaluations:
        ops = Counter(loop.outline(evaluation.begin, evaluation.end))
        if evaluation.begin < first:
            set_up -= ops
        part = parts.setdefault(f"evaluation of {evaluation.module}", [0.0, 0.0])
        part[0] += ops.total() * (1 + evaluation.skipped)
        part[1] += _flops(ops) * (1 + evaluation.skipped)
    set_up -= Counter(loop.ops(period))
    if set_up:
        parts = {
            "set-up and the first step's extra work": [set_up.total(), _flops(set_up)],
            **parts,
        }
    return tuple(ScriptPart(name, int(calls), flops) for name, (calls, flops) in parts.items())


def _flops(ops: Counter[Op]) -> float:
    return float(
        sum(cost.flops * times for op, times in ops.items() if (cost := cost_of(op)) is not None)
    )
