"""What cuDNN's recurrent layers ask torch's allocator for, on a real GPU.

    python -m benchmarks.recurrent_reality OUT      # a minute; OUT/rnn_workspaces.jsonl

One line for each layer: the sizes that its forward and its backward pass asked for, in order, as
torch's memory history has them, and the workspace that wavecast expects. `--pretend` lists the
layers and what is expected, without a GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from wavecast.trace import Op, Scalar, TensorSpec
from wavecast.workspaces.recurrent import FORWARD, workspace_bytes

_WIDTHS = ((64, 256), (512, 256), (1024, 256), (200, 330), (700, 330))
_MODES = {"RNN": 1, "LSTM": 2, "GRU": 3}


@dataclass(frozen=True)
class Layer:
    """A recurrent layer and its input."""

    cell: str = "LSTM"
    inputs: int = 256
    hidden: int = 256
    layers: int = 1
    both: bool = False
    bias: bool = True
    projected: int = 0
    steps: int = 50
    batch: int = 16
    dtype: str = "float32"
    packed: bool = False

    @property
    def lengths(self) -> list[int]:
        """Of the sequences, the longest first: all are long but in a packed batch."""
        shorter = self.steps // 2 if self.packed else 0
        return [self.steps - shorter * i // max(1, self.batch - 1) for i in range(self.batch)]

    @property
    def op(self) -> Op:
        """The forward pass as a trace has it, as far as its workspace depends on it."""
        stacked = self.layers * (1 + self.both)
        attrs: dict[str, Scalar] = {
            "weight_stride0": (4 if self.bias else 2) + (self.projected > 0),
            "mode": _MODES[self.cell],
            "hidden_size": self.hidden,
            "proj_size": self.projected,
            "num_layers": self.layers,
            "batch_first": False,
            "train": True,
            "bidirectional": self.both,
        }
        shape = (self.steps, self.batch, self.inputs)
        if self.packed:
            shape = (sum(self.lengths), self.inputs)  # type: ignore[assignment]
        states = TensorSpec((stacked, self.batch, self.projected or self.hidden), self.dtype)
        source = TensorSpec(shape, self.dtype)
        return Op(FORWARD, (source, states), (source,), tuple(attrs.items()))


def layers() -> Iterator[Layer]:
    """Each setting alone and with the others that it may depend on."""
    for cell, both, packed in product(_MODES, (False, True), (False, True)):
        usual = Layer(cell, both=both, packed=packed)
        for depth, steps in product((1, 2, 3, 4), (1, 8, 33, 50, 128, 300, 1000)):
            yield replace(usual, layers=depth, steps=steps)
        for depth, (inputs, hidden) in product((1, 2), _WIDTHS):
            yield replace(usual, layers=depth, inputs=inputs, hidden=hidden)
        yield replace(usual, bias=False)
    for cell, both in product(_MODES, (False, True)):
        for batch in (1, 3, 64, 256):
            yield Layer(cell, both=both, batch=batch)
        for dtype, width, depth in product(("float16", "float64"), (256, 330, 1024, 1536), (1, 2)):
            yield Layer(cell, width, width, depth, both, dtype=dtype)
    for both, depth, bias in product((False, True), (1, 2), (False, True)):
        yield Layer(layers=depth, both=both, projected=64, bias=bias)


def measure(layer: Layer) -> dict[str, Any]:
    """What both passes ask for and give back, in order."""
    dtype = getattr(torch, layer.dtype)
    options: dict[str, Any] = {"proj_size": layer.projected} if layer.projected else {}
    net = getattr(nn, layer.cell)(
        layer.inputs, layer.hidden, layer.layers, bias=layer.bias, bidirectional=layer.both,
        device="cuda", dtype=dtype, **options,
    )  # fmt: skip
    shape = (layer.steps, layer.batch, layer.inputs)
    source: Any = torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True)
    if layer.packed:
        source = pack_padded_sequence(source, torch.tensor(layer.lengths))
    torch.cuda.memory._record_memory_history(context=None, clear_history=True)
    out = net(source)[0]
    out = out.data if layer.packed else out
    forward = _events()
    out.backward(torch.ones_like(out))
    backward = _events()[len(forward) :]
    torch.cuda.memory._record_memory_history(enabled=None)
    return {"forward": forward, "backward": backward}


def _events() -> list[tuple[str, int]]:
    traces = torch.cuda.memory._snapshot()["device_traces"]
    wanted = {"alloc": "alloc", "free_completed": "free"}
    return [
        (wanted[event["action"]], event["size"])
        for each in traces
        for event in each
        if event["action"] in wanted
    ]


def main() -> None:
    """Measure all, and print those that take another workspace than expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pretend", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    count, wrong = 0, []
    with (arguments.out / "rnn_workspaces.jsonl").open("w", encoding="utf-8") as file:
        for layer in dict.fromkeys(layers()):
            row: dict[str, Any] = {**asdict(layer), "expected": workspace_bytes(layer.op)}
            if not arguments.pretend:
                row |= measure(layer)
                # What is taken just before what is kept for the way back, and given back first.
                taken = [size for action, size in row["forward"] if action == "alloc"]
                row["workspace"] = min(taken, key=lambda size: abs(size - row["expected"]))
                if row["workspace"] != row["expected"]:
                    wrong.append(row)
            file.write(json.dumps(row) + "\n")
            count += 1
    for row in wrong[:60]:
        error = row["expected"] / row["workspace"] - 1
        shown = {name: row[name] for name in Layer.__dataclass_fields__}
        print(f"{error:+.1%}", row["workspace"], row["expected"], *shown.values())
    told = "not measured" if arguments.pretend else f"{len(wrong)} with another workspace"
    print(f"{count} layers, {told}")


if __name__ == "__main__":
    main()
