"""How much memory do cuDNN's recurrent layers allocate? Records it on this machine's GPU.

    python -m lab.collect.recurrent_reality OUT [--pretend]

Needs a GPU and only torch; takes two minutes. `--pretend` lists the layers without a GPU. Writes
OUT/rnn_workspaces.jsonl with one line for each layer: the settings that differ from the defaults of
`lab.measured.recurrent.MeasuredRecurrentLayer`, and the sizes that its forward and backward passes
allocated, in order, from torch's memory history. Freed memory is negative.

measurements/h200/rnn_workspaces.jsonl has the layers of `_measured_layers`. Layers with dropout,
without training and with small states were added later (`_other_layers`); these are in
rnn_workspaces_more.jsonl. The layers of `_open_layers` are in neither file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from lab.measured.recurrent import MODES, MeasuredRecurrentLayer, RecurrentMemory, errors

_WIDTHS = ((64, 256), (512, 256), (1024, 256), (200, 330), (700, 330))


def layers() -> Iterator[MeasuredRecurrentLayer]:
    """All layers: each setting alone, and together with the settings that it may interact with."""
    yield from _measured_layers()
    yield from _other_layers()
    yield from _open_layers()


def _other_layers() -> Iterator[MeasuredRecurrentLayer]:
    for cell, both in product(MODES, (False, True)):
        usual = MeasuredRecurrentLayer(cell, both=both)
        for depth, packed, steps in product((2, 3), (False, True), (50, 300)):
            yield replace(usual, layers=depth, packed=packed, steps=steps, dropout=0.2)
        for inputs, dtype in product((64, 512), ("float32", "float16")):
            yield replace(usual, inputs=inputs, layers=2, dropout=0.2, dtype=dtype)
        for depth, packed, steps in product((1, 2), (False, True), (50, 300)):
            yield replace(usual, layers=depth, packed=packed, steps=steps, trained=False)
        for hidden, depth, dtype in product((64, 128, 192), (1, 2, 3), ("float32", "float16")):
            yield replace(usual, inputs=hidden, hidden=hidden, layers=depth, dtype=dtype)
        for inputs, steps in product((64, 512), (8, 300)):
            yield replace(usual, inputs=inputs, hidden=128, steps=steps)
        for hidden, depth in product((384, 512, 1024), (1, 2)):
            yield replace(usual, inputs=hidden, hidden=hidden, layers=depth)
        for batch, depth in product((64, 256), (2, 3)):
            yield replace(usual, batch=batch, layers=depth, steps=300)


def _open_layers() -> Iterator[MeasuredRecurrentLayer]:
    """Layers that our formula covers but that were never measured."""
    for cell, both, hidden in product(MODES, (False, True), (128, 256)):
        usual = MeasuredRecurrentLayer(cell, inputs=64, hidden=hidden, both=both)
        for depth, dropout in product((1, 2), (0.0, 0.2)):
            yield replace(usual, layers=depth, dropout=dropout, trained=False)
        for depth, steps in product((2, 3), (50, 300)):
            yield replace(usual, layers=depth, steps=steps, dropout=0.2)
    for cell, inputs, trained in product(("RNN", "LSTM"), (512, 1024, 2048), (True, False)):
        yield MeasuredRecurrentLayer(cell, inputs, 512, dtype="float16", trained=trained)
        yield MeasuredRecurrentLayer(cell, 2 * inputs, 256, dtype="float16", trained=trained)


def _measured_layers() -> Iterator[MeasuredRecurrentLayer]:
    for cell, both, packed in product(MODES, (False, True), (False, True)):
        usual = MeasuredRecurrentLayer(cell, both=both, packed=packed)
        for depth, steps in product((1, 2, 3, 4), (1, 8, 33, 50, 128, 300, 1000)):
            yield replace(usual, layers=depth, steps=steps)
        for depth, (inputs, hidden) in product((1, 2), _WIDTHS):
            yield replace(usual, layers=depth, inputs=inputs, hidden=hidden)
        yield replace(usual, bias=False)
    for cell, both in product(MODES, (False, True)):
        for batch in (1, 3, 64, 256):
            yield MeasuredRecurrentLayer(cell, both=both, batch=batch)
        for dtype, width, depth in product(("float16", "float64"), (256, 330, 1024, 1536), (1, 2)):
            yield MeasuredRecurrentLayer(cell, width, width, depth, both, dtype=dtype)
    for both, depth, bias in product((False, True), (1, 2), (False, True)):
        yield MeasuredRecurrentLayer(layers=depth, both=both, projected=64, bias=bias)


def measure(layer: MeasuredRecurrentLayer) -> RecurrentMemory:
    """The memory that both passes allocate and free, in order."""
    dtype = getattr(torch, layer.dtype)
    options: dict[str, Any] = {"proj_size": layer.projected} if layer.projected else {}
    net = getattr(nn, layer.cell)(
        layer.inputs, layer.hidden, layer.layers, bias=layer.bias, bidirectional=layer.both,
        dropout=layer.dropout, device="cuda", dtype=dtype, **options,
    ).train(layer.trained)  # fmt: skip
    shape = (layer.steps, layer.batch, layer.inputs)
    source: Any = torch.randn(shape, device="cuda", dtype=dtype, requires_grad=layer.trained)
    if layer.packed:
        source = pack_padded_sequence(source, torch.tensor(layer.lengths))
    torch.cuda.memory._record_memory_history(context=None, clear_history=True)
    with torch.set_grad_enabled(layer.trained):
        out = net(source)[0]
    out = out.data if layer.packed else out
    forward = _events()
    if layer.trained:
        out.backward(torch.ones_like(out))
    backward = _events()[len(forward) :]
    torch.cuda.memory._record_memory_history(enabled=None)
    return RecurrentMemory(layer, forward, backward)


def _events() -> tuple[int, ...]:
    traces = torch.cuda.memory._snapshot()["device_traces"]
    signs = {"alloc": 1, "free_completed": -1}
    return tuple(
        signs[event["action"]] * event["size"]
        for device_trace in traces
        for event in device_trace
        if event["action"] in signs
    )


def main() -> None:
    """Measure all layers, and print those whose workspace differs from the predicted one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pretend", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    count, wrong = 0, []
    with (arguments.out / "rnn_workspaces.jsonl").open("w", encoding="utf-8") as file:
        for layer in dict.fromkeys(layers()):
            row = layer.settings
            if not arguments.pretend:
                memory = measure(layer)
                row = memory.row
                if any(errors(memory)):
                    wrong.append(memory)
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
            count += 1
    for memory in wrong[:60]:
        shown = " ".join(f"{error:+.2%}" for error in errors(memory))
        print(shown, memory.workspace_bytes, memory.layer.settings)
    outcome = "not measured" if arguments.pretend else f"{len(wrong)} predicted wrongly"
    print(f"{count} layers, {outcome}")


if __name__ == "__main__":
    main()
