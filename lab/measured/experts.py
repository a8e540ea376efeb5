"""Matrix products of the experts of real models, timed on our H200."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from lab.places import H200
from wavecast.traces.step import Op, TensorSpec

MEASURED = H200 / "grouped.json"
GPU = "h200-sxm"


class Tensor(NamedTuple):
    """An operand of a product."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


class ExpertRow(NamedTuple):
    """One timed product."""

    model: str
    matrix: str
    turn: str
    """The pass: "forward", "data" (gradient of the data) or "weights" (gradient of the weights)."""
    tokens: int
    routing: str
    fullest: float
    """The rows of the expert with the most rows, over the mean."""
    op: str
    inputs: tuple[Tensor, ...]
    events_s: float | None
    """Seconds between CUDA events around the call. None if torch loops over groups on the host."""
    kernels_s: float | None
    """Seconds in which a kernel ran. None if no profiler recorded the call."""
    kernels: tuple[str, ...]


def read(path: Path = MEASURED) -> list[ExpertRow]:
    """The rows of a file."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [_row(*row) for row in rows]


def _row(*row: Any) -> ExpertRow:
    made = ExpertRow(*row)
    tensors = (Tensor(tuple(shape), tuple(strides), d) for shape, strides, d in made.inputs)
    return made._replace(inputs=tuple(tensors), kernels=tuple(made.kernels))


def op_of(row: ExpertRow) -> Op:
    """The op of a row, as a trace has it."""
    inputs = tuple(TensorSpec(t.shape, t.dtype, t.strides) for t in row.inputs)
    a, b = inputs[:2]
    groups = tuple(t.shape[0] for t in inputs[-1:] if row.op != "aten.bmm" and len(b.shape) == 2)
    shape = (*(groups or a.shape[:-2]), a.shape[-2], b.shape[-1])
    dtype = "bfloat16" if "scaled" in row.op else a.dtype
    return Op(row.op, inputs, (TensorSpec(shape, dtype),), (("precision", "ieee"),))


def measured_s(row: ExpertRow) -> float:
    """The measured seconds of a product: by events, or else by its kernels."""
    seconds = row.kernels_s if row.events_s is None else row.events_s
    assert seconds is not None
    return seconds
