"""The function that traces a training step, with the code that it compiles."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from wavecast.errors import WavecastError
from wavecast.frameworks.pytorch.capture.pretended.machine import CompilesCode
from wavecast.frameworks.pytorch.capture.tracing import capture as capture_plain
from wavecast.frameworks.pytorch.compiled.releases import why_unsupported
from wavecast.frameworks.pytorch.compiled.target import OLDEST, target_of
from wavecast.hardware.devices import DEFAULT_CAPABILITY, Device, family
from wavecast.traces.graphs import NOT_COMPILED
from wavecast.traces.step import Trace

if TYPE_CHECKING:
    from wavecast.frameworks.pytorch.compiled.compiling import StepCompiler

Traced = TypeVar("Traced")


def capture(
    make_step: Callable[[], Callable[[], Any]],
    *,
    gpu: Device | None = None,
    capability: tuple[int, int] | None = None,
    compiled: bool | str = False,
    **options: Any,
) -> Trace:
    """The trace of one training step on a GPU that is not there.

    What the step compiles is compiled for that GPU, and its kernels are those of the trace.

    Args:
        make_step: builds model, optimizer and inputs, and returns the function of one step.
        gpu: the GPU. None for the usual one of the compute capability.
        capability: the compute capability, if no GPU is given; Hopper's if None.
        compiled: whether to compile the modules that the step calls, as if it had compiled them;
            or the mode of torch.compile in which to do so.
        options: further arguments of `capture.tracing.capture`.
    """
    if gpu is not None:
        capability = family(gpu)
    options["capability"] = capability
    if not compiled:
        try:
            return capture_plain(make_step, stops_at_compile=True, **options)
        except CompilesCode:
            pass  # the compiler is slow to load, and most steps do not need it
    compiler, reason = compiler_for(gpu, capability, compiled)
    trace, why = followed(lambda c: capture_plain(make_step, compiler=c, **options), compiler)
    return with_notes(trace, None if why else compiler, why or reason)


def followed(
    attempt: Callable[[StepCompiler | None], Traced], compiler: StepCompiler | None
) -> tuple[Traced, str]:
    """What a trace with a compiler gives; or one without, and why, if torch's compiler fails.

    The compiler's interfaces are private to torch, so any error may come from there. An error of
    the user's code occurs without the compiler, too, or is one that a GPU would raise.
    """
    try:
        return attempt(compiler), ""
    except Exception as error:
        why = why_not_followed(error, compiler)
        if not why:
            raise
    return attempt(None), why


class NotFollowed(BaseException):
    """Torch's compiler failed on a script; the text says how. No script catches it."""


def why_not_followed(error: Exception, compiler: StepCompiler | None) -> str:
    """How torch's compiler failed; empty if the error is not its own."""
    if compiler is None or _is_meant(error):
        return ""
    cause = error.__cause__ or error
    message = str(cause).strip().split("\n")[0][:200]
    return f"torch.compile could not be followed ({type(cause).__name__}: {message})"


def _is_meant(error: Exception) -> bool:
    """Whether an error was written for the user, or is one that a GPU would raise, too."""
    from wavecast.frameworks.pytorch.compiled.dynamo import is_user_error

    if error.__cause__ is None:
        return isinstance(error, WavecastError)
    return is_user_error(error.__cause__)


def with_notes(trace: Trace, compiler: StepCompiler | None, reason: str = "") -> Trace:
    """A trace with what was noticed while compiling, or why nothing was compiled."""
    notes = () if compiler is None else compiler.notes
    if reason:
        notes = (*notes, f"{NOT_COMPILED}: {reason}")
    return replace(trace, notes=(*trace.notes, *notes)) if notes else trace


def compiler_for(
    gpu: Device | None, capability: tuple[int, int] | None, compiled: bool | str
) -> tuple[StepCompiler | None, str]:
    """The compiler for a GPU, or None and the reason why there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch uses parts of its own that are deprecated
        why = why_unsupported()
        if why:
            return None, why
        from wavecast.frameworks.pytorch.compiled.compiling import StepCompiler
    capability = DEFAULT_CAPABILITY if capability is None else capability
    if capability < OLDEST:
        return None, "Triton has no kernels for GPUs before compute capability 7.0"
    return StepCompiler(target_of(gpu, capability), compiled), ""
