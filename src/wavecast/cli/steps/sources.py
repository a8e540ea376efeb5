"""The step that a command is about, traced or measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import typer

import wavecast
from wavecast.cli.output.screen import counting_ops, print_error, tell, waiting
from wavecast.cli.output.standard_output import keep_for_results
from wavecast.errors import CaptureError, InvalidInput, needing_extra
from wavecast.frameworks.stages import stage
from wavecast.steps.prediction import Prediction
from wavecast.targets.sources import ScriptSource, StepSource, target_source
from wavecast.targets.targets import Target
from wavecast.traces.script import ScriptRun
from wavecast.traces.step import Trace


def step_source(target: Target, *, quiet: bool = False) -> StepSource:
    """The traces of a target: the saved one, or new ones.

    Which step of a script was found is told after its first run.

    Args:
        target: the step.
        quiet: whether no progress is shown, because the caller shows its own.
    """
    keep_for_results()
    if target.script is not None:
        from wavecast.report.results.profiles import found_step

        return script_source(target, lambda run: tell("\n".join(found_step(run))), quiet=quiet)
    return target_source(target) if quiet else target_source(target, _tracing)


def script_source(
    target: Target, tell_first: Callable[[ScriptRun], None], *, quiet: bool = False
) -> ScriptSource:
    """The traces of the step of a script.

    Args:
        target: the script.
        tell_first: is called with the first run.
        quiet: whether no progress is shown, because the caller shows its own.
    """

    @contextmanager
    def running(target: Target) -> Iterator[Callable[[int], None] | None]:
        with nullcontext() if quiet else counting_ops(f"running {target.name}") as progress:
            try:
                yield progress
            except CaptureError as error:
                _pass_on(error)
                raise

    return ScriptSource(target, running, tell_first)


def _pass_on(error: CaptureError) -> None:
    """Show the script's own traceback, and end with its own exit code."""
    if error.__cause__ is not None and str(error.__cause__):
        tell(str(error.__cause__))
    if error.script_code is not None:
        print_error(str(error))
        raise typer.Exit(error.script_code) from error


def with_largest(rows: Iterable[Prediction], source: StepSource) -> list[Prediction]:
    """Predictions whose memory is that of the largest step of the loop."""
    return [replace(row, largest=source.larger(row.device)) for row in rows]


@contextmanager
def _tracing(target: Target) -> Iterator[Callable[[int], None] | None]:
    """The progress of tracing a target."""
    with stage(f"tracing {target.name}"), counting_ops(f"tracing {target.name}") as progress:
        yield progress


def measured_step(target: Target, **protocol: Any) -> Trace:
    """The step of a target, measured on this machine's GPU."""
    if target.make_step is None:
        kind = "trace" if target.script is None else "script"
        raise InvalidInput(
            f"{target.name} is a {kind}; measure the step itself, as of FILE.py:make_step"
        )
    require_gpu()
    keep_for_results()
    with waiting(f"measuring {target.name}"):
        return wavecast.measure(
            target.make_step(), samples=target.samples, unit=target.unit, **protocol
        )


def require_gpu() -> None:
    """Refuse to go on without a GPU, before a model is built for it."""
    _measurement().require_gpu()


def has_gpu() -> bool:
    """Whether this machine has a GPU that can be measured."""
    return bool(_measurement().has_gpu())


def _measurement() -> Any:
    with needing_extra("measuring"):
        from wavecast.frameworks.pytorch.measurement import iteration
    return iteration
