"""The step that a command is about, traced or measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import wavecast
from wavecast.cli.output.screen import counting_ops, waiting
from wavecast.cli.output.standard_output import keep_for_results
from wavecast.errors import InvalidInput, needing_extra
from wavecast.frameworks.stages import stage
from wavecast.frameworks.step_source import StepSource, target_source
from wavecast.frameworks.targets import Target
from wavecast.traces.step import Trace


def step_source(target: Target, *, quiet: bool = False) -> StepSource:
    """The traces of a target: the saved one, or new ones.

    Args:
        target: the step.
        quiet: whether no progress is shown, because the caller shows its own.
    """
    keep_for_results()
    return target_source(target) if quiet else target_source(target, _tracing)


@contextmanager
def _tracing(target: Target) -> Iterator[Callable[[int], None] | None]:
    """The progress of tracing a target."""
    with stage(f"tracing {target.name}"), counting_ops(f"tracing {target.name}") as progress:
        yield progress


def measured_step(target: Target, **protocol: Any) -> Trace:
    """The step of a target, measured on this machine's GPU."""
    if target.make_step is None:
        raise InvalidInput(f"{target.name} is a trace; measure the step itself")
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
