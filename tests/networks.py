"""Small networks and training steps for the tests of tracing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from wavecast.frameworks.pytorch.capture import capture
from wavecast.traces.step import Call, Phase, Trace

Step = Callable[[], Any]


def mlp() -> Any:
    """A network of three layers."""
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def minimize(loss: Step, optimizer: Any) -> Step:
    """The usual training step of a model."""

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def training(
    make_model: Callable[[], Any],
    shape: tuple[int, ...] = (4, 8),
    make_optimizer: Callable[[Any], Any] = lambda p: torch.optim.SGD(p, lr=0.1),
    dtype: Any = None,
) -> Callable[[], Step]:
    """A `make_step` that trains a model on random input, under autocast if a dtype is given."""

    def make_step() -> Step:
        model = make_model().cuda()
        x = torch.randn(shape, device="cuda")

        def loss() -> Any:
            with torch.autocast("cuda", dtype, enabled=dtype is not None):
                out = model(x)
                out = out[0] if isinstance(out, tuple) else out
            return out.float().sum()

        return minimize(loss, make_optimizer(model.parameters()))

    return make_step


def stepping(
    run: Callable[[Any, Any, Any], Any],
    make_model: Callable[[], Any] = mlp,
    make_optimizer: Callable[[Any], Any] = lambda p: torch.optim.SGD(p, lr=0.1),
) -> Callable[[], Step]:
    """A `make_step` whose step calls a function of a model, its optimizer and a batch."""

    def make_step() -> Step:
        model = make_model().cuda()
        optimizer = make_optimizer(model.parameters())
        x = torch.randn(4, 8, device="cuda")
        return lambda: run(model, optimizer, x)

    return make_step


def on_gpu(run: Callable[[Any], Any], *shape: int) -> Callable[[], Step]:
    """A `make_step` whose step calls a function of a tensor on the GPU."""

    def make_step() -> Step:
        x = torch.randn(shape or (4, 8), device="cuda")
        return lambda: run(x)

    return make_step


def forward(run: Callable[..., Any], *shapes: tuple[int, ...], **options: Any) -> Trace:
    """The trace of a function of tensors that need gradients, with its backward pass."""

    def make_step() -> Step:
        tensors = [torch.randn(s, device="cuda", requires_grad=True) for s in shapes]

        def step() -> None:
            out = run(*tensors)
            if isinstance(out, torch.Tensor) and out.requires_grad:
                out.float().sum().backward()

        return step

    return capture(make_step, **options)


def names(trace: Trace, phase: Phase | None = None) -> Counter[str]:
    """How often each op is called, in one phase or in all."""
    return Counter(call.op.base for call in trace if phase is None or call.phase is phase)


def calls_of(trace: Trace, base: str) -> list[Call]:
    """The calls of one op."""
    return [call for call in trace if call.op.base == base]
