"""The memory that cuDNN's recurrent layers allocate, measured on our H200."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from wavecast.footprint.reduction_workspaces import BACKWARD, FORWARD, workspace_bytes
from wavecast.traces.step import Op, Scalar, TensorSpec

MODES = {"RNN": 1, "LSTM": 2, "GRU": 3}


@dataclass(frozen=True)
class MeasuredRecurrentLayer:
    """A recurrent layer and its input."""

    cell: str = "LSTM"
    inputs: int = 256
    hidden: int = 256
    layers: int = 1
    both: bool = False
    """Whether it is bidirectional."""
    bias: bool = True
    projected: int = 0
    """The width of the projection of an LSTM's state; 0 if there is none."""
    steps: int = 50
    batch: int = 16
    dtype: str = "float32"
    packed: bool = False
    dropout: float = 0.0
    trained: bool = True

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that differ from the defaults."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }

    @property
    def lengths(self) -> list[int]:
        """The lengths of the sequences, longest first. All are equal unless the batch is packed."""
        shorter = self.steps // 2 if self.packed else 0
        return [self.steps - shorter * i // max(1, self.batch - 1) for i in range(self.batch)]

    @property
    def op(self) -> Op:
        """The op of the forward pass, with everything that its workspace depends on."""
        stacked = self.layers * (1 + self.both)
        attrs: dict[str, Scalar] = {
            "weight_stride0": (4 if self.bias else 2) + (self.projected > 0),
            "mode": MODES[self.cell],
            "hidden_size": self.hidden,
            "proj_size": self.projected,
            "num_layers": self.layers,
            "batch_first": False,
            "dropout": self.dropout,
            "train": self.trained,
            "bidirectional": self.both,
        }
        shape = (self.steps, self.batch, self.inputs)
        if self.packed:
            shape = (sum(self.lengths), self.inputs)  # type: ignore[assignment]
        states = TensorSpec((stacked, self.batch, self.projected or self.hidden), self.dtype)
        source = TensorSpec(shape, self.dtype)
        return Op(FORWARD, (source, states), (source,), tuple(attrs.items()))


@dataclass(frozen=True)
class RecurrentMemory:
    """The sizes in bytes that a layer allocated, in order; negative where memory was freed."""

    layer: MeasuredRecurrentLayer
    forward: tuple[int, ...]
    backward: tuple[int, ...]

    @property
    def workspace_bytes(self) -> int:
        """The workspace of the forward pass: its last allocation that is not kept for backward."""
        taken = [size for size in self.forward if size > 0]
        return taken[-2 if self.layer.trained else -1]

    @property
    def kept_bytes(self) -> int:
        """The bytes that the forward pass keeps for the backward pass."""
        return next((size for size in reversed(self.forward) if size > 0), 0)

    @property
    def backward_workspace_bytes(self) -> int:
        """The workspace of the backward pass: the first memory that it frees."""
        return -next(size for size in self.backward if size < 0)

    @property
    def row(self) -> dict[str, Any]:
        """The line of the file as a dictionary."""
        return {**self.layer.settings, "forward": self.forward, "backward": self.backward}


def read(path: Path) -> list[RecurrentMemory]:
    """The layers of a file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [_read(**json.loads(line)) for line in lines]


def _read(forward: list[int], backward: list[int], **settings: Any) -> RecurrentMemory:
    return RecurrentMemory(MeasuredRecurrentLayer(**settings), tuple(forward), tuple(backward))


def errors(memory: RecurrentMemory) -> tuple[float, ...]:
    """The relative errors of the predicted workspaces, forward and backward."""
    forward = memory.layer.op
    measured = [(forward, memory.workspace_bytes)]
    if memory.layer.trained:
        backward = replace(forward, name=BACKWARD)
        measured.append((backward, memory.backward_workspace_bytes))
    return tuple(workspace_bytes(op) / nbytes - 1 for op, nbytes in measured)
