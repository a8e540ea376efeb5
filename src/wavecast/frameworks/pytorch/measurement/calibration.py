"""Measured speed of this machine's GPU: memory bandwidth, and rates of large matmuls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from wavecast.frameworks.pytorch.measurement.iteration import require_gpu, software
from wavecast.frameworks.pytorch.recording.switches import switches_restored
from wavecast.hardware.devices import Fact

_SIZE = 8192
"""Rows and columns of the matrices: so many that only the rate of the compute units matters."""

_PRODUCTS = (
    ("fp32", torch.float32, "ieee"),
    ("tf32_tensor", torch.float32, "tf32"),
    ("fp16_tensor", torch.float16, "ieee"),
    ("bf16_tensor", torch.bfloat16, "ieee"),
)


def calibrate(seconds_each: float = 1.0) -> tuple[str, dict[str, Fact]]:
    """The name of the current GPU, and its measured facts, keyed as in device files.

    Args:
        seconds_each: how long each measurement runs. It should be long enough for the clock to
            settle, as in training.
    """
    require_gpu()
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    source = f"wavecast calibrate, torch {torch.__version__.split('+')[0]}, {software()}"
    facts = {
        "memory_bytes": Fact(float(properties.total_memory), source),
        "memory_bytes_per_s": Fact(
            _copy_bytes_per_s(properties.total_memory, seconds_each), source
        ),
    }
    for unit, dtype, precision in _PRODUCTS:
        flops = _matmul_flops(dtype, precision, properties.total_memory, seconds_each)
        if flops is not None:
            facts[f"{unit}_flops"] = Fact(flops, source)
    return str(properties.name), facts


def _copy_bytes_per_s(memory_bytes: int, seconds: float) -> float:
    """Bytes per second read and written by a copy larger than any cache (Habitat, section 3.3)."""
    count = min(1 << 30, memory_bytes // 8)
    source = torch.zeros(count, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * count / _run_s(lambda: target.copy_(source), seconds)


def _matmul_flops(
    dtype: torch.dtype, precision: str, memory_bytes: int, seconds: float
) -> float | None:
    """The sustained FLOP rate of a square matmul. None if this GPU has no unit for it."""
    major, minor = torch.cuda.get_device_capability()
    least = {torch.float16: (7, 0), torch.bfloat16: (8, 0)}.get(dtype, (0, 0))
    if (major, minor) < (least if precision == "ieee" else (8, 0)):
        return None
    size = _SIZE
    while 3 * size * size * dtype.itemsize > memory_bytes // 2:
        size //= 2
    with switches_restored():
        torch.backends.cuda.matmul.fp32_precision = precision
        # Random numbers, because with zeros a GPU draws less power and clocks higher.
        left = torch.randn(size, size, device="cuda", dtype=dtype)
        right = torch.randn(size, size, device="cuda", dtype=dtype)
        out = torch.empty_like(left)
        return 2 * size**3 / _run_s(lambda: torch.mm(left, right, out=out), seconds)


def _run_s(run: Callable[[], Any], seconds: float) -> float:
    """The median time of one run, when it is repeated for some seconds."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while not times or time.perf_counter() < until:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(5):
            run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / 5)
    # Only the second half counts, because by then the clock has settled.
    return statistics.median(times[len(times) // 2 :])
