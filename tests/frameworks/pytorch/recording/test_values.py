"""The values of traced steps, eager and compiled: what calls read was written, or was there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import wavecast
from wavecast.traces.recomputed import recomputed
from wavecast.traces.step import Phase, Role, Trace


class Block(nn.Module):
    """A norm, two layers and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.wide = nn.Linear(64, 256)
        self.narrow = nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.narrow(torch.relu(self.wide(self.norm(x))))
        return x + hidden


class Net(nn.Module):
    """Two blocks, of which the first may be computed again in the backward pass."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> Any:
        for block in self.blocks:
            if self.checkpointed:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return x.mean()


def maker(autocast: bool = False, **options: bool) -> Callable[[], Callable[[], None]]:
    def make_step() -> Callable[[], None]:
        model = Net(**options).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        inputs = torch.randn(32, 64, device="cuda")

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                loss = model(inputs)
            loss.backward()
            optimizer.step()

        return step

    return make_step


STEPS: dict[str, Callable[[], Trace]] = {
    "eager": lambda: wavecast.trace(maker()),
    "autocast": lambda: wavecast.trace(maker(autocast=True)),
    "checkpointed": lambda: wavecast.trace(maker(checkpointed=True)),
    "compiled": lambda: wavecast.trace(maker(), compiled=True),
}


@pytest.fixture(scope="module", params=STEPS)
def trace(request: pytest.FixtureRequest) -> Trace:
    return STEPS[request.param]()


def test_every_tensor_of_every_call_is_a_value(trace: Trace) -> None:
    for call in trace:
        assert [trace.values[value].spec for value in call.reads] == [*call.op.inputs]
        assert [trace.values[value].spec for value in call.writes] == [*call.op.outputs]
    used = [value for call in trace for value in (*call.reads, *call.writes)]
    assert list(dict.fromkeys(used)) == list(range(len(trace.values)))


def test_what_is_read_was_written_or_existed_before_the_step(trace: Trace) -> None:
    written: set[int | None] = set()
    for call in trace:
        for value in call.reads:
            place = trace.values[value].allocation
            if place is not None and trace.allocations[place].born is not None:
                assert place in written, (call.op.name, trace.values[value])
        written |= {trace.values[value].allocation for value in call.writes}


def test_parameters_and_gradients_have_names(trace: Trace) -> None:
    names = {f"Net.{name}" for name, _ in Net().named_parameters()}
    assert {value.parameter for value in trace.values if value.parameter} == names
    gradients = [value for value in trace.values if value.gradient_of]
    assert {value.gradient_of for value in gradients} == names
    for value in trace.values:
        if value.allocation is None:
            continue
        role = trace.allocations[value.allocation].role
        assert not value.gradient_of or role is Role.GRADIENT
        assert not value.parameter or role in (Role.PARAMETER, Role.OPTIMIZER_STATE)


def test_a_view_is_in_the_memory_of_its_base(trace: Trace) -> None:
    views = [value for value in trace.values if value.view_of is not None]
    assert views
    for view in views:
        assert view.allocation == trace.values[view.view_of or 0].allocation


def test_values_survive_a_file(trace: Trace, tmp_path: Any) -> None:
    trace.save(tmp_path / "step.json.gz")
    assert wavecast.load_trace(tmp_path / "step.json.gz") == trace


def test_recomputed_calls_read_no_gradients() -> None:
    trace = STEPS["checkpointed"]()
    again = recomputed(trace.calls)
    modules = {trace.calls[position].module for position in again}
    # Recomputation ends with the last tensor that is needed, so the last layer does not run again.
    assert {f"Net.blocks.{n}.{name}" for n in "01" for name in ("norm", "wide")} <= modules
    gradients = {n for n, value in enumerate(trace.values) if value.gradient_of}
    for position in again:
        assert trace.calls[position].phase is Phase.BACKWARD
        assert gradients.isdisjoint(trace.calls[position].reads)
    assert not recomputed(STEPS["eager"]().calls)
