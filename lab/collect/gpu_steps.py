"""Time steps on this machine's GPU.

It needs only torch and wavecast.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch

Step = Callable[[], Any]


def steady_s(step: Step, repeats: int) -> float:
    """Seconds of one iteration in the steady state: one synchronisation after many iterations."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / repeats


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


def release_memory() -> None:
    """Free the GPU memory of steps that are no longer used."""
    gc.collect()
    torch.cuda.empty_cache()
