"""The function that runs a training script of JAX until its jitted step repeats itself."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.jax.driver import check_installed
from wavecast.frameworks.jax.script_calls import (
    LARGE,
    MOST_SMALL,
    REPEATS,
    JittedCall,
    JittedCalls,
    Repeated,
)
from wavecast.frameworks.jax.steps import DEFAULT_GPU, show_devices
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
from wavecast.frameworks.stages import stage
from wavecast.hardware.device import Device
from wavecast.hardware.devices import device
from wavecast.traces.script import ScriptRun

_COPIES = "copies of the batch to the GPU"


def run_jax(
    program: Program,
    *,
    gpu: Device | None = None,
    samples: int | None = None,
    ranks: int | None = None,
    watcher: Watcher | None = None,
    **others: Any,
) -> ScriptRun:
    """Run a script of JAX, and return the jitted step that repeats, compiled for a GPU.

    Args:
        program: the script and its arguments.
        gpu: the GPU to compile for; an H100 if None.
        samples: how many samples a step takes. None for the length of what is new in each call.
        ranks: how many devices jax shall show.
        watcher: looks at the script while it runs, and may cut it short.
        others: options of scripts of torch; those that would change the answer are refused.
    """
    program.check(None)
    _refuse(program, others)
    check_installed()
    show_devices(ranks or 1)
    calls = JittedCalls(user_line)
    watching = nullcontext() if watcher is None else watcher.watching(calls)
    with tempfile.TemporaryDirectory(prefix="wavecast-") as scratch, watching:
        with programs_forgotten(), failures_explained("the script"), ExitStack() as stack:
            stack.enter_context(calls.watched())
            stack.enter_context(redirected(Overlay(Path(scratch))))
            with suppress(Repeated):
                program.run()
        step = _step_of(program, calls)
        target = gpu or device(DEFAULT_GPU)
        with stage(f"compiling {step.function.name} for {target.name}"):
            arguments, named = step.arguments, step.named
            lowered = lowered_step(step.function.jitted, arguments, named, target, {})
            (trace,) = traces_for(lowered, [target], samples=samples or calls.samples())
    small = sorted({name for name, _ in calls.outside()})
    left_out = (_COPIES, f"small ops outside of the step: {', '.join(small)}") if small else ()
    return ScriptRun(
        script=program.shown,
        trace=trace,
        line=step.line,
        step=REPEATS,
        steps=REPEATS,
        equal=tuple(range(1, REPEATS + 1)),
        choice=f"{REPEATS} calls of the jitted function {step.function.name} had the same shapes",
        holds=f"one call of {step.function.name}",
        left_out=left_out or (_COPIES,),
    )


def _step_of(program: Program, calls: JittedCalls) -> JittedCall:
    """The call of the step; refused where other work belongs to a step, or none repeats."""
    step = calls.step
    if step is None:
        raise CaptureError(f"{program.shown} {calls.cut_short or _no_step(calls)}{_advice(calls)}")
    others = [call for call in calls.between() if call is not step]
    if others:
        names = ", ".join(dict.fromkeys(f"{c.function.name} ({c.line})" for c in others))
        raise CaptureError(
            f"each step of {program.shown} calls {step.function.name} ({step.line}) and {names}, "
            f"and only steps of one jitted function are followed{_advice(calls)}"
        )
    outside = calls.outside()
    large = sorted({name for name, size in outside if size >= LARGE})
    if large or len(outside) > MOST_SMALL:
        shown = ", ".join(large or sorted({name for name, _ in outside}))
        raise CaptureError(
            f"between its calls of {step.function.name} ({step.line}) {program.shown} runs "
            f"{len(outside)} ops that are not jitted ({shown}), which would be missing"
            f"{_advice(calls)}"
        )
    return step


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


def _refuse(program: Program, options: Mapping[str, Any]) -> None:
    """Refuse what only scripts of torch can be asked."""
    names = [f"--{name}" for name in ("steps", "until", "assume", "changes") if options.get(name)]
    if names:
        raise InvalidInput(
            f"{program.shown} trains with JAX, whose scripts are run until a jitted function "
            f"repeats; leave out {', '.join(names)}"
        )
