"""Each op of a step, run again alone on its inputs (Habitat, section 5.1).

In an iteration, kernels of several streams overlap and caches hold what the op before left. Habitat
times each operation by itself: a few runs to warm up, then the mean of a few runs between CUDA
events. The forward and the backward pass are ops of their own here, so they are timed apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from wavecast import ops
from wavecast.frameworks.pytorch.measurement.layers import timer_on
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.recording_modes import RecordingMode
from wavecast.frameworks.pytorch.recording.signature import tensors_of
from wavecast.frameworks.pytorch.recording.structure import Structure
from wavecast.ops import Kind
from wavecast.traces.step import Call, Kernel, Trace

Timer = Callable[[Callable[[], Any]], float]
"""Returns the mean seconds of a function that it runs several times."""


class RerunMode(RecordingMode):
    """Also times each op alone, on its own inputs, before it runs for the step."""

    def __init__(self, recorder: OpRecorder, timed: Timer) -> None:
        super().__init__(recorder)
        self.timed = timed
        self.alone_s: dict[int, float] = {}
        """The seconds of each op, by its position in the recording."""

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        # A collective waits for other processes, which do not run it again.
        if "c10d" not in func.namespace and tensors_of((args, tuple(kwargs.values()))):
            run = repeatable(func, args, kwargs)
            with _same_random_numbers():
                self.alone_s[len(self.recorder)] = self.timed(run)
        return func(*args, **kwargs)


def repeatable(func: Any, args: tuple[Any, ...], kwargs: Any) -> Callable[[], Any]:
    """A function that runs an op and changes nothing: it writes to copies."""
    schema = func._schema.arguments
    written = {a.name for a in schema if a.alias_info is not None and a.alias_info.is_write}
    names = [argument.name for argument in schema]
    given = [
        tree_map(_copy, value) if name in written else value
        for name, value in zip(names, args, strict=False)
    ]
    named = {key: tree_map(_copy, v) if key in written else v for key, v in kwargs.items()}
    return lambda: func(*given, **named)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Give back the state of the random numbers, so that the step draws the same ones."""
    gpus = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=gpus):
        yield


def timer(warm_up: int, repeats: int, device: str = "cuda") -> Timer:
    """A timer that runs a function `warm_up` times, then takes the mean of `repeats` runs."""

    def timed(run: Callable[[], Any]) -> float:
        issue_s = 0.0
        for _ in range(warm_up):
            began = time.perf_counter()
            run()
            issue_s = time.perf_counter() - began
        return timer_on(device)(run, repeats, issue_s)

    return timed


def times_alone(step: Callable[[], Any], timed: Timer) -> tuple[Call, ...]:
    """The ops of one iteration; each has one kernel, whose time is that of the op alone."""
    recorder = OpRecorder(Structure())
    mode = RerunMode(recorder, timed)
    with mode:
        with recorder.structure.watch():
            step()  # to learn the names of the modules
        mode.alone_s.clear()
        with recorder.step():
            step()
    recorder.structure.forget()
    kernels = {at: (Kernel("alone", seconds),) for at, seconds in mode.alone_s.items()}
    return recorder.recording(kernels).calls


def timed_alone(trace: Trace, step: Callable[[], Any], timed: Timer) -> Trace:
    """The trace of a step, with the time of each op alone (`with_times_alone`)."""
    return with_times_alone(trace, times_alone(step, timed))


def with_times_alone(trace: Trace, alone: tuple[Call, ...]) -> Trace:
    """A measured trace whose kernels take as long as their op does alone.

    The kernels of an op keep their shares of its time. If the two iterations ran different ops, the
    trace keeps its times, and a note says so.
    """
    if [call.op.name for call in alone] != [c.op.name for c in trace.calls][: len(alone)]:
        note = "iterations differ in their ops, so the times are not those of each op alone"
        return replace(trace, notes=(*trace.notes, note))
    timed = tuple(_as_alone(c, one) for c, one in zip(trace.calls, alone, strict=False))
    return replace(trace, calls=(*timed, *trace.calls[len(alone) :]))


def _as_alone(call: Call, alone: Call) -> Call:
    inside_s = sum(kernel.seconds for kernel in call.kernels)
    if not inside_s or not alone.kernels or ops.kind(call.op) is Kind.COLLECTIVE:
        return call
    factor = alone.kernels[0].seconds / inside_s
    if not factor:
        return call
    # They have no start: an op that ran alone overlapped with nothing.
    kernels = tuple(replace(k, seconds=k.seconds * factor, start_s=None) for k in call.kernels)
    return replace(call, kernels=kernels)
