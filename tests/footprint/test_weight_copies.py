"""Half-precision copies of weights are a kind of their own, and do not grow with the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import made
import pytest
import torch
from torch import nn

import wavecast
from wavecast.footprint.memory import (
    KindFinder,
    peak_by_tbd_kind,
    peak_bytes,
    weight_copy_calls,
)
from wavecast.traces.editing import without_values
from wavecast.traces.step import Allocation, Op, Role, Trace

WIDTH = 32


class Square(nn.Module):
    """A linear layer whose input, with a batch of 32, has the shape of its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)  # in float32 under autocast, so that its result is cast
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.second(self.norm(self.first(x)))


class Recurrent(nn.Module):
    """An LSTM, whose weights cuDNN wants in one flat copy."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.layers(x.unsqueeze(0))[0]


class Tied(nn.Module):
    """Embeddings that are the last layer, too; their gradient is a sum of two."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, WIDTH)
        self.last = nn.Linear(WIDTH, 50, bias=False)
        self.last.weight = self.words.weight

    def forward(self, x: Any) -> Any:
        return self.last(self.words(x[:, 0].abs().long()))


def traced(model: type[nn.Module], batch: int, dtype: torch.dtype | None = torch.bfloat16) -> Trace:
    def make_step() -> Callable[[], None]:
        net = model().cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.randn(batch, WIDTH, device="cuda")

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
                loss = net(x).float().square().mean()
            loss.backward()
            optimizer.step()

        return step

    return wavecast.trace(make_step)


def without_role(trace: Trace) -> Trace:
    """The trace as it was recorded before copies had a role."""
    return replace(
        without_values(trace),
        allocations=tuple(
            replace(a, role=Role.INTERMEDIATE) if a.role is Role.WEIGHT_COPY else a
            for a in trace.allocations
        ),
    )


def copied_bytes(trace: Trace) -> int:
    finder = KindFinder(trace)
    return sum(a.nbytes for a in trace.allocations if finder.of(a) == "weight copies")


SIZES = {
    Square: 2 * (2 * (WIDTH * WIDTH + WIDTH)),
    Recurrent: 2 * (8 * WIDTH * WIDTH + 8 * WIDTH),
    Tied: 2 * 50 * WIDTH,
}
every_model = pytest.mark.parametrize("model", SIZES, ids=lambda model: model.__name__)


@every_model
def test_without_autocast_there_are_no_copies(model: type[nn.Module]) -> None:
    trace = traced(model, 4, dtype=None)
    assert copied_bytes(trace) == 0
    assert wavecast.memory(trace).by_kind["weight copies"] == 0


@every_model
def test_copies_are_dynamic_and_feature_maps_are_in_proportion_to_the_batch(
    model: type[nn.Module],
) -> None:
    small, large = (traced(model, batch) for batch in (64, 256))
    per_sample = [
        (peak_by_tbd_kind(trace)["feature maps"] or 0) / batch
        for trace, batch in ((small, 64), (large, 256))
    ]
    assert per_sample[0] == pytest.approx(per_sample[1], rel=0.02)
    [weights] = {peak_by_tbd_kind(trace)["weights"] for trace in (small, large)}
    assert weights is not None
    assert (peak_by_tbd_kind(small)["dynamic"] or 0) > 0.4 * weights


@every_model
def test_copies_are_found_in_traces_that_were_recorded_without_their_role(
    model: type[nn.Module],
) -> None:
    trace = traced(model, 64)
    assert copied_bytes(without_role(trace)) == SIZES[model]
    assert peak_by_tbd_kind(without_role(trace)) == peak_by_tbd_kind(trace)


def test_an_input_as_large_as_the_weight_is_no_copy_of_it() -> None:
    """Where the recorder sees what is cast, shapes and sizes do not matter."""
    trace = traced(Square, WIDTH)
    feature_maps = peak_by_tbd_kind(trace)["feature maps"] or 0
    others = peak_by_tbd_kind(traced(Square, 2 * WIDTH))["feature maps"] or 0
    assert feature_maps == pytest.approx(others / 2, rel=0.01)


def test_the_kind_of_copies_changes_no_total(tmp_path: Path) -> None:
    trace = traced(Square, 16)
    assert peak_bytes(without_role(trace).allocations) == peak_bytes(trace.allocations)
    for gpu in (None, "l4"):
        new, old = (wavecast.memory(t, gpu) for t in (trace, without_role(trace)))
        assert (new.peak_bytes, new.reserved_bytes) == (old.peak_bytes, old.reserved_bytes)
    trace.save(tmp_path / "step.json.gz")
    assert wavecast.load_trace(tmp_path / "step.json.gz") == trace


def test_a_lookup_without_its_table_is_no_error() -> None:
    """Such a trace loads: nobody else looks at an op's tensors before."""
    step = made.trace(made.call(Op("aten.embedding", (), (made.tensor(4),))))
    memory = (Allocation(64, None, None, Role.PARAMETER),)
    assert weight_copy_calls(replace(step, allocations=memory)) == frozenset()
