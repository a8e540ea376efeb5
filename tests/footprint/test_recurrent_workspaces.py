"""cuDNN's recurrent workspaces: the rule against 908 layers that ran on an H200."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from lab.measured.recurrent import MeasuredRecurrentLayer, RecurrentMemory, errors, read  # noqa: E402
from lab.places import DOCS, H200  # noqa: E402
from wavecast.footprint import reduction_workspaces  # noqa: E402
from wavecast.footprint.reduction_workspaces import FORWARD, workspace_bytes  # noqa: E402
from wavecast.frameworks.pytorch.capture.tracing import capture  # noqa: E402

MEASURED = read(H200 / "rnn_workspaces.jsonl")
LATER = read(H200 / "rnn_workspaces_more.jsonl")
"""With dropout, without training, of small and wide states, of larger batches."""
TINY = 1e-5
"""A part may begin 32 bytes later than we say."""


def seen_first(measured: RecurrentMemory) -> bool:
    """Plain cells and LSTMs of one width and batch: these alone settle all constants."""
    layer = measured.layer
    return layer.cell != "GRU" and (layer.hidden, layer.batch) == (256, 16)


def wrong(chosen: Callable[[RecurrentMemory], bool]) -> list[MeasuredRecurrentLayer]:
    return [
        each.layer for each in MEASURED if chosen(each) and any(abs(e) > TINY for e in errors(each))
    ]


@pytest.mark.parametrize(
    "chosen",
    [
        lambda layer: layer.cell == "GRU",
        lambda layer: layer.hidden == 330,
        lambda layer: layer.hidden >= 1024,
        lambda layer: layer.batch != 16,
    ],
    ids=["gated", "odd width", "wide", "batch"],
)
def test_the_same_constants_hold_for_all_others(
    chosen: Callable[[MeasuredRecurrentLayer], bool],
) -> None:
    others = [each for each in MEASURED if chosen(each.layer) and not seen_first(each)]
    assert len(others) >= 24
    assert not wrong(lambda each: each in others)


def test_layers_measured_later_take_what_was_measured() -> None:
    assert len(LATER) == 426
    assert not [each.layer for each in LATER if any(errors(each))]


def test_nearly_all_are_exact_as_the_page_says() -> None:
    appendix = DOCS / "appendix" / "memory-workspaces.md"
    page = " ".join(appendix.read_text(encoding="utf-8").split())
    assert f"{len(LATER)} layers were measured later" in page
    short = " ".join((DOCS / "memory.md").read_text(encoding="utf-8").split())
    later = re.search(r"Later we measured (\d+) more layers.* and all of (\d+) layers", short)
    assert later is not None
    assert int(later[1]) + int(later[2]) == len(LATER)
    exact = sum(not any(errors(each)) for each in MEASURED)
    first = sum(map(seen_first, MEASURED))
    assert exact == len(MEASURED) - 3
    assert f"What cuDNN takes for {len(MEASURED)} layers" in page
    assert f"{len(MEASURED)} measured layers; {exact} of them are right to the byte" in short
    assert f"{exact} workspaces are right to the byte" in page
    assert f"{first} layers, the plain cells" in page
    assert f"the {len(MEASURED) - first} others" in page


@pytest.mark.parametrize(
    "name",
    [
        *("_BUFFER_BYTES", "_HEAD_BYTES", "_LONGEST_CHUNK", "_WAVE"),
        *("_GATE_COPIES", "_STATE_COPIES"),
    ],
)
@pytest.mark.parametrize("other", [-1, 1])
def test_no_other_constant_would_do(name: str, other: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduction_workspaces, name, getattr(reduction_workspaces, name) + other)
    assert any(any(errors(each)) for each in MEASURED if seen_first(each))


def test_gradients_of_gates_are_held_twice_in_small_grus_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reduction_workspaces, "_GRU_GATES", 0)
    layers = [each.layer for each in LATER if any(errors(each))]
    assert layers
    assert {layer.cell for layer in layers} == {"GRU"}
    assert max(layer.hidden for layer in layers) == 192


def test_plain_cells_of_middling_width_take_less_on_the_way_back() -> None:
    less = [each for each in MEASURED if each.backward_workspace_bytes != each.workspace_bytes]
    assert {(each.layer.cell, each.layer.hidden) for each in less} == {("RNN", 330)}
    assert all(each.backward_workspace_bytes < each.workspace_bytes for each in less)


def test_without_training_nothing_is_held_for_the_way_back() -> None:
    layer = MeasuredRecurrentLayer("GRU", layers=2, inputs=1024)
    training, other = (replace(layer, trained=each).op for each in (True, False))
    assert workspace_bytes(other) < workspace_bytes(training)


def test_dropout_between_layers_in_one_direction_holds_an_output_more() -> None:
    deep = MeasuredRecurrentLayer(layers=3, steps=128)
    more = workspace_bytes(replace(deep, dropout=0.2).op) - workspace_bytes(deep.op)
    assert more == 4 * deep.steps * deep.batch * deep.hidden
    single = replace(deep, layers=1)
    assert workspace_bytes(replace(single, dropout=0.2).op) == workspace_bytes(single.op)
    resting = replace(deep, trained=False)
    assert workspace_bytes(replace(resting, dropout=0.2).op) == workspace_bytes(resting.op)


def kept(layer: MeasuredRecurrentLayer) -> int:
    """What is kept for the way back, as a trace has it."""

    def make_step() -> Callable[[], None]:
        net = getattr(torch.nn, layer.cell)(
            layer.inputs, layer.hidden, layer.layers, bias=layer.bias,
            bidirectional=layer.both, proj_size=layer.projected, device="cuda",
        )  # fmt: skip
        source = torch.randn(layer.steps, layer.batch, layer.inputs, device="cuda")
        return lambda: net(source)[0].sum().backward()

    (op,) = (call.op for call in capture(make_step) if call.op.base == FORWARD)
    return op.outputs[3].nbytes


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_projected_layer_keeps_what_was_measured(both: bool, depth: int) -> None:
    layer = MeasuredRecurrentLayer(layers=depth, both=both, projected=64)
    (measured,) = (each for each in MEASURED if each.layer == layer)
    assert kept(layer) == measured.kept_bytes
