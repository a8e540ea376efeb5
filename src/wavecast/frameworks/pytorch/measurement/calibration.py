"""Measured speed of this machine: its GPU's memory and large matmuls, its host on tiny ops."""

from __future__ import annotations

import contextlib
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity

from wavecast.frameworks.kineto.events import GPU_CATEGORIES, RUNTIME_CATEGORIES
from wavecast.frameworks.pytorch.measurement.iteration import require_gpu, software
from wavecast.frameworks.pytorch.measurement.profiling import events_of, torch_profiler
from wavecast.frameworks.pytorch.recording.switches import switches_restored
from wavecast.hardware.devices import Fact

_SIZE = 8192
"""Rows and columns of the matrices: so many that only the rate of the compute units matters."""

_MATMULS = (
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
    for unit, dtype, precision in _MATMULS:
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


# A benchmark of how long this machine's host takes to issue work, on ops with tiny tensors.
#
# A pattern is a small piece of code that shows one cost of `wavecast.hardware.hosts.Host`. Run on
# the CPU, patterns measure Python, the dispatcher and autograd. Run on a GPU whose queue never
# fills, they include the driver. `wavecast.hardware.kept_hosts` compares the times with those of
# the reference machine.


Run = Callable[[], Any]
Pattern = tuple[str, int, Run]
"""The name of the host's cost, how often one run incurs it, and the function to run."""

_WIDTH = 8
"""Rows and columns of the tensors: so few that the arithmetic takes no time worth counting."""
_ROUNDS = 30
_ROUND_S = 3e-3
_DEEPEST = 400
"""The most runs in a row on a GPU. Its queue holds 1024 launches; beyond, the host would wait for
the GPU, and the GPU's time would be measured."""
_LAYERS = 16
_NODES = (20, 420)
"""Kernels of a small and a large CUDA graph."""


def time_host(device: str = "cpu", rounds: int = _ROUNDS) -> dict[str, float]:
    """The seconds that the host takes to issue each pattern, keyed by the host's cost.

    Args:
        device: where the ops run: "cpu", or "cuda" for exact costs. Patterns that need a GPU are
            left out on the CPU.
        rounds: how often to run all patterns, which takes a tenth of a second each time. At least
            two.
    """
    if device != "cpu":
        require_gpu()
    with _one_thread():
        patterns = [*_forward(device), *_training(device), *_lists(device), *_gpu_only(device)]
        return _time(patterns, rounds)


def time_gpu() -> dict[str, float]:
    """The host's costs that only a GPU can show, measured directly and not by patterns."""
    require_gpu()
    return {**_trip_s(), **_graph_s()}


def versions(device: str = "cpu") -> str:
    """The versions of the software that issues the work."""
    python = f"Python {platform.python_version()}, torch {torch.__version__.split('+')[0]}"
    return python if device == "cpu" else f"{python}, {software()}"


def processor() -> str:
    """The name of the host's processor."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown processor"


def gpu_name() -> str:
    """The name of the GPU."""
    return str(torch.cuda.get_device_name())


def _time(patterns: list[Pattern], rounds: int) -> dict[str, float]:
    """The time of each cost. Patterns take turns, so that a disturbance affects all of them."""
    runs = [_runs_per_round(run) for _, _, run in patterns]
    times: list[list[float]] = [[] for _ in patterns]
    for _ in range(rounds):
        for (_, count, run), repeats, samples in zip(patterns, runs, times, strict=True):
            samples.append(_round_s(run, repeats) / (repeats * count))
    by_cost: dict[str, list[float]] = {}
    for (name, _, _), samples in zip(patterns, times, strict=True):
        # The lower quartile, because other work on this machine can only add time.
        by_cost.setdefault(name, []).append(statistics.quantiles(samples, n=4)[0])
    return {name: statistics.mean(seconds) for name, seconds in by_cost.items()}


def _runs_per_round(run: Run, most: int = _DEEPEST) -> int:
    for _ in range(3):
        run()
    return max(1, min(int(_ROUND_S / max(_round_s(run, 3) / 3, 1e-7)), most))


def _round_s(run: Run, repeats: int) -> float:
    """The host's time for several runs in a row, starting with an empty GPU queue."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    return time.perf_counter() - begin


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread: more would not help with small tensors, and would add noise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _forward(device: str) -> Iterator[Pattern]:
    """Ops called from Python: without autograd, with autograd, without a kernel, and in modules."""
    for name, recording in (("forward_s", False), ("autograd_s", True)):
        for run in _ops(device, recording):
            yield name, 1, run
    x = torch.rand(_WIDTH, _WIDTH, device=device, requires_grad=True)
    yield "view_s", 1, lambda: x.view(-1)
    yield "view_s", 1, lambda: x.transpose(0, 1)
    yield "view_s", 1, lambda: x[0]
    modules = nn.Sequential(*(nn.Identity() for _ in range(_LAYERS)))
    yield "module_s", _LAYERS + 1, lambda: modules(x)


def _ops(device: str, recording: bool) -> list[Run]:
    x = torch.rand(_WIDTH, _WIDTH, device=device, requires_grad=recording)
    weight = torch.rand(_WIDTH, _WIDTH, device=device, requires_grad=recording)
    bias = torch.rand(_WIDTH, device=device, requires_grad=recording)
    return [
        lambda: x * weight,
        lambda: x + bias,
        lambda: functional.relu(x),
        lambda: functional.linear(x, weight, bias),
        lambda: functional.layer_norm(x, (_WIDTH,), bias, bias),
        lambda: torch.cat((x, weight)),
    ]


def _training(device: str) -> Iterator[Pattern]:
    """The backward pass of a few layers, and a training step with a single small weight."""
    layers: list[nn.Module] = []
    for _ in range(_LAYERS):
        layers += [nn.Linear(_WIDTH, _WIDTH), nn.LayerNorm(_WIDTH), nn.ReLU()]
    model = nn.Sequential(*layers).to(device)
    loss = model(torch.rand(_WIDTH, _WIDTH, device=device)).sum()
    weights = list(model.parameters())
    # Five ops a layer: two matmuls and the sum of the bias for linear, one each for the others.
    yield "backward_s", 5 * _LAYERS, lambda: torch.autograd.grad(loss, weights, retain_graph=True)

    weight = nn.Parameter(torch.rand(_WIDTH, device=device))
    optimizer = torch.optim.AdamW([weight], foreach=True)

    def step() -> None:
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

    yield "step_s", 1, step


def _lists(device: str) -> Iterator[Pattern]:
    """Ops on lists of tensors, as optimizers use them: with one tensor, and with many."""
    for name, count in (("other_s", 1), ("tensor_s", 64)):
        first, second = (
            [torch.ones(_WIDTH, device=device) for _ in range(count)] for _ in range(2)
        )
        for run in _list_ops(first, second):
            yield name, count, run


def _list_ops(first: list[torch.Tensor], second: list[torch.Tensor]) -> list[Run]:
    return [
        lambda: torch._foreach_mul_(first, 1.0),
        lambda: torch._foreach_lerp_(first, second, 0.1),
        lambda: torch._foreach_addcdiv_(first, second, second, 1e-9),
        lambda: torch._foreach_sqrt(second),
    ]


def _gpu_only(device: str) -> Iterator[Pattern]:
    if device == "cpu":
        return
    image = torch.rand(2, _WIDTH, _WIDTH, _WIDTH, device=device)
    filters = torch.rand(_WIDTH, _WIDTH, 3, 3, device=device)
    yield "convolution_s", 1, lambda: functional.conv2d(image, filters)
    layer = nn.LSTM(_WIDTH * 8, _WIDTH * 8).requires_grad_(False).to(device)
    steps = 64
    sequence = torch.rand(steps, 4, _WIDTH * 8, device=device)
    yield "kernel_s", 2 * steps, lambda: layer(sequence)


def _trip_s() -> dict[str, float]:
    """The delay from a launch to the kernel's start, and from its end to a waiting host."""
    x = torch.ones(_WIDTH, device="cuda")

    def trip() -> None:
        x.add_(1)
        torch.cuda.synchronize()

    both_s = _typical_s(trip) - _typical_s(lambda: x.add_(1))
    with torch_profiler(ProfilerActivity.CPU, ProfilerActivity.CUDA) as profiler:
        for _ in range(_ROUNDS):
            trip()
    returned: dict[int, float] = {}
    started: dict[int, tuple[float, float]] = {}
    for event in events_of(profiler):
        if event.get("cat") in RUNTIME_CATEGORIES and "Launch" in event["name"]:
            returned[event["args"]["correlation"]] = event["ts"] + event["dur"]
        elif event.get("cat") in GPU_CATEGORIES:
            started[event["args"]["correlation"]] = event["ts"], event["dur"]
    both = returned.keys() & started.keys()
    if not both:
        return {}
    ran_s = statistics.median(started[i][1] * 1e-6 for i in both)
    there_and_back_s = max(both_s - ran_s, 0.0)
    # In the profiler's file, the clocks of host and GPU agree within a microsecond or two.
    launch_s = max(statistics.median((started[i][0] - returned[i]) * 1e-6 for i in both), 0.0)
    launch_s = min(launch_s, there_and_back_s)
    return {"launch_s": launch_s, "sync_s": there_and_back_s - launch_s}


def _graph_s() -> dict[str, float]:
    """The host's time to launch a CUDA graph: a fixed part, and a part for each of its kernels."""
    x = torch.ones(_WIDTH, device="cuda")
    x.add_(1)
    times = []
    for nodes in _NODES:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(nodes):
                x.add_(1)
        times.append(_typical_s(graph.replay, most=1))
    node_s = max((times[1] - times[0]) / (_NODES[1] - _NODES[0]), 0.0)
    return {"graph_s": max(times[0] - node_s * _NODES[0], 0.0), "node_s": node_s}


def _typical_s(run: Run, most: int = _DEEPEST) -> float:
    repeats = _runs_per_round(run, most)
    return statistics.median(_round_s(run, repeats) / repeats for _ in range(_ROUNDS))
