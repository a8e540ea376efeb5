"""The time of a single layer on this machine's GPU: its forward and its backward pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from wavecast.frameworks.pytorch.recording.switches import true_float32
from wavecast.hardware.devices import device as device_named
from wavecast.predictors.mlp import Bmm, Conv2d, Layer, LayerStatus, Linear, Lstm, PassTimes

SLOW_S = 0.01
"""Layers whose two passes take longer than this are measured only once: they vary little."""

_LONGEST_SLEEP_S = 0.05
_CYCLES_PER_S = 2e9  # the clock of a fast GPU; a slower one sleeps longer, which does no harm
_FULL = 0.6  # if the allocator holds more than this share of the memory, it is emptied


def time_layer(
    layer: Layer,
    device: str = "cuda",
    dtype: str = "float32",
    *,
    warmup: int = 3,
    repeats: int = 3,
    benchmark: bool = False,
) -> PassTimes:
    """The mean times of a layer that runs alone, measured as in Habitat (section 5.1).

    After a warm-up, CUDA events time several forward passes, then as many backward passes, which
    compute the gradients of the input and of all weights. TF32 is off. The GPU sleeps while the
    host issues the passes; otherwise a small layer's time would be the host's.

    Args:
        device: "cuda", or "cpu" for a trial.
        warmup: the fewest passes to run first, which are not counted. A layer slower than
            `SLOW_S` gets two.
        repeats: how many passes to time. A layer slower than `SLOW_S` gets one.
        benchmark: whether cuDNN may try all its algorithms and take the fastest.

    Returns:
        The times; without times and with the status "oom" or "failed" if the layer cannot run.
    """
    cudnn = torch.backends.cudnn.flags(
        enabled=True, benchmark=benchmark, deterministic=False, allow_tf32=False
    )
    with true_float32(), cudnn:
        for retry in (True, False):
            try:
                return _measured(layer, torch.device(device), dtype, warmup, repeats)
            except torch.OutOfMemoryError:
                pass
            except RuntimeError:
                # This raises if the GPU is broken for good; otherwise all later layers would fail.
                _synchronize(device)
                _release(device, always=True)
                return PassTimes(None, None, LayerStatus.FAILED)
            # Outside of the handler, because its traceback keeps tensors alive. The layer may fit
            # once the allocator has given back cached blocks of other sizes, so try once more.
            _release(device, always=True)
            if not retry:
                break
    return PassTimes(None, None, LayerStatus.OOM)


def gpu_id(device: str = "cuda") -> str:
    """The id of this machine's GPU, as in `wavecast.device`; "cpu" for the CPU."""
    return device_named(torch.cuda.get_device_name()).id if device == "cuda" else device


def gpu_ids() -> list[str]:
    """The ids of all GPUs of this machine."""
    return [device_named(torch.cuda.get_device_name(at)).id for at in range(gpu_count())]


def gpu_count() -> int:
    """How many GPUs this machine has."""
    return int(torch.cuda.device_count())


def software(benchmark: bool = False) -> str:
    """The software versions and settings that affect the times."""
    cuda, cudnn = torch.version.cuda, torch.backends.cudnn.version()
    parts = [f"torch {torch.__version__}", f"CUDA {cuda}", f"cuDNN {cudnn}", "TF32 off"]
    return "; ".join([*parts, *(["cuDNN benchmark"] if benchmark else [])])


@dataclass(frozen=True)
class _Runnable:
    forward: Callable[[], Any]
    leaves: Sequence[Any]
    """The tensors that get gradients."""


def _measured(
    layer: Layer, device: torch.device, dtype: str, warmup: int, repeats: int
) -> PassTimes:
    run = _runnable(layer, {"device": device, "dtype": getattr(torch, dtype)})
    timer = timer_on(device.type)
    first = run.forward()
    gradient = torch.randn_like(first)
    outputs = [first]
    del first

    def forward() -> None:
        outputs.append(run.forward())

    def backward() -> None:
        # The graph is not retained: cuDNN's LSTM would copy its reserved memory for a second run.
        torch.autograd.grad(outputs.pop(), run.leaves, gradient)

    backward()
    _synchronize(device.type)
    began = time.perf_counter()
    forward()
    between = time.perf_counter()
    backward()
    issue_s = between - began, time.perf_counter() - between
    _synchronize(device.type)
    if time.perf_counter() - began > SLOW_S:
        repeats = warmup = 1
    for _ in range(2, warmup, repeats):
        # Keep as many outputs alive as in the timed passes, so that the allocator asks the driver
        # for all memory now and not then.
        for step in (forward, backward):
            for _ in range(repeats):
                step()
    forward_s = timer(forward, repeats, issue_s[0])
    backward_s = timer(backward, repeats, issue_s[1])
    _release(device.type)
    return PassTimes(forward_s, backward_s)


def timer_on(device: str) -> Callable[[Callable[[], Any], int, float], float]:
    """The timer of "cuda" or "cpu".

    It takes a function, how often to run it, and the host's time to issue one run; it returns the
    mean seconds of a run.
    """
    return _cuda_timer if device == "cuda" else _cpu_timer


def _cuda_timer(run: Callable[[], Any], repeats: int, issue_s: float) -> float:
    """The mean seconds of runs that the host issues while the GPU sleeps."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    sleep_s = min(1e-4 + 1.5 * repeats * issue_s, _LONGEST_SLEEP_S)
    torch.cuda._sleep(int(sleep_s * _CYCLES_PER_S))
    begin.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    milliseconds: float = begin.elapsed_time(end)
    return milliseconds * 1e-3 / repeats


def _cpu_timer(run: Callable[[], Any], repeats: int, issue_s: float) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - began) / repeats


def _runnable(layer: Layer, place: dict[str, Any]) -> _Runnable:
    match layer:
        case Bmm():
            left = torch.randn(layer.batch, layer.left, layer.middle, **place)
            right = torch.randn(layer.batch, layer.middle, layer.right, **place)
            left.requires_grad_(), right.requires_grad_()
            return _Runnable(lambda: torch.bmm(left, right), (left, right))
        case Linear():
            module = nn.Linear(layer.in_features, layer.out_features, layer.bias, **place)
            shape: tuple[int, ...] = (layer.batch, layer.in_features)
        case Conv2d():
            module = nn.Conv2d(
                layer.in_channels,
                layer.out_channels,
                layer.kernel,
                layer.stride,
                layer.padding,
                bias=layer.bias,
                **place,
            )
            shape = (layer.batch, layer.in_channels, layer.image, layer.image)
        case Lstm():
            module = nn.LSTM(
                layer.inputs,
                layer.hidden,
                layer.layers,
                bias=layer.bias,
                bidirectional=layer.bidirectional,
                **place,
            )
            shape = (layer.sequence, layer.batch, layer.inputs)
    data = torch.randn(shape, **place).requires_grad_()
    leaves = (data, *module.parameters())
    if isinstance(layer, Lstm):
        return _Runnable(lambda: module(data)[0], leaves)
    return _Runnable(lambda: module(data), leaves)


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _release(device: str, always: bool = False) -> None:
    """Empty the allocator's cache if it is large. Getting memory back takes milliseconds."""
    if device != "cuda":
        return
    whole = torch.cuda.get_device_properties(0).total_memory
    if always or torch.cuda.memory_reserved() > _FULL * whole:
        torch.cuda.empty_cache()
