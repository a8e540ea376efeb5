"""Time, capture and record steps on this machine's GPU; shared by the scripts of this folder.

It needs only torch and wavecast.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import wavecast

FEWEST, MOST = 4, 40
"""The fewest and the most iterations that `iteration_s` times together."""

Step = Callable[[], Any]


class NamedStep(NamedTuple):
    """A step to record: the name of its trace, a function that makes it, and its batch size."""

    name: str
    make: Callable[[], Step]
    samples: int


def steady_s(step: Step, repeats: int) -> float:
    """Seconds of one iteration in the steady state: one synchronisation after many iterations."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / repeats


def iteration_s(step: Step, timed_s: float) -> float:
    """Seconds of one iteration of a warm step, from about `timed_s` seconds of iterations."""
    once_s = steady_s(step, 1)
    return steady_s(step, int(min(max(timed_s / once_s, FEWEST), MOST)))


def single_s(step: Step, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of single iterations on an idle GPU: until all is issued, and until all is done."""
    issued_s, done_s = [], []
    torch.cuda.synchronize()
    for _ in range(repeats):
        begin = time.perf_counter()
        step()
        issued_s.append(time.perf_counter() - begin)
        torch.cuda.synchronize()
        done_s.append(time.perf_counter() - begin)
    return issued_s, done_s


def captured(step: Step, warm_up: int) -> torch.cuda.CUDAGraph:
    """A step as a CUDA graph, after warm-up iterations on a side stream as torch advises."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm_up):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def release_memory() -> None:
    """Free the GPU memory of steps that are no longer used."""
    gc.collect()
    torch.cuda.empty_cache()


def record_missing(
    out: Path, seconds: float, steps: Iterable[NamedStep], *, warm_up: int, repeats: int
) -> None:
    """Write a measured trace of each step into a folder, and print a line about each.

    Args:
        out: the folder; a step whose trace it has is not measured again.
        seconds: no step is started after this time.
        steps: the steps in order. If one fails, its error is printed and the next one follows.
        warm_up: iterations before any is measured.
        repeats: iterations that are timed.
    """
    out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    for name, make, samples in steps:
        path = out / f"{name}.json.gz"
        if path.exists():
            continue
        if time.monotonic() > until:
            print(f"the time is up; stopped before {name}", flush=True)
            return
        try:
            trace = wavecast.measure(
                make(), warm_up=warm_up, repeats=repeats, recordings=1, samples=samples
            )
            trace.save(path)
            whole = trace.measurement
            assert whole is not None
            print(name, f"{whole.seconds:.5f} {whole.gpu_s:.5f} {whole.host_s:.5f}", flush=True)
        except Exception as error:  # some models or sizes fail; the others still count
            print(f"{name}: {str(error)[:150]!r}", flush=True)
        release_memory()


def folder_and_seconds(about: str | None, seconds: float) -> argparse.ArgumentParser:
    """The command line of a script that fills a folder until its time is up."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write into")
    parser.add_argument(
        "--seconds",
        type=float,
        default=seconds,
        help=f"start nothing after this time (default {seconds:g})",
    )
    return parser
