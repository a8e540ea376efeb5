"""Small pieces of compiled code that each show one cost of the host.

Their tensors are tiny, so that the GPU always waits for the host. Pieces of one kind differ in one
number, which tells the cost of one more kernel, call, input or weight from the fixed cost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

SIDE = 64
HALF = torch.bfloat16

Run = Callable[[], Any]
Make = Callable[[bool, str], Run]
"""Makes the code: compiled or eager, on a device."""


def _called(function: Callable[..., Any], arguments: list[Any], *, compiled: bool) -> Run:
    run = torch.compile(function, dynamic=False) if compiled else function

    def call() -> Any:
        with torch.no_grad():
            return run(*arguments)

    return call


def kernels(count: int, compiled: bool, device: str) -> Run:
    """Kernels that cannot be fused: each divides by sums along the other dimension."""
    x = torch.rand(SIDE, SIDE, device=device)

    def function(x: Any) -> Any:
        for index in range(count):
            x = x / x.sum(index % 2, keepdim=True)
        return x

    return _called(function, [x], compiled=compiled)


def wide_kernels(count: int, inputs: int, compiled: bool, device: str) -> Run:
    """The same, but each also adds several tensors."""
    x = torch.rand(SIDE, SIDE, device=device)
    others = [torch.rand(SIDE, SIDE, device=device) for _ in range(inputs)]

    def function(x: Any, *others: Any) -> Any:
        for index in range(count):
            for other in others:
                x = x + other
            x = x / x.sum(index % 2, keepdim=True)
        return x

    return _called(function, [x, *others], compiled=compiled)


def products(count: int, compiled: bool, device: str) -> Run:
    """Products of matrices."""
    x = torch.rand(SIDE, SIDE, device=device)

    def function(x: Any) -> Any:
        y = x
        for _ in range(count):
            y = torch.mm(y, x)
        return y

    return _called(function, [x], compiled=compiled)


def biased(count: int, compiled: bool, device: str) -> Run:
    """Products with a bias."""
    x = torch.rand(SIDE, SIDE, device=device)

    def function(x: Any, bias: Any) -> Any:
        y = x
        for _ in range(count):
            y = torch.addmm(bias, y, x)
        return y

    return _called(function, [x, torch.rand(SIDE, device=device)], compiled=compiled)


def batched(count: int, compiled: bool, device: str) -> Run:
    """Products of batches of matrices."""
    x = torch.rand(4, SIDE, SIDE, device=device)

    def function(x: Any) -> Any:
        y = x
        for _ in range(count):
            y = torch.bmm(y, x)
        return y

    return _called(function, [x], compiled=compiled)


def convolutions(count: int, compiled: bool, device: str) -> Run:
    """Convolutions without a bias."""
    x = torch.rand(2, 16, 16, 16, device=device)
    weight = torch.rand(16, 16, 3, 3, device=device)

    def function(x: Any, weight: Any) -> Any:
        for _ in range(count):
            x = F.conv2d(x, weight, padding=1)
        return x

    return _called(function, [x, weight], compiled=compiled)


def attention(count: int, compiled: bool, device: str) -> Run:
    """Attention by a library."""
    x = torch.rand(2, 4, SIDE, SIDE, device=device, dtype=HALF)

    def function(x: Any) -> Any:
        y = x
        for _ in range(count):
            y = F.scaled_dot_product_attention(y, x, x)
        return y

    return _called(function, [x], compiled=compiled)


class Cosines(nn.Module):
    """Adds up cosines of many small weights: few kernels for so many weights."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.rand(SIDE)) for _ in range(count)])

    def forward(self, x: Any) -> Any:
        for weight in self.weights:
            x = x + weight.cos()
        return x.sum()


def trained(count: int, compiled: bool, device: str) -> Run:
    """Forward and backward pass of many small weights, whose gradients are cleared before."""
    with torch.device(device):
        model = Cosines(count)
        x = torch.rand(SIDE)
    if compiled:
        model.compile()
    weights = list(model.parameters())

    def step() -> None:
        for weight in weights:
            weight.grad = None
        model(x).backward()

    return step


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "adamw": torch.optim.AdamW,
    "fused": partial(torch.optim.AdamW, fused=True),
    "momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
}


def optimized(name: str, count: int, compiled: bool, device: str) -> Run:
    """The step of an optimizer of many small weights; "clip" for the clipping of gradients."""
    weights = [nn.Parameter(torch.rand(SIDE, device=device)) for _ in range(count)]
    for weight in weights:
        weight.grad = torch.rand(SIDE, device=device)
    if name == "clip":
        return lambda: nn.utils.clip_grad_norm_(weights, 1.0)
    optimizer = OPTIMIZERS[name](weights)
    run: Run = torch.compile(optimizer.step) if compiled else optimizer.step
    return run


PARTS: dict[str, Make] = {
    **{f"kernels-{n}": partial(kernels, n) for n in (1, 8, 40)},
    **{f"wide-kernels-{n}": partial(wide_kernels, n, 12) for n in (8, 40)},
    **{f"products-{n}": partial(products, n) for n in (8, 40)},
    **{f"biased-{n}": partial(biased, n) for n in (8, 40)},
    **{f"batched-{n}": partial(batched, n) for n in (8, 40)},
    **{f"convolutions-{n}": partial(convolutions, n) for n in (8, 40)},
    **{f"attention-{n}": partial(attention, n) for n in (4, 20)},
    **{f"trained-{n}": partial(trained, n) for n in (8, 64, 256)},
    **{f"adamw-{n}": partial(optimized, "adamw", n) for n in (8, 64)},
    "momentum-64": partial(optimized, "momentum", 64),
}
"""Pieces that are run both compiled and eager."""

LISTS: dict[str, Make] = {
    f"{name}-{n}": partial(optimized, name, n)
    for name in ("adamw", "fused", "momentum", "clip")
    for n in (8, 64, 256)
}
"""Pieces that are run only eager."""
