"""The function that runs a training script until its step repeats itself."""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture.pretended.cuda_answers import CUDA_VERSION, properties_of
from wavecast.frameworks.pytorch.capture.pretended.machine import CompilesCode
from wavecast.frameworks.pytorch.capture.ranks import RankPlace
from wavecast.frameworks.pytorch.capture.tracing import explaining, pretending
from wavecast.frameworks.pytorch.capture.values.assumptions import Assumptions, GivenValues
from wavecast.frameworks.pytorch.changes.changed_code import changing
from wavecast.frameworks.pytorch.compiled.tracing import (
    NotFollowed,
    compiler_for,
    why_not_followed,
    with_notes,
)
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.structure import Structure
from wavecast.frameworks.pytorch.recording.user_lines import (
    failing_line,
    naming_all_lines,
    programs_forgotten,
)
from wavecast.frameworks.pytorch.scripts.batches import time_loader
from wavecast.frameworks.pytorch.scripts.checkpoints import checkpoints_kept
from wavecast.frameworks.pytorch.scripts.jax_runner import TENSORFLOW, WITHOUT_SCRIPT
from wavecast.frameworks.pytorch.scripts.loop import Loop
from wavecast.frameworks.pytorch.scripts.nvidia_smi import (
    facts_of,
    kernels_refused,
    nvidia_smi_on_path,
)
from wavecast.frameworks.pytorch.scripts.overlay import Overlay
from wavecast.frameworks.pytorch.scripts.periods import (
    Choice,
    EnoughSteps,
    LineOfCode,
    Period,
    choose,
    cycle_of,
    seen_ahead,
)
from wavecast.frameworks.pytorch.scripts.program import Program
from wavecast.frameworks.pytorch.scripts.redirection import redirected
from wavecast.frameworks.pytorch.scripts.watching import Watcher
from wavecast.frameworks.script_results import (
    COMPILES,
    INTERRUPTED,
    UNCOMPILED,
    Failure,
    RunOptions,
)
from wavecast.hardware.devices import DEFAULT_CAPABILITY, Device, family
from wavecast.ops.costs import cost_of, kind
from wavecast.ops.registry import Kind
from wavecast.traces.script import (
    Loading,
    OwnTime,
    ScriptLength,
    ScriptPart,
    ScriptRun,
    UnevenSteps,
)
from wavecast.traces.step import Op, Trace

if TYPE_CHECKING:
    from wavecast.frameworks.pytorch.compiled.compiling import StepCompiler


def run(program: Program, watcher: Watcher, gpu: Device | None, options: RunOptions) -> ScriptRun:
    """Run a script as on a machine with a GPU, and return the step that repeats.

    Raises:
        CompilesCode: a library compiles code, which was not known before.
        NotFollowed: torch's compiler failed; the text is for `RunOptions.uncompiled`.
    """
    program.check(options.steps)
    line = None if options.until is None else LineOfCode.parse(options.until)
    capability = family(gpu) if gpu is not None else options.capability or DEFAULT_CAPABILITY

    def attempt(compiler: StepCompiler | None, stops: bool) -> ScriptRun:
        assumptions = Assumptions(GivenValues(options.assume), stops)
        recorder = OpRecorder(Structure())
        loop = Loop(recorder, assumptions, options.steps)
        place = None if options.ranks is None else RankPlace(options.ranks)
        pretence = pretending(capability, recorder, assumptions, place, compiler, gpu)
        smi = _nvidia_smi(gpu, capability, place)
        naming = naming_all_lines() if options.lines else nullcontext()
        with explaining_assumed(assumptions, options.ranks), watcher.watching(loop), naming:
            _repeat(program, loop, pretence, line, options.changes, smi)
        if line is not None and not loop.boundaries:
            raise CaptureError(f"{program.shown} ended, and line {options.until} was not reached")
        return _result(program, loop, capability, options)

    compiles = options.uncompiled or options.compiles or "compile" in options.changes
    if not (compiles or program.mentions("compile")):
        return attempt(None, True)
    return _with_compiler(attempt, gpu, capability, options.uncompiled)


def _nvidia_smi(
    gpu: Device | None, capability: tuple[int, int], place: RankPlace | None
) -> Callable[[Path], AbstractContextManager[None]]:
    """What puts an nvidia-smi that tells of a GPU into a folder and on the PATH."""
    watts = None if gpu is None else gpu.tdp_w
    facts = facts_of(properties_of(gpu, capability, {}), watts, CUDA_VERSION)
    return partial(nvidia_smi_on_path, facts, 1 if place is None else place.machine)


def follow(
    program: Program, watcher: Watcher, gpu: Device | None, options: RunOptions
) -> ScriptRun | Failure:
    """What `run` gives; a failure where the script was stopped, or is to be run another way."""
    try:
        return run(program, watcher, gpu, options)
    except EnoughSteps as error:
        return Failure(INTERRUPTED, f"{program.shown} was interrupted at {failing_line(error)}")
    except CompilesCode:
        return Failure(COMPILES, f"{program.shown} compiles code")
    except NotFollowed as error:
        return Failure(UNCOMPILED, str(error))


def _with_compiler(
    attempt: Callable[[StepCompiler | None, bool], ScriptRun],
    gpu: Device | None,
    capability: tuple[int, int],
    uncompiled: str,
) -> ScriptRun:
    """What a script that compiles code gives; without a compiler if `uncompiled` says why."""
    compiler, reason = None, uncompiled
    if not uncompiled:
        compiler, reason = compiler_for(gpu, capability, compiled=False)
    try:
        done = attempt(compiler, False)
    except Exception as error:
        if why := why_not_followed(error, compiler):
            raise NotFollowed(why) from error
        raise
    return replace(done, trace=with_notes(done.trace, compiler, reason))


def _repeat(
    program: Program,
    loop: Loop,
    pretence: AbstractContextManager[Any],
    line: LineOfCode | None,
    changes: tuple[str, ...],
    smi: Callable[[Path], AbstractContextManager[None]],
) -> None:
    """Run a script until its loop has repeated itself."""
    with tempfile.TemporaryDirectory(prefix="wavecast-") as scratch:
        overlay = Overlay(Path(scratch))
        # The files of the script are known until its errors are explained.
        with programs_forgotten(), explaining("the script"), ExitStack() as stack:
            stack.enter_context(pretence)
            stack.enter_context(smi(Path(scratch, "programs")))
            stack.enter_context(loop.recorder.step())
            stack.enter_context(loop.watched(line))
            stack.enter_context(checkpoints_kept(loop.recorder))
            stack.enter_context(redirected(overlay))
            stack.enter_context(kernels_refused())
            stack.enter_context(changing(changes))
            loop.run(program)
            loop.finish()


def _result(
    program: Program, loop: Loop, capability: tuple[int, int], options: RunOptions
) -> ScriptRun:
    if not loop.boundaries:
        if loop.cut_short:
            raise CaptureError(f"{program.shown} {loop.cut_short}")
        raise explained(CaptureError(_no_step(program, loop)), loop.assumptions, options.ranks)
    periods = loop.periods()
    if periods:
        choice = _choice(loop, periods)
    else:
        first = loop.first_trained or 0
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
    loop.assumptions.notes.clear()  # of what ran after it
    for note in loop.notes(period):
        loop.assumptions.note(note)
    loop.assumptions.note_machine()
    left_out = choice.left_out
    if not loop.is_whole(period):
        left_out += ("evaluation inside of the step, as in all of its steps",)
    if loop.batches.repeated:
        left_out += (f"{loop.batches.repeated} slow batches: the last one was used again",)
    trace = Trace(
        **vars(recording),
        framework=f"torch {torch.__version__.split('+')[0]}",
        capability=capability,
        samples=options.samples or loop.batches.samples(period.begin, period.end),
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
        holds=contents(trace, loop.backwards.count(period.begin, period.end)),
        left_out=left_out,
        loading=_loading(loop, period, apart=options.loader),
        own_time=_own_time(loop, choice, periods),
        length=_length(loop, period),
        largest=_largest(loop, period, periods, trace),
        **_cycle(loop, choice, periods, trace),
    )


def _choice(loop: Loop, periods: list[Period]) -> Choice:
    """The step that stands for the loop, and what others do besides."""
    early = loop.early(periods) or periods
    choice = choose(loop.candidates(early))
    if len(early) == len(periods):
        return choice
    return seen_ahead(choice, loop.candidates(_complete(loop, periods)))


def _complete(loop: Loop, periods: list[Period]) -> list[Period]:
    """The steps without the last one of a script that ended, which may have more at its end."""
    return periods[:-1] if loop.ended_by_itself else periods


def _length(loop: Loop, period: Period) -> ScriptLength | None:
    """How long the script trains: its steps, or its epochs of as many batches as its loader has."""
    length, loader = loop.training, loop.batches.loader(period.begin, period.end)
    loading = loop.batches.loading(period.begin, period.end)
    if length is None or loader is None or loading is None:
        return length
    try:
        batches = len(loader)
    except (TypeError, NotImplementedError):  # a stream
        return length
    if length.epochs is None:
        return replace(length, batches=batches)
    return replace(length, batches=batches, steps=length.epochs * (batches // loading.batches or 1))


def _loading(loop: Loop, period: Period, *, apart: bool) -> Loading | None:
    """How long batches took to load, and how long they take outside of the trace."""
    loading = loop.batches.loading(period.begin, period.end)
    loader = loop.batches.loader(period.begin, period.end)
    if loading is None or loader is None or not apart:
        return loading
    return replace(loading, timed=time_loader(loader))


def _own_time(loop: Loop, choice: Choice, periods: Sequence[Period]) -> OwnTime | None:
    """How long the script's own Python took in a step: the least of the equal ones."""
    equal = [period for period in periods if period.number in choice.equal] or [choice.period]
    times = [loop.own_work.between(period.begin, period.end) for period in equal]
    long = [time for time in times if time is not None]
    return min(long, key=lambda time: time.seconds) if len(long) == len(times) else None


_OTHERS = {
    "jax": "JAX, whose scripts are followed if their own file imports jax and not torch; else "
    f"{WITHOUT_SCRIPT}",
    "tensorflow": TENSORFLOW,
}
"""Frameworks that a script without a step of PyTorch may train with, and what to do then."""


def _no_step(program: Program, loop: Loop) -> str:
    """Why no step was found, and what to do."""
    line = loop.backwards.last_line
    other = next((name for name in _OTHERS if name in sys.modules), None)
    if line is None and other is not None:
        return f"{program.shown} trains with {_OTHERS[other]}"
    if line is None:
        return (
            f"{program.shown} ended without an optimizer step (torch.optim) and without a backward "
            "pass; name the line that ends a step of its loop with --until FILE:LINE (until=), or "
            "write a make_step function"
        )
    return (
        f"no optimizer (torch.optim) stepped in {program.shown}, but {len(loop.backwards)} "
        f"backward passes ran, the last at {line}; if one of them is a step, add --until {line} "
        "(until=)"
    )


def _largest(loop: Loop, period: Period, periods: Sequence[Period], trace: Trace) -> Trace | None:
    """The step that needs most memory; None if it is the chosen one."""
    peaks = loop.peak_bytes(periods)
    if not peaks or max(peaks.values()) <= peaks[period]:
        return None
    return replace(trace, **vars(loop.recorded(max(peaks, key=peaks.__getitem__))))


def _cycle(loop: Loop, choice: Choice, periods: list[Period], trace: Trace) -> dict[str, Any]:
    """The steps after which all kinds of them come again, if known, as fields of a run."""
    cycle = cycle_of(choice, loop.candidates(_complete(loop, periods)))
    if not cycle:
        return {}
    whole = replace(choice.period, begin=cycle[0].begin, end=cycle[-1].end)
    kinds = dict[tuple[Op, ...], list[Period]]()
    for period in cycle:
        kinds.setdefault(loop.ops(period), []).append(period)
    kinds.pop(loop.ops(choice.period), None)

    def at(position: int) -> int:
        return len(loop.recorder.ops(whole.begin, position))

    return {
        "cycle": replace(trace, **vars(loop.recorded(whole)), samples=None),
        "cycle_steps": len(cycle),
        "uneven": tuple(
            UnevenSteps(at(alike[0].begin), at(alike[0].end), len(alike))
            for alike in kinds.values()
        ),
    }


def _parts(loop: Loop, choice: Choice) -> tuple[ScriptPart, ...]:
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


# What one step of a script has, in a few words: micro-batches, samples, precision, compiled.


def contents(trace: Trace, passes: int) -> str:
    """What a step has, in words: "4 micro-batches, 64 samples, bfloat16 matmuls, compiled"."""
    parts = [
        f"{passes} backward passes" if passes != 1 else "1 backward pass",
        "" if trace.samples is None else f"{trace.samples} {trace.unit}",
        _precision(trace),
        "compiled" if any(kind(op) is Kind.FUSED for op in trace.counts) else "not compiled",
    ]
    return ", ".join(filter(None, parts))


def _precision(trace: Trace) -> str:
    """The data type in which most FLOPs are computed."""
    flops: Counter[str] = Counter()
    for op, times in trace.counts.items():
        cost = cost_of(op)
        if cost is not None and op.inputs:
            flops[op.inputs[0].dtype] += int(cost.flops) * times
    [(dtype, most), *_] = flops.most_common(1) or [("", 0)]
    return f"mostly {dtype}" if most else ""


# Failures of scripts that come from what was assumed: the values of tensors, and one GPU.


_SEVERAL_GPUS = re.compile(
    r"\bGPUs?\b|\bdevices?\b|\branks?\b|world.?size|MASTER_ADDR|LOCAL_RANK|WORLD_SIZE",
    re.IGNORECASE,
)
"""What messages say that ask for more GPUs, or for what torchrun sets."""


@contextmanager
def explaining_assumed(assumptions: Assumptions, ranks: int | None) -> Iterator[None]:
    """Explain the errors of the block, as `explained` does."""
    try:
        yield
    except CaptureError as error:
        raise explained(error, assumptions, ranks) from error.__cause__


def explained(error: CaptureError, assumptions: Assumptions, ranks: int | None) -> CaptureError:
    """The same error, with what to do about it if an assumption may be the reason.

    Args:
        ranks: how many ranks it ran as the first of. None for a script on one GPU.
    """
    text, cause = str(error), error.__cause__
    if isinstance(cause, AssertionError | ValueError | RuntimeError | IndexError):
        line = failing_line(cause)
        if line in assumptions.read:
            value = assumptions.read[line]
            other = int(not value) if isinstance(value, bool) else 0
            return CaptureError(
                f"{text}; the value read from the GPU at {line} is not known, and {value} was "
                f"assumed: give the right one, as in --assume {line}={other}"
            )
    asked = assumptions.asks_count and (cause is None or isinstance(cause, SystemExit))
    mentioned = isinstance(cause, Exception) and _SEVERAL_GPUS.search(f"{cause}") is not None
    if ranks is None and "--ranks" not in text and (asked or mentioned):
        return CaptureError(
            f"{text}; the script ran as on a machine with one GPU: if it is written for several, "
            "say how many, as in --ranks 8"
        )
    return error
