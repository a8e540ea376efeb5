"""Whole runs, timed: the start-up, and the time until each of several numbers of iterations."""

from __future__ import annotations

import gc
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
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


# The CPU time of this process and its workers, and how busy other programs keep the machine.
#
# Both come from the CPU times that Linux counts.


_STAT = Path("/proc/stat")
_PROCESSES = Path("/proc")
_COUNTED = 8
"""user, nice, system, idle, iowait, irq, softirq and steal; guests are counted in user and nice."""
_IDLE = (3, 4)


@dataclass(frozen=True)
class CpuTimes:
    """CPU seconds since the machine and this process started."""

    busy_s: float
    """Of all programs, on all cores; time that a hypervisor gave to other machines included."""
    total_s: float
    """Busy and idle, on all cores."""
    own_s: float
    """Of this process and its finished children."""


@dataclass
class Load:
    """The share of the CPU time that other programs use while a context is open."""

    share: float | None = field(default=None)
    """From 0 to 1 of all cores. None until the context ends, and where it is not known."""


@contextmanager
def watched() -> Iterator[Load]:
    """Measure the share of the CPU time that other programs use while the context is open."""
    load = Load()
    before = cpu_times()
    yield load
    load.share = others_share(before, cpu_times())


def share_in(seconds: float) -> float | None:
    """The share of the CPU time that other programs use in the next seconds. None if unknown."""
    with watched() as load:
        time.sleep(seconds)
    return load.share


def cpu_times() -> CpuTimes | None:
    """The CPU times until now. None where the system does not count them as Linux does."""
    try:
        first = _STAT.read_text(encoding="ascii").partition("\n")[0].split()
        ticks = [int(text) for text in first[1 : 1 + _COUNTED]]
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    if len(ticks) < _COUNTED or first[0] != "cpu":
        return None
    idle = sum(ticks[index] for index in _IDLE)
    own = os.times()
    return CpuTimes(
        busy_s=(sum(ticks) - idle) * tick_s,
        total_s=sum(ticks) * tick_s,
        own_s=own.user + own.system + own.children_user + own.children_system,
    )


def others_share(before: CpuTimes | None, after: CpuTimes | None) -> float | None:
    """The share of all CPU time between two readings that other programs used."""
    if before is None or after is None or after.total_s <= before.total_s:
        return None
    others_s = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return min(max(others_s / (after.total_s - before.total_s), 0.0), 1.0)


def processor_s(processes: Path = _PROCESSES) -> float:
    """The CPU seconds that this process and its descendants have used so far.

    Descendants that have ended count once their parent has waited for them. Those that still run
    are read from /proc, so they count on Linux only.
    """
    ended = os.times()
    return time.process_time() + ended.children_user + ended.children_system + _running_s(processes)


def _running_s(processes: Path) -> float:
    """The CPU seconds of the descendants that run now, and of those that they waited for."""
    children: dict[int, list[int]] = defaultdict(list)
    used_ticks: dict[int, int] = {}
    for place in processes.glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may hold spaces and parentheses of its own.
            fields = place.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        pid = int(place.parent.name)
        children[int(fields[1])].append(pid)
        used_ticks[pid] = sum(map(int, fields[11:15]))
    waiting, ticks = list(children[os.getpid()]), 0
    while waiting:
        pid = waiting.pop()
        ticks += used_ticks[pid]
        waiting += children[pid]
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0
