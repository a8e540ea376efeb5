"""How long a layer takes on the GPU of this machine, forwards and backwards apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from wavecast.frameworks.pytorch.switches import true_float32
from wavecast.hardware.devices import device as device_named
from wavecast.predictors.mlp.layers import Bmm, Conv2d, Layer, LayerStatus, Linear, Lstm, PassTimes

SLOW_S = 0.01
"""Layers that take longer, forwards and backwards, are measured once: they vary little."""

_LONGEST_SLEEP_S = 0.05
_CYCLES_PER_S = 2e9  # of a fast GPU; a slower one sleeps longer, which does no harm
_FULL = 0.6  # of the memory: beyond, what the allocator keeps is given back


def time_layer(
    layer: Layer,
    device: str = "cuda",
    dtype: str = "float32",
    *,
    warmup: int = 3,
    repeats: int = 3,
    benchmark: bool = False,
) -> PassTimes:
    """The mean times of a layer by itself, as Habitat measures them (section 5.1).

    A few runs warm up, then CUDA events stand around some runs forwards and around as many
    backwards, which give the gradients of the input and of all weights. Float32 is float32:
    TF32 is off. The GPU sleeps while the host issues the runs, so that a small layer's time is
    the GPU's and not the host's.

    Args:
        layer: what to measure.
        device: "cuda", or "cpu" to try things out.
        dtype: of weights and inputs.
        warmup: runs that do not count, at least; two for a layer slower than `SLOW_S`.
        repeats: runs that count; one for such a layer.
        benchmark: whether cuDNN may try its algorithms and take the fastest.

    Returns:
        The times, or the status "oom" or "failed" when the layer cannot run here.
    """
    with _true_float32(benchmark):
        for retry in (True, False):
            try:
                return _measured(layer, torch.device(device), dtype, warmup, repeats)
            except torch.OutOfMemoryError:
                pass
            except RuntimeError:
                # A GPU that is broken from here on must not fail one layer after the other.
                _synchronize(device)
                _release(device, always=True)
                return PassTimes(None, None, LayerStatus.FAILED)
            # Outside of the handler, whose traceback holds the tensors; memory in pieces of
            # other sizes may have been all that was in the way.
            _release(device, always=True)
            if not retry:
                break
    return PassTimes(None, None, LayerStatus.OOM)


def gpu_id(device: str = "cuda") -> str:
    """The id of the GPU of this machine, as `wavecast.device` knows it; "cpu" for the CPU."""
    return device_named(torch.cuda.get_device_name()).id if device == "cuda" else device


def software(benchmark: bool = False) -> str:
    """Versions and settings that times depend on."""
    cuda, cudnn = torch.version.cuda, torch.backends.cudnn.version()
    parts = [f"torch {torch.__version__}", f"CUDA {cuda}", f"cuDNN {cudnn}", "TF32 off"]
    return "; ".join([*parts, *(["cuDNN benchmark"] if benchmark else [])])


@dataclass(frozen=True)
class _Runnable:
    forward: Callable[[], Any]
    leaves: Sequence[Any]
    """What gets gradients."""


def _measured(
    layer: Layer, device: torch.device, dtype: str, warmup: int, repeats: int
) -> PassTimes:
    run = _runnable(layer, {"device": device, "dtype": getattr(torch, dtype)})
    timer = _cuda_timer if device.type == "cuda" else _cpu_timer
    first = run.forward()
    gradient = torch.randn_like(first)
    outputs = [first]
    del first

    def forward() -> None:
        outputs.append(run.forward())

    def backward() -> None:
        # No graph is kept: cuDNN's LSTM would copy its reserve to be run again.
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
        # With as many outputs alive as later: the allocator must not ask for memory then.
        for step in (forward, backward):
            for _ in range(repeats):
                step()
    forward_s = timer(forward, repeats, issue_s[0])
    backward_s = timer(backward, repeats, issue_s[1])
    _release(device.type)
    return PassTimes(forward_s, backward_s)


def _cuda_timer(run: Callable[[], Any], repeats: int, issue_s: float) -> float:
    """Mean seconds of runs that the host has issued before the GPU begins them."""
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
            made = nn.Linear(layer.in_features, layer.out_features, layer.bias, **place)
            shape: tuple[int, ...] = (layer.batch, layer.in_features)
        case Conv2d():
            made = nn.Conv2d(
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
            made = nn.LSTM(
                layer.inputs,
                layer.hidden,
                layer.layers,
                bias=layer.bias,
                bidirectional=layer.bidirectional,
                **place,
            )
            shape = (layer.sequence, layer.batch, layer.inputs)
    data = torch.randn(shape, **place).requires_grad_()
    leaves = (data, *made.parameters())
    if isinstance(layer, Lstm):
        return _Runnable(lambda: made(data)[0], leaves)
    return _Runnable(lambda: made(data), leaves)


@contextmanager
def _true_float32(benchmark: bool) -> Iterator[None]:
    """No TF32, neither in matrix products (the default) nor in cuDNN (not the default)."""
    cudnn = torch.backends.cudnn.flags(
        enabled=True, benchmark=benchmark, deterministic=False, allow_tf32=False
    )
    with true_float32(), cudnn:
        yield


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _release(device: str, always: bool = False) -> None:
    """Give back what the allocator keeps: rarely, since to get it again takes milliseconds."""
    if device != "cuda":
        return
    whole = torch.cuda.get_device_properties(0).total_memory
    if always or torch.cuda.memory_reserved() > _FULL * whole:
        torch.cuda.empty_cache()
