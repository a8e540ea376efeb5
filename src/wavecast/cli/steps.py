"""The step that a command is about, traced or measured, and the GPUs that it names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import wavecast
from wavecast.cli.screen import counting_ops, waiting
from wavecast.errors import InvalidInput, needing_extra
from wavecast.frameworks.targets import Target
from wavecast.hardware.device import Device
from wavecast.hardware.family_traces import FamilyTraces
from wavecast.traces.step import Trace


def named_gpus(names: list[str]) -> list[Device]:
    """The devices of these names, without duplicates."""
    return list({gpu.id: gpu for gpu in map(wavecast.device, names)}.values())


def named_or_all_gpus(names: list[str]) -> list[Device]:
    """The devices of these names, or all known ones if "all" is among them."""
    return list(wavecast.devices()) if "all" in names else named_gpus(names)


def trace_of(target: Target, capability: tuple[int, int] | None) -> Trace:
    """The trace of a target: the saved one, or a new one for a compute capability."""
    if target.trace is not None or target.make_step is None:
        return target.trace or Trace(())
    with _tracing(target) as progress:
        return wavecast.trace(
            target.make_step,
            capability=capability,
            samples=target.samples,
            unit=target.unit,
            progress=progress,
            assume=target.assume,
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
        )


@contextmanager
def _tracing(target: Target) -> Iterator[Callable[[int], None] | None]:
    """What surrounds the tracing of a target: its progress, and its own output on stderr."""
    # What the user's code prints must not get into our tables and JSON.
    with counting_ops(f"tracing {target.name}") as progress, redirect_stdout(sys.stderr):
        yield progress


def measured_step(target: Target, **protocol: int) -> Trace:
    """The step of a target, measured on this machine's GPU."""
    if target.make_step is None:
        raise InvalidInput(f"{target.name} is a trace; measure the step itself")
    require_gpu()
    with waiting(f"measuring {target.name}"), redirect_stdout(sys.stderr):
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
