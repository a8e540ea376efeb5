"""The step that a command is about, traced or measured, and the GPUs that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import wavecast
from wavecast.cli.screen import counting_ops, waiting
from wavecast.cli.standard_output import keep_for_results
from wavecast.errors import InvalidInput, needing_extra
from wavecast.frameworks.targets import Target
from wavecast.hardware.device import Device
from wavecast.hardware.family_traces import FamilyTraces
from wavecast.traces.step import Trace

ALL = "all"
"""The name that stands for all GPUs."""


def named_gpus(names: list[str]) -> list[Device]:
    """The devices of these names, without duplicates."""
    return list({gpu.id: gpu for gpu in map(wavecast.device, names)}.values())


def named_or_all_gpus(names: list[str]) -> list[Device]:
    """The devices of these names, or all known ones if "all" is among them."""
    named = named_gpus([name for name in names if name != ALL])
    if ALL not in names:
        return named
    return list({gpu.id: gpu for gpu in (*wavecast.devices(), *named)}.values())


def refuse_all(names: list[str] | None, command: str, instead: str) -> None:
    """Refuse "all" GPUs in a command that has a column for each; `instead` is one with rows."""
    if ALL in (names or ()):
        raise InvalidInput(
            f'"wavecast {command}" shows a column for each GPU, so name some; "wavecast {instead} '
            '--gpu all" compares all'
        )


def is_measured(target: Target) -> bool:
    """Whether a target is a measured trace, which is scaled rather than predicted."""
    return target.trace is not None and target.trace.measurement is not None


def unchanged(target: Target, batch: int | None, precision: str | None) -> Target:
    """A target for a command that takes a saved trace only as it is.

    Raises:
        InvalidInput: it is a trace, and a batch or precision was given.
    """
    if target.trace is None:
        return target
    given = {"--batch": batch, "--precision": precision}
    for option, value in given.items():
        if value is not None:
            raise InvalidInput(
                f"{target.name} is a trace, so {option} {value} would change nothing here; leave "
                f"it out, or name the step itself"
            )
    return target


def trace_of(
    target: Target,
    capability: tuple[int, int] | None,
    *,
    gpu: Device | None = None,
    quiet: bool = False,
) -> Trace:
    """The trace of a target: the saved one, or a new one for a GPU or a compute capability.

    Args:
        target: the step.
        capability: the compute capability; None for a recent one.
        gpu: the GPU, instead of a compute capability.
        quiet: whether no progress is shown, because the caller shows its own.
    """
    if target.trace is not None or target.make_step is None:
        return target.trace or Trace(())
    keep_for_results()
    with nullcontext() if quiet else _tracing(target) as progress:
        return wavecast.trace(
            target.make_step,
            gpu=gpu,
            capability=capability if gpu is None else None,
            samples=target.samples,
            unit=target.unit,
            progress=progress,
            assume=target.assume,
            ranks=target.ranks,
            compiled=target.compiled,
        )


def family_traces(target: Target, gpus: Sequence[Device]) -> FamilyTraces:
    """The traces of a target for the families of several GPUs: the saved one, or new ones."""
    if target.trace is not None or target.make_step is None:
        return FamilyTraces((target.trace or Trace(()),))
    with _tracing(target) as progress:
        return wavecast.trace(
            target.make_step,
            gpus=gpus,
            samples=target.samples,
            unit=target.unit,
            progress=progress,
            assume=target.assume,
            ranks=target.ranks,
            compiled=target.compiled,
        )


@contextmanager
def _tracing(target: Target) -> Iterator[Callable[[int], None] | None]:
    """What surrounds the tracing of a target: its progress, and its own output on stderr."""
    keep_for_results()
    with counting_ops(f"tracing {target.name}") as progress:
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
