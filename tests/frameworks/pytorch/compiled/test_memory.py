"""The memory of compiled steps: what their kernels and library calls allocate, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import nn

import wavecast
from wavecast.frameworks.pytorch.compiled.tracing import capture
from wavecast.traces.step import Allocation, Phase, Role, Trace

ROWS, WIDTH = 64, 256
NARROW, WIDE = 4 * ROWS * WIDTH, 16 * ROWS * WIDTH


def stepped(make: Callable[[], nn.Module], shape: tuple[int, ...], **options: Any) -> Trace:
    """The trace of a training step of a compiled module."""

    def make_step() -> Callable[[], None]:
        with torch.device("cuda"):
            model, x = make(), torch.randn(shape)
        model.compile(**options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return capture(make_step)


def allocated(trace: Trace, name: str, phase: Phase = Phase.FORWARD) -> list[int]:
    """The bytes that the calls of an op allocate, largest first."""
    calls = {i for i, c in enumerate(trace) if c.op.base == name and c.phase is phase}
    return sorted((a.nbytes for a in trace.allocations if a.born in calls), reverse=True)


def saved(trace: Trace) -> list[Allocation]:
    """What the forward pass leaves to the backward pass."""
    first = next(i for i, call in enumerate(trace) if call.phase is Phase.BACKWARD)
    return [
        a
        for a in trace.allocations
        if a.born is not None and a.born < first and a.freed is not None and a.freed > first + 1
    ]


class Perceptron(nn.Module):
    """Two products with a GELU and dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.second(functional.dropout(functional.gelu(self.first(x)), 0.1))


class Attention(nn.Module):
    """Attention whose queries, keys and values are one product."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        q, k, v = (
            part.view(2, -1, 4, WIDTH // 4).transpose(1, 2) for part in self.project(x).chunk(3, -1)
        )
        attended = functional.scaled_dot_product_attention(q, k, v)
        return self.out(attended.transpose(1, 2).reshape(ROWS, WIDTH))


class Joined(nn.Module):
    """Two products whose results are concatenated and multiplied again."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        pair = functional.gelu(self.left(x)), functional.gelu(self.right(x))
        return self.out(torch.cat(pair, -1))


class Convolutions(nn.Module):
    """Two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 32, 3), nn.Conv2d(32, 32, 3)

    def forward(self, x: Any) -> Any:
        return self.second(functional.relu(self.first(x)))


class Chain(nn.Module):
    """Elementwise functions one after the other, each of which eager code saves something for."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x).sin().cos().exp().tanh())


def test_compiled_code_saves_less_for_the_backward_pass() -> None:
    """The input of the chain, which is computed again, and its end, which a product needs."""
    assert [a.nbytes for a in saved(stepped(Chain, (ROWS, WIDTH)))].count(NARROW) == 2


def test_what_a_kernel_writes_over_its_own_values_has_memory() -> None:
    trace = stepped(Perceptron, (ROWS, WIDTH))
    masks = WIDE // 4
    assert allocated(trace, "inductor.pointwise")[:2] == [WIDE, masks]
    assert sorted(a.nbytes for a in saved(trace))[-3:] == [masks, WIDE, WIDE]


def test_a_kernel_takes_over_memory_that_nothing_needs_any_more() -> None:
    """The gradient of the GELU is written over the gradient that came to it."""
    trace = stepped(Perceptron, (ROWS, WIDTH))
    backward = [*allocated(trace, "inductor.pointwise", Phase.BACKWARD)]
    backward += allocated(trace, "inductor.persistent_reduction", Phase.BACKWARD)
    assert WIDE not in backward
    assert WIDE in allocated(trace, "aten.mm", Phase.BACKWARD)


def test_all_results_of_one_library_call_have_memory() -> None:
    trace = stepped(Attention, (ROWS, WIDTH))
    attention = next(c.op for c in trace if "dot_product" in c.op.name)
    assert allocated(trace, attention.base)[0] == NARROW
    backward = next(c.op for c in trace if "dot_product" in c.op.name and "backward" in c.op.name)
    assert allocated(trace, backward.base, Phase.BACKWARD)[:3] == [NARROW] * 3


def test_gradients_of_a_convolution_have_memory() -> None:
    trace = stepped(Convolutions, (4, 8, 16, 16))
    name = "aten.convolution_backward"
    assert allocated(trace, name, Phase.BACKWARD)[0] == 4 * 4 * 32 * 14 * 14
    kept = [a for a in trace.allocations if a.role is Role.GRADIENT]
    assert {a.nbytes for a in kept} >= {4 * 32 * 32 * 9, 4 * 32 * 8 * 9}


def test_the_parts_of_a_concatenation_share_its_memory() -> None:
    trace = stepped(Joined, (ROWS, WIDTH))
    assert [a.nbytes for a in saved(trace)].count(2 * NARROW) == 1
    assert allocated(trace, "inductor.pointwise").count(NARROW) == 0


def test_the_state_of_a_compiled_optimizer_is_counted() -> None:
    def make_step() -> Callable[[], None]:
        with torch.device("cuda"):
            model, x = Perceptron(), torch.randn(ROWS, WIDTH)
        optimizer = torch.optim.AdamW(model.parameters())
        update = torch.compile(optimizer.step)

        def step() -> None:
            model(x).sum().backward()
            update()
            optimizer.zero_grad()

        return step

    held = wavecast.memory(capture(make_step), "h200-sxm").by_kind
    assert held["optimizer state"] == pytest.approx(2 * (held["weights"] or 0), rel=0.01)
