"""Processes and profilers that a script starts with torch, kept in the process that has no GPU."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import multiprocessing.process
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.recording.user_lines import (
    user_line,
)
from wavecast.frameworks.replacements import replacing

_RAN_HERE = "_wavecast_ran_here"


@contextmanager
def kept_in_this_process() -> Iterator[None]:
    """Inside the block, processes that get tensors of the GPU run here, and no GPU is profiled."""
    with ExitStack() as stack:
        replace = stack.enter_context(replacing())
        for module in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
            replace(module, start_processes=_start_processes)
        process: Any = multiprocessing.process.BaseProcess
        replace(process, start=partial_method(_start, process.start))
        replace(process, join=partial_method(_join, process.join))
        stack.callback(_stop_profiler)
        profiler = torch.autograd.profiler.profile
        replace(profiler, config=_without_gpu(profiler.config))
        yield


def _start_processes(
    function: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    *_: Any,
    **__: Any,
) -> Any:
    """Run the first process of `torch.multiprocessing.spawn` here; others have no fake GPU."""
    if nprocs != 1 and "WORLD_SIZE" not in os.environ:
        raise CaptureError(
            f"the script starts {nprocs} processes at {user_line()}; to follow the first of them, "
            f"add --ranks {nprocs} (ranks=)"
        )
    function(0, *args)
    return None if join else SimpleNamespace(processes=[], join=lambda *_, **__: True)


def partial_method(method: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    """A method that also gets the one that it replaces."""
    return lambda process, *args, **kwargs: method(own, process, *args, **kwargs)


def _start(own: Callable[..., Any], process: Any) -> None:
    """Start a process. One that gets tensors or a model of the GPU runs here instead."""
    given = pytree.tree_leaves((process._args, process._kwargs))
    if not any(map(_is_on_gpu, given)):
        own(process)
        return
    setattr(process, _RAN_HERE, True)
    process._target(*process._args, **process._kwargs)


def _join(own: Callable[..., Any], process: Any, timeout: float | None = None) -> None:
    if not hasattr(process, _RAN_HERE):
        own(process, timeout)


def _is_on_gpu(value: Any) -> bool:
    if isinstance(value, torch.nn.Module):
        return any(parameter.is_cuda for parameter in value.parameters())
    return isinstance(value, torch.Tensor) and value.is_cuda


def _without_gpu(config: Callable[..., Any]) -> Callable[..., Any]:
    """Profile the CPU only. Asking the GPU for times fails, slowly, in each op."""

    def configured(profiler: Any, *args: Any, **kwargs: Any) -> Any:
        profiler.profiler_kind = torch.autograd.ProfilerState.KINETO
        return config(profiler, *args, **kwargs)

    return configured


def _stop_profiler() -> None:
    """Stop a profiler that the script left running. Python would crash with it at its end."""
    if torch.autograd._profiler_enabled():
        torch.autograd._disable_profiler()
