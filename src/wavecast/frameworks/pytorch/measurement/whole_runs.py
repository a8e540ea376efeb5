"""Whole runs, timed: the start-up, and the time until each of several numbers of iterations."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from wavecast.suite.training import TrainingStep, float32_products

Step = Callable[[], Any]
_WARM_UP = 3
"""Iterations of the start-up, in which libraries are loaded and kernels chosen."""


@dataclass(frozen=True)
class TimedRun:
    """One run: how long it took to start, and to reach each number of iterations."""

    startup_s: float
    """Building the step, and its first iterations; in graph mode, also capturing it."""
    seconds: tuple[float, ...]
    """The time of the iterations after the start-up, until each number that was asked for."""


def time_run(
    make_step: Callable[[], Step],
    lengths: Sequence[int],
    *,
    device: str = "cuda",
    graph: bool = False,
) -> TimedRun:
    """Build a step, run it, and read the time at each of these numbers of iterations.

    Args:
        make_step: builds the step.
        lengths: numbers of iterations, ascending; the run ends with the last.
        device: "cuda", or "cpu" to try it out.
        graph: whether each iteration is one CUDA graph, so that the GPU does not wait for the host.

    Raises:
        torch.OutOfMemoryError: the step does not fit into the GPU's memory.
    """
    cuda = device == "cuda"
    wait(cuda)
    began = time.perf_counter()
    with torch.device(device):  # weights are made on the GPU, and not copied there
        step = make_step()
    run = _graphed(step) if graph else step
    for _ in range(0 if graph else _WARM_UP):
        run()
    wait(cuda)
    startup_s = time.perf_counter() - began
    begin, marks = mark(cuda), {}
    for done in range(1, lengths[-1] + 1):
        run()
        if done in lengths:
            marks[done] = mark(cuda)
    wait(cuda)
    seconds = tuple(between_s(begin, marks[length]) for length in lengths)
    del run, step
    release(device)
    return TimedRun(startup_s, seconds)


def testing_step(step: TrainingStep, precision: str) -> Step:
    """The forward pass of a model in evaluation mode, on the inputs of its training step."""
    step.model.eval()

    def run() -> Any:
        with torch.inference_mode(), float32_products(precision):
            return step.model(step.inputs[0])

    return run


def software(graph: bool) -> str:
    """The software that runs it, and how."""
    return f"torch {torch.__version__}{', CUDA graph' if graph else ''}"


def release(device: str) -> None:
    """Give back the memory of steps that are no longer used, so that the next run begins alike."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def _graphed(step: Step) -> Step:
    """A function that replays the step as one CUDA graph, captured as torch advises."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()

    def replay(kept: Step = step) -> None:
        graph.replay()  # the step is kept: the graph writes into its tensors

    return replay


def wait(cuda: bool) -> None:
    """Wait until the GPU is done."""
    if cuda:
        torch.cuda.synchronize()


def mark(cuda: bool) -> Any:
    """The present time, on a GPU's clock without waiting for it."""
    if not cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between_s(begin: Any, end: Any) -> float:
    """The seconds between two times of `mark`."""
    return float(end - begin) if isinstance(begin, float) else begin.elapsed_time(end) * 1e-3
