"""Phases, module paths and memory of a step, compared with numbers worked out by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from networks import Step, calls_of, minimize, mlp, training
from torch import nn
from torch.utils.checkpoint import checkpoint

from wavecast.frameworks.pytorch.capture import capture
from wavecast.traces.step import Allocation, Phase, Role, Trace


def test_each_op_is_in_the_phase_it_runs_in() -> None:
    trace = capture(training(mlp))
    order = [call.phase for call in trace]
    assert order == sorted(order, key=[Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER].index)
    assert Counter(order).keys() == {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}


def test_a_closure_of_an_optimizer_is_a_forward_and_a_backward_pass() -> None:
    def make_step() -> Step:
        model = nn.Linear(8, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = (model(torch.ones(2, 8, device="cuda")) - 1).square().mean()
            loss.backward()
            return loss

        return lambda: optimizer.step(closure)

    trace = capture(make_step)
    (mean,) = calls_of(trace, "aten.mean")
    assert mean.phase is Phase.FORWARD
    gradients = [a for a in trace.allocations if a.role is Role.GRADIENT and a.born is not None]
    assert {a.nbytes for a in gradients} == {4 * 8 * 4, 4 * 4}


def test_forward_and_backward_ops_carry_the_module_they_belong_to() -> None:
    trace = capture(training(mlp))
    placed = [(c.phase, c.module) for c in trace if c.op.base in ("aten.addmm", "aten.mm")]
    assert placed == [
        (Phase.FORWARD, "Sequential.0"),
        (Phase.FORWARD, "Sequential.2"),
        (Phase.BACKWARD, "Sequential.2"),
        (Phase.BACKWARD, "Sequential.2"),
        (Phase.BACKWARD, "Sequential.0"),
    ]
    (relu,) = calls_of(trace, "aten.threshold_backward")
    assert relu.module == "Sequential.1"


def test_nested_and_repeated_modules_have_their_paths() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(8, 8)
            self.blocks = nn.ModuleList(mlp() for _ in range(2))

        def forward(self, x: Any) -> Any:
            return sum(block(self.stem(x)) for block in self.blocks)

    trace = capture(training(Net))
    linears = [c.module for c in calls_of(trace, "aten.addmm")]
    assert linears == [
        "Net.stem",
        "Net.blocks.0.0",
        "Net.blocks.0.2",
        "Net.stem",
        "Net.blocks.1.0",
        "Net.blocks.1.2",
    ]


def test_a_module_that_raises_and_is_caught_does_not_shift_the_paths() -> None:
    class Picky(nn.Module):
        def forward(self, x: Any) -> Any:
            raise ValueError

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.picky, self.last = Picky(), nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            try:
                x = self.picky(x)
            except ValueError:
                x = x + 1
            return self.last(x)

    trace = capture(training(Net))
    assert calls_of(trace, "aten.add")[0].module == "Net"
    assert calls_of(trace, "aten.addmm")[0].module == "Net.last"


def _linear_step(set_to_none: bool = True) -> Any:
    """Linear 256 -> 128 without bias on a batch of 64, Adam."""

    def make_step() -> Step:
        model = nn.Linear(256, 128, bias=False).cuda()
        x = torch.randn(64, 256, device="cuda")
        optimizer = torch.optim.Adam(model.parameters())

        def step() -> None:
            optimizer.zero_grad(set_to_none)
            model(x).pow(2).sum().backward()
            optimizer.step()

        return step

    return make_step


def _of(trace: Trace, role: Role) -> list[Allocation]:
    return [a for a in trace.allocations if a.role is role]


WEIGHT = 256 * 128 * 4


def test_parameters_states_and_inputs_are_there_before_and_after_the_step() -> None:
    trace = capture(_linear_step())
    assert _of(trace, Role.PARAMETER) == [Allocation(WEIGHT, None, None, Role.PARAMETER, "Linear")]
    assert (
        _of(trace, Role.OPTIMIZER_STATE)
        == [Allocation(WEIGHT, None, None, Role.OPTIMIZER_STATE, "Linear")] * 2
    )
    assert _of(trace, Role.INPUT) == [Allocation(64 * 256 * 4, None, None, Role.INPUT)]


def test_gradients_set_to_none_are_freed_and_made_again() -> None:
    trace = capture(_linear_step())
    old, new = _of(trace, Role.GRADIENT)
    assert (old.nbytes, old.born) == (WEIGHT, None)
    assert old.freed == 0
    assert (new.nbytes, new.freed) == (WEIGHT, None)
    assert new.born is not None
    assert trace.calls[new.born].op.base == "aten.mm"


def test_gradients_set_to_zero_stay() -> None:
    trace = capture(_linear_step(set_to_none=False))
    assert _of(trace, Role.GRADIENT) == [Allocation(WEIGHT, None, None, Role.GRADIENT, "Linear")]


def test_activations_are_freed_in_the_backward_pass() -> None:
    trace = capture(_linear_step())
    output = 64 * 128 * 4
    outputs = [a for a in _of(trace, Role.INTERMEDIATE) if a.nbytes == output]
    assert outputs
    activation = outputs[0]
    assert activation.born is not None
    assert activation.freed is not None
    assert trace.calls[activation.born].op.base == "aten.mm"
    assert trace.calls[activation.freed - 1].phase is Phase.BACKWARD
    assert all(a.freed is not None for a in _of(trace, Role.INTERMEDIATE))


def test_the_first_step_creates_the_optimizer_state() -> None:
    trace = capture(_linear_step(), warm_up=0)
    states = _of(trace, Role.OPTIMIZER_STATE)
    assert [a.nbytes for a in states] == [WEIGHT] * 2
    assert all(a.born is not None for a in states)


def test_buffers_are_buffers() -> None:
    def make_step() -> Step:
        model, x = nn.BatchNorm2d(64).cuda(), torch.randn(2, 64, 4, 4, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return minimize(lambda: model(x).sum(), optimizer)

    sizes = [a.nbytes for a in _of(capture(make_step), Role.BUFFER)]
    assert sizes == [256, 256, 8]  # mean, variance, batches seen


def test_views_share_the_memory_of_their_base() -> None:
    def make_step() -> Step:
        x = torch.randn(64, 64, device="cuda")
        return lambda: (x + 1).view(-1)[:10].add_(1)

    allocations = [a for a in capture(make_step).allocations if a.born is not None]
    assert [a.nbytes for a in allocations] == [64 * 64 * 4]


def test_progress_counts_the_ops() -> None:
    seen: list[int] = []
    trace = capture(training(mlp), progress=seen.append)
    assert seen == list(range(1, seen[-1] + 1))
    assert seen[-1] >= len(trace)


def test_samples_and_unit_are_kept() -> None:
    trace = capture(training(mlp), samples=4, unit="tokens")
    assert (trace.samples, trace.unit) == (4, "tokens")
    assert trace.framework.startswith("torch 2.")


def made_by_sums(run: Callable[[Any], Any]) -> int:
    """How many sums of gradients in a backward pass get new memory."""

    def make_step() -> Step:
        weight = torch.ones(64, 64, device="cuda", requires_grad=True)
        return lambda: run(weight * 2).sum().backward()

    trace = capture(make_step)
    sums = [
        position
        for position, call in enumerate(trace)
        if call.op.base == "aten.add" and call.phase is Phase.BACKWARD
    ]
    assert sums
    return sum(each.born in sums for each in trace.allocations)


def test_autograd_adds_gradients_up_in_place() -> None:
    assert made_by_sums(lambda x: x.sin() + x.cos() + x.tanh()) == 0


def test_gradients_that_something_else_holds_are_not_written_to() -> None:
    held: list[Any] = []
    assert made_by_sums(lambda x: x.cos() + _kept(x, held).sin()) == 1


class _Keeping(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Any, held: list[Any]) -> Any:
        ctx.held = held
        return source.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        ctx.held.append(gradient)
        return gradient, None


def _kept(source: Any, held: list[Any]) -> Any:
    return _Keeping.apply(source, held)


def test_sums_of_python_code_in_a_backward_pass_make_memory() -> None:
    def run(x: Any) -> Any:
        return checkpoint(lambda y: (y.sin() + y.cos()).tanh(), x, use_reentrant=False)

    assert made_by_sums(run) >= 1
