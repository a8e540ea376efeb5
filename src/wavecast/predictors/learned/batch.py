"""Many ops as arrays, built once and evaluated on every GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavecast import ops
from wavecast.ops import Kind, matmul, quantization
from wavecast.ops.reading import is_possible_work, reading
from wavecast.predictors.learned.autotuned import term_of
from wavecast.predictors.learned.gpus import CODES, Floats, GpuFacts
from wavecast.predictors.learned.model import OpModel
from wavecast.predictors.learned.physics import tiles
from wavecast.predictors.learned.physics.columns import (
    ROW_TYPES,
    Columns,
    ProductRow,
    Row,
    columns_of,
)
from wavecast.predictors.learned.physics.convolutions import WINOGRAD_GAIN
from wavecast.predictors.learned.physics.parts import Part, parts_of
from wavecast.traces.step import Op

MOST_SHARE = 0.95
"""The share of the nominal bandwidth that no kernel exceeds."""
UNMODELLED = "unmodelled"
"""The entry in `Batch.main` of an op that no model covers."""
UNREADABLE = "unreadable"
"""The entry of an op whose formulas cannot read it. It gets no answer."""
CLASSED = ("product", "grouped", "convolution", "attention", "recurrent")
"""Models whose errors differ between tensor cores and plain cores."""


@dataclass(frozen=True, eq=False)
class PartColumns:
    """All parts of one model, and the op to which each belongs."""

    columns: Columns
    op: NDArray[np.int64]
    """The position of each part's op in the batch."""
    added: Floats
    """The term of the op's name in the logarithm of the learned factor."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Ops by columns, without anything that depends on a GPU."""

    parts: Mapping[str, PartColumns]
    """The parts of all ops, by model."""
    main: tuple[str, ...]
    """The model of each op's first part, or the op's kind if it passes over memory; `UNMODELLED`
    where no model fits, `UNREADABLE` where no formula can read the op."""
    seen: NDArray[np.bool_]
    """Whether ops of that name were in the fit."""
    unit: NDArray[np.int64]
    """The arithmetic unit of each op, as its number in `CODES`."""
    flops: Floats
    gain: Floats
    """The factor by which an algorithm may need fewer FLOPs."""
    nbytes: Floats
    tuned: Floats
    """The logarithm of the factor of library calls that XLA tuned; 0 for other ops."""

    def __len__(self) -> int:
        return len(self.main)

    def seconds(self, models: Mapping[str, OpModel], gpu: GpuFacts) -> Floats:
        """The time of each op, not below the physical bound; zero where no model fits."""
        total = np.zeros(len(self))
        for name, part in self.parts.items():
            if name == "grouped":
                seconds = tiles.seconds(part.columns, gpu, models)
            else:
                seconds = models[name].seconds(part.columns, gpu, part.added)
            total += np.bincount(part.op, weights=seconds, minlength=len(self))
        total *= np.exp(self.tuned)
        return np.where(total > 0, np.maximum(total, self.least_s(gpu)), 0.0)

    def least_s(self, gpu: GpuFacts) -> Floats:
        """The physical bound of each op: its FLOPs, and its bytes beyond the size of L2.

        Winograd's algorithm may save FLOPs. NaN if the GPU has no unit for the op.
        """
        rate = np.where(self.flops > 0, gpu.nominal_rates[self.unit], 1.0)
        moved = np.maximum(self.nbytes - gpu.l2_bytes, 0.0)
        memory_s = moved / (gpu.nominal_bytes_per_s * MOST_SHARE)
        bounds: Floats = np.maximum(self.flops / (rate * self.gain), memory_s)
        return bounds


def batch_of(given: Sequence[Op], families: Mapping[str, float]) -> Batch:
    """The ops by columns.

    Args:
        given: The ops.
        families: The terms of op names in the stream model, `OpModel.families`.
    """
    rows: dict[str, list[Row]] = {}
    owners: dict[str, list[int]] = {}
    added: dict[str, list[float]] = {}
    main: list[str] = []
    for position, op in enumerate(given):
        op_parts = readable_parts(op) if ops.launches(op) else ()
        for part in op_parts or ():
            rows.setdefault(part.model, []).append(part.row)
            owners.setdefault(part.model, []).append(position)
            term = families.get(op.base, 0.0) if part.model == "stream" else 0.0
            added.setdefault(part.model, []).append(term)
        if op_parts is None:
            main.append(UNREADABLE)
        else:
            main.append(_main(op, op_parts[0]) if op_parts else UNMODELLED)
    parts = {
        model: PartColumns(columns_of(model_rows), np.array(owners[model]), np.array(added[model]))
        for model, model_rows in rows.items()
    }
    costs = [(ops.cost_of(op), ops.executed_flops(op) or 0) for op in given]
    return Batch(
        parts=parts,
        main=tuple(main),
        seen=np.array(
            [_seen(name, op, families) for name, op in zip(main, given, strict=True)], dtype=bool
        ),
        unit=np.array([CODES[ops.unit(op)] for op in given], dtype=np.int64),
        flops=np.array([float(flops) for _, flops in costs]),
        gain=np.array([WINOGRAD_GAIN if name == "convolution" else 1.0 for name in main]),
        nbytes=np.array([float(cost.bytes) if cost else 0.0 for cost, _ in costs]),
        tuned=np.array([term_of(op) for op in given]),
    )


def readable_parts(op: Op) -> tuple[Part, ...] | None:
    """The parts of an op; None if its tensors or attributes are not those of such an op."""
    parts = reading(parts_of, None, op)
    if parts is None or not all(is_possible_work(abs(n)) for part in parts for n in part.row):
        return None
    return parts


def _seen(main: str, op: Op, families: Mapping[str, float]) -> bool:
    """Whether the fit had ops of that name.

    Of grouped matmuls it had those in bfloat16 only, and it had none of int8 or packed matrices.
    """
    if main == "product" and op.base in matmul.GROUPED:
        return op.base == "aten._grouped_mm"
    if main == "product" and (op.base == quantization.FUSED or op.inputs[0].dtype == "int8"):
        return False
    return main in ROW_TYPES or op.base in families


def _main(op: Op, part: Part) -> str:
    """The main model of an op. Groups that run one after another are matmuls."""
    kind, model = ops.kind(op), part.model
    if model == "grouped" and isinstance(part.row, ProductRow) and not part.row.one_kernel:
        return "product"
    return str(kind) if model == "stream" and kind is not Kind.CONVOLUTION else model


def group_of(main: str, unit: int, gpu: GpuFacts) -> str:
    """The group of ops that share one range of errors: `product/tensor`, `norm`."""
    if main not in CLASSED:
        return main
    if main == "grouped" and not gpu.groups:
        main = "product"
    return f"{main}/tensor" if gpu.tensor[unit] else f"{main}/cores"
