"""The memory of recurrent layers, compared with the allocations of a run on an H200.

The sizes are those of an LSTM of three layers, 1024 wide, over 128 tokens and a batch of 64, as
`torch.cuda.memory` recorded them (torch 2.11, cuDNN 9.19).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from wavecast import device
from wavecast.footprint.replay import Allocator, MemoryBlock, replay
from wavecast.footprint.workspaces import with_workspaces
from wavecast.traces.step import Role, Trace

torch = pytest.importorskip("torch")
nn = torch.nn

from wavecast.frameworks.pytorch.capture.tracing import capture  # noqa: E402

H200 = device("h200-sxm")
STATE, SEQUENCE = 786432, 33554432
MATRIX, BIAS, WEIGHTS = 16777216, 16384, 100761600
SPACE, RESERVE = 368575232, 572522752
NOISE = 6488064


def traced(build: Callable[[], Any], width: int = 8, batch: int = 3, steps: int = 5) -> Trace:
    def make_step() -> Callable[[], None]:
        layer = build().cuda()
        source = torch.randn(steps, batch, width, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            layer(source)[0].square().mean().backward()
            optimizer.step()

        return step

    return with_workspaces(capture(make_step), H200)


def language() -> Trace:
    return traced(lambda: nn.LSTM(1024, 1024, 3, dropout=0.2), 1024, 64, 128)


def taken_by(trace: Trace, name: str) -> list[int]:
    """The sizes of the workspaces and results of a call, in order."""
    (position,) = (i for i, call in enumerate(trace) if call.op.base == name)
    return [
        allocation.nbytes
        for allocation in trace.allocations
        if allocation.born == position and allocation.nbytes
    ]


def weights_of(trace: Trace) -> list[int]:
    return [
        allocation.nbytes for allocation in trace.allocations if allocation.role is Role.PARAMETER
    ]


def gradients_of(trace: Trace) -> list[int]:
    return [
        allocation.nbytes
        for allocation in trace.allocations
        if allocation.role is Role.GRADIENT and allocation.born is not None
    ]


def test_forward_takes_its_workspace_before_what_it_keeps() -> None:
    assert taken_by(language(), "aten._cudnn_rnn") == [SEQUENCE, STATE, STATE, SPACE, RESERVE]


def test_backward_takes_it_twice_and_makes_all_gradients_of_weights_as_one() -> None:
    trace = language()
    assert taken_by(trace, "aten._cudnn_rnn_backward") == [
        *(STATE, STATE),  # zeros for gradients of states that were not used
        *(SEQUENCE, STATE, STATE),
        *(SPACE, WEIGHTS, SPACE),
    ]
    assert gradients_of(trace) == [WEIGHTS]
    spaces = [allocation for allocation in trace.allocations if allocation.nbytes == SPACE]
    assert [allocation.freed == allocation.born for allocation in spaces] == [False, True, False]


def test_weights_are_made_one_by_one_then_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, int]] = []
    allocate, release = Allocator.allocate, Allocator.release
    sizes: dict[int, int] = {}

    def noted_allocate(self: Allocator, nbytes: int) -> MemoryBlock | None:
        block = allocate(self, nbytes)
        sizes[id(block)] = nbytes
        events.append(("alloc", nbytes))
        return block

    def noted_release(self: Allocator, block: MemoryBlock | None) -> None:
        events.append(("free", sizes.get(id(block), 0)))
        release(self, block)

    monkeypatch.setattr(Allocator, "allocate", noted_allocate)
    monkeypatch.setattr(Allocator, "release", noted_release)
    replay(language())
    single = [MATRIX, MATRIX, BIAS, BIAS] * 3
    joined = [("alloc", WEIGHTS), *(("free", nbytes) for nbytes in single)]
    assert events[:25] == [*(("alloc", nbytes) for nbytes in single), *joined]
    assert events.count(("alloc", NOISE)) == 1  # made by the first step, and kept
    assert ("free", NOISE) not in events


def test_random_numbers_are_kept_for_dropout_only() -> None:
    kept = [
        allocation.nbytes
        for allocation in language().allocations
        if allocation.role is Role.WORKSPACE
    ]
    assert kept.count(NOISE) == 1
    trace = traced(lambda: nn.LSTM(8, 16, 2))
    assert NOISE not in [allocation.nbytes for allocation in trace.allocations]


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}])
def test_every_cell_has_its_weights_and_their_gradients_in_one_piece(
    cell: Any, options: dict[str, Any]
) -> None:
    numbers = sum(p.numel() for p in cell(8, 16, **options).parameters())
    trace = traced(lambda: cell(8, 16, **options))
    assert weights_of(trace) == gradients_of(trace) == [4 * numbers]


@pytest.mark.parametrize("options", [{}, {"proj_size": 4}])
def test_without_biases_there_is_room_for_them_and_gradients_are_copies(
    options: dict[str, Any],
) -> None:
    single = [4 * p.numel() for p in nn.LSTM(8, 16, bias=False, **options).parameters()]
    whole = sum(single) + 4 * 2 * 4 * 16
    trace = traced(lambda: nn.LSTM(8, 16, bias=False, **options))
    assert weights_of(trace) == [whole]
    assert gradients_of(trace) == single
    sizes = taken_by(trace, "aten._cudnn_rnn_backward")
    (space,) = {nbytes for nbytes in sizes if nbytes > 1 << 20}
    assert sizes[-len(single) - 3 :] == [space, whole, space, *single]


def test_a_copied_layer_is_not_joined_and_joins_its_weights_at_each_call() -> None:
    single = [4 * p.numel() for p in nn.LSTM(8, 16).parameters()]

    def build() -> Any:
        return copy.deepcopy(nn.LSTM(8, 16).cuda())

    def make_step() -> Callable[[], None]:
        layer, source = build(), torch.randn(5, 3, 8, device="cuda")
        return lambda: layer(source)[0].sum().backward()

    trace = with_workspaces(capture(make_step), H200)
    assert weights_of(trace) == single
    assert sum(single) in taken_by(trace, "aten._cudnn_rnn")


def test_weights_that_are_computed_anew_are_joined_in_each_step() -> None:
    whole = 4 * sum(p.numel() for p in nn.LSTM(8, 16).parameters())
    norm = nn.utils.parametrizations.weight_norm
    trace = traced(lambda: norm(nn.LSTM(8, 16), "weight_hh_l0"))
    assert taken_by(trace, "aten._cudnn_rnn_flatten_weight") == [whole]
    assert whole not in taken_by(trace, "aten._cudnn_rnn")


def test_joining_again_within_a_step_copies_the_weights() -> None:
    def make_step() -> Callable[[], None]:
        layer, source = nn.GRU(8, 16).cuda(), torch.randn(5, 3, 8, device="cuda")

        def step() -> None:
            layer.flatten_parameters()
            first = layer(source)[0]
            layer.flatten_parameters()
            (first.sum() + layer(source)[0].sum()).backward()

        return step

    trace = capture(make_step)
    assert [call.op.base for call in trace].count("aten._cudnn_rnn_flatten_weight") == 2
