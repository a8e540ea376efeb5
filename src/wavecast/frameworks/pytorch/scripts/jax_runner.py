"""The function that runs a training script of JAX until its jitted step repeats itself."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.jax.driver import check_installed
from wavecast.frameworks.jax.script_calls import (
    LARGE,
    MOST_SMALL,
    REPEATS,
    JittedCall,
    JittedCalls,
    JoinedCalls,
    Repeated,
)
from wavecast.frameworks.jax.steps import show_devices
from wavecast.frameworks.jax.tracing import lowered_step, traces_for
from wavecast.frameworks.pytorch.recording.user_lines import (
    failures_explained,
    programs_forgotten,
    user_line,
)
from wavecast.frameworks.pytorch.scripts.overlay import Overlay
from wavecast.frameworks.pytorch.scripts.program import Program
from wavecast.frameworks.pytorch.scripts.redirection import redirected
from wavecast.frameworks.pytorch.scripts.watching import Watcher
from wavecast.frameworks.script_results import RunOptions
from wavecast.frameworks.stages import stage
from wavecast.hardware.devices import Device, usual_gpu
from wavecast.traces.script import ScriptRun
from wavecast.traces.step import Trace

WITHOUT_SCRIPT = (
    "return its jitted step and the arguments (arrays or shapes) from a function, and use wavecast "
    "predict FILE.py:FUNCTION, or wavecast.trace_jax (docs: Predict a JAX step)"
)
"""What to do about a step of JAX whose script is not followed."""
TENSORFLOW = (
    "TensorFlow, which is not followed; a Keras 3 model can be predicted on JAX: set "
    f"KERAS_BACKEND=jax, {WITHOUT_SCRIPT}"
)
MOST_JOINED = 64
"""A step may have so many calls of jitted functions."""


def run_jax(
    program: Program, watcher: Watcher, gpu: Device | None, options: RunOptions
) -> ScriptRun:
    """Run a script of JAX, and return the jitted step that repeats, compiled for a GPU."""
    program.check(None)
    _refuse(program, options)
    check_installed()
    show_devices(options.ranks or 1)
    calls = JittedCalls(user_line)
    with tempfile.TemporaryDirectory(prefix="wavecast-") as scratch, watcher.watching(calls):
        with programs_forgotten(), failures_explained("the script"), ExitStack() as stack:
            stack.enter_context(calls.watched())
            stack.enter_context(redirected(Overlay(Path(scratch))))
            with suppress(Repeated):
                program.run()
        step = _step_of(program, calls)
        target = gpu or usual_gpu()
        names = _names(calls)
        with stage(f"compiling {names} for {target.name}"):
            trace = _trace(calls, target, options.samples)
    return ScriptRun(
        script=program.shown,
        trace=trace,
        line=step.line,
        step=REPEATS,
        steps=REPEATS,
        equal=tuple(range(1, REPEATS + 1)),
        choice=f"{REPEATS} calls of the jitted function {step.function.name} had the same shapes",
        holds=f"one call of {names}",
        left_out=tuple(_left_out(calls)),
    )


def _step_of(program: Program, calls: JittedCalls) -> JittedCall:
    """The call of the step; refused where work outside of calls belongs to it, or none repeats."""
    step = calls.step
    if not calls.calls and "tensorflow" in sys.modules:
        raise CaptureError(f"{program.shown} trains with {TENSORFLOW}")
    if step is None:
        raise CaptureError(f"{program.shown} {calls.cut_short or _no_step(calls)}{_advice(calls)}")
    count = len(calls.between())
    if count > MOST_JOINED:
        raise CaptureError(
            f"each step of {program.shown} calls {count} jitted functions, the last of them "
            f"{step.function.name} ({step.line}), and up to {MOST_JOINED} are followed"
            f"{_advice(calls)}"
        )
    missed = [op for op in calls.outside() if op.on_results]
    large = sorted({op.name for op in missed if op.size >= LARGE})
    if large or len(missed) > MOST_SMALL:
        shown = ", ".join(large or sorted({op.name for op in missed}))
        raise CaptureError(
            f"between its calls of {step.function.name} ({step.line}) {program.shown} runs "
            f"{len(missed)} ops on what they return that are not jitted ({shown}), which would be "
            f"missing{_advice(calls)}"
        )
    return step


def _trace(calls: JittedCalls, gpu: Device, samples: int | None) -> Trace:
    """The step, compiled for a GPU: one jitted call, or several that follow each other."""
    between, samples = calls.between(), samples or calls.samples()
    if len(between) == 1:
        (call,) = between
        lowered = lowered_step(call.function.jitted, call.arguments, call.named, gpu, {})
        (trace,) = traces_for(lowered, [gpu], samples=samples)
        return trace
    joined = JoinedCalls(between)
    lowered = lowered_step(joined.step(), joined.arguments(), {}, gpu, {})
    (trace,) = traces_for(lowered, [gpu], samples=samples)
    return joined.with_dispatches(trace)


def _names(calls: JittedCalls) -> str:
    """The jitted functions of a step: "apply_model, 4 times, and of update_model"."""
    counts = Counter(call.function.name for call in calls.between())
    shown = [name + (f", {n} times," if n > 1 else "") for name, n in counts.items()]
    return " and of ".join(shown).rstrip(",")


def _left_out(calls: JittedCalls) -> Iterator[str]:
    """What a step does beside its jitted functions."""
    yield "copies of the batch to the GPU"
    outside = calls.outside()
    if prepares := sorted({op.name for op in outside if not op.on_results}):
        yield f"the preparation of the batch, outside of jitted functions: {', '.join(prepares)}"
    if small := sorted({op.name for op in outside if op.on_results}):
        yield f"small ops outside of jitted functions: {', '.join(small)}"


def _no_step(calls: JittedCalls) -> str:
    if not calls.calls:
        return "ended without a call of a jitted function (jax.jit)"
    last = calls.calls[-1]
    return (
        f"called jitted functions {len(calls.calls)} times, the last of them "
        f"{last.function.name} at {last.line}, but none {REPEATS} times with what it had returned"
    )


def _advice(calls: JittedCalls) -> str:
    name = calls.calls[-1].function.name if calls.calls else "train_step"
    return (
        "; write a function that returns one jitted step and its arguments (arrays or shapes), "
        f"`def make_step(): return {name}, (state, batch)`, and use wavecast predict "
        "FILE.py:make_step, or wavecast.trace_jax in Python (docs: Predict a JAX step)"
    )


def _refuse(program: Program, options: RunOptions) -> None:
    """Refuse what only scripts of torch can be asked."""
    only = ("steps", "until", "assume", "changes")
    names = [f"--{name}" for name in only if getattr(options, name)]
    if names:
        raise InvalidInput(
            f"{program.shown} trains with JAX, whose scripts are run until a jitted function "
            f"repeats; leave out {', '.join(names)}"
        )
