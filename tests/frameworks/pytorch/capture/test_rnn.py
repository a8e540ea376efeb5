"""LSTM, GRU and RNN layers become one cuDNN op forward and one backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from networks import Step, calls_of, names, training
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

from wavecast import ops
from wavecast.frameworks.pytorch.capture import capture
from wavecast.traces.step import Phase, Trace

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
SHAPE = (7, 4, 8)  # steps, batch, features


def _rnn(trace: Trace) -> Any:
    (call,) = calls_of(trace, "aten._cudnn_rnn")
    return call.op


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bidirectional": True},
        {"num_layers": 3},
        {"num_layers": 2, "dropout": 0.5, "bidirectional": True},
        {"bias": False},
        {"batch_first": True},
    ],
    ids=["plain", "bidirectional", "stacked", "dropout", "without bias", "batch first"],
)
def test_a_layer_is_one_op_each_way(cell: str, options: dict[str, Any]) -> None:
    trace = capture(training(lambda: CELLS[cell](8, 16, **options), SHAPE))
    assert names(trace, Phase.FORWARD)["aten._cudnn_rnn"] == 1
    assert names(trace, Phase.BACKWARD)["aten._cudnn_rnn_backward"] == 1
    op = _rnn(trace)
    width = 32 if options.get("bidirectional") else 16
    assert op.outputs[0].shape == (*SHAPE[:2], width)
    assert op.attr("num_layers") == options.get("num_layers", 1)
    assert op.attr("dropout") == options.get("dropout", 0.0)
    assert trace.notes == ()


def test_the_gradients_of_all_weights_come_out() -> None:
    trace = capture(training(lambda: nn.LSTM(8, 16, 2), SHAPE))
    (backward,) = calls_of(trace, "aten._cudnn_rnn_backward")
    shapes = [t.shape for t in backward.op.outputs]
    assert shapes[-8:] == [(64, 8), (64, 16), (64,), (64,), (64, 16), (64, 16), (64,), (64,)]


def test_a_projected_lstm_has_narrow_output() -> None:
    op = _rnn(capture(training(lambda: nn.LSTM(8, 16, proj_size=4), SHAPE)))
    assert op.attr("proj_size") == 4
    assert op.outputs[0].shape == (7, 4, 4)
    assert op.outputs[2].shape == (1, 4, 16)


def test_autocast_runs_it_in_float16_whatever_was_asked_for() -> None:
    op = _rnn(capture(training(lambda: nn.LSTM(8, 16), SHAPE, dtype=torch.bfloat16)))
    assert op.inputs[0].dtype == "float16"


def test_evaluation_has_no_backward() -> None:
    def make_step() -> Step:
        model, x = nn.GRU(8, 16).cuda().eval(), torch.randn(SHAPE, device="cuda")

        def step() -> None:
            with torch.no_grad():
                model(x)

        return step

    trace = capture(make_step)
    assert _rnn(trace).attr("train") is False
    assert "aten._cudnn_rnn_backward" not in names(trace)


def _packed(lengths: Any, batch_first: bool = True, sort: bool = True) -> Any:
    def make_step() -> Step:
        model = nn.LSTM(8, 16, batch_first=batch_first).cuda()
        x = torch.randn(*((4, 7, 8) if batch_first else (7, 4, 8)), device="cuda")
        known = lengths() if callable(lengths) else lengths

        def step() -> None:
            packed = pack_padded_sequence(x, known, batch_first, enforce_sorted=sort)
            out, _ = pad_packed_sequence(model(packed)[0], batch_first)
            out.sum().backward()

        return step

    return make_step


@pytest.mark.parametrize("batch_first", [True, False])
def test_packed_sequences_of_known_lengths_are_exact(batch_first: bool) -> None:
    trace = capture(_packed([7, 5, 2, 1], batch_first))
    op = _rnn(trace)
    assert op.inputs[0].shape == (15, 8)
    assert op.attr("batch_sizes") == (4, 3, 2, 2, 2, 1, 1)
    assert trace.notes == ()


def test_unsorted_lengths_are_sorted() -> None:
    assert _rnn(capture(_packed([1, 7, 2, 5], sort=False))).inputs[0].shape == (15, 8)


def test_packed_sequences_of_unknown_lengths_are_an_upper_bound() -> None:
    trace = capture(_packed(lambda: torch.randint(1, 8, (4,), device="cuda").cpu(), sort=False))
    assert _rnn(trace).inputs[0].shape == (28, 8)
    (note,) = trace.notes
    assert note.startswith("the lengths of packed sequences at ")
    assert note.endswith("depend on data; their upper bound, 7, was assumed")
    assert "test_rnn.py" in note


def test_a_list_of_sequences_can_be_packed() -> None:
    def make_step() -> Step:
        model = nn.GRU(8, 16).cuda()
        sequences = [torch.randn(n, 8, device="cuda") for n in (5, 3, 1)]
        return lambda: model(pack_sequence(sequences))[1].sum().backward()

    assert _rnn(capture(make_step)).inputs[0].shape == (9, 8)


def over_time(cell: Any) -> Any:
    """A step that runs a cell over seven items."""

    def make_step() -> Step:
        model, x = cell(8, 16).cuda(), torch.randn(SHAPE, device="cuda")

        def step() -> None:
            state: Any = None
            for item in x:
                state = model(item, state)
            (state[0] if isinstance(state, tuple) else state).sum().backward()

        return step

    return capture(make_step)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_cell_is_two_products_and_a_fused_kernel_each_way(cell: str) -> None:
    trace = over_time(getattr(nn, f"{cell.upper()}Cell"))
    forward, backward = names(trace, Phase.FORWARD), names(trace, Phase.BACKWARD)
    assert forward["aten.mm"] == 14
    assert forward[f"aten._thnn_fused_{cell}_cell"] == 7
    fused = {name: count for name, count in backward.items() if "thnn_fused" in name}
    assert list(fused.values()) == [7]
    assert not ops.totals(trace).unknown


def test_a_plain_cell_is_two_products_with_their_biases() -> None:
    assert names(over_time(nn.RNNCell), Phase.FORWARD)["aten.addmm"] == 14
