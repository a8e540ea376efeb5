"""Many ops as arrays: made once, evaluated on every GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavecast import ops
from wavecast.ops import Kind, matmul
from wavecast.predictors.learned.gpus import CODES, Floats, GpuFacts
from wavecast.predictors.learned.model import OpModel
from wavecast.predictors.learned.physics import groups
from wavecast.predictors.learned.physics.convolutions import WINOGRAD_GAIN
from wavecast.predictors.learned.physics.parts import COLUMNS, GROUPED, Part, parts_of
from wavecast.traces.step import Op

MOST_SHARE = 0.95
"""Of the nominal bandwidth, that no kernel exceeds."""
UNMODELLED = "unmodelled"
CLASSED = ("product", "grouped", "convolution", "attention", "recurrent")
"""Models whose errors differ between tensor cores and plain ones."""


@dataclass(frozen=True, eq=False)
class PartColumns:
    """All parts of one model, and the op that each belongs to."""

    columns: Mapping[str, Floats]
    op: NDArray[np.int64]
    added: Floats
    """What the op's family adds to the logarithm of its time."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Ops by columns, without anything that depends on a GPU."""

    parts: Mapping[str, PartColumns]
    main: tuple[str, ...]
    """Of each op: its model, or of a stream its kind; `UNMODELLED` where no model fits."""
    seen: NDArray[np.bool_]
    """Whether ops of that name were measured."""
    unit: NDArray[np.int64]
    flops: Floats
    gain: Floats
    """By how much an algorithm may undercut the FLOPs."""
    nbytes: Floats

    def __len__(self) -> int:
        return len(self.main)

    def seconds(self, models: Mapping[str, OpModel], gpu: GpuFacts) -> Floats:
        """Each op's time, not below what physics demands; zero where no model fits."""
        total = np.zeros(len(self))
        for name, part in self.parts.items():
            if name == "grouped":
                seconds = groups.seconds(part.columns, gpu, models)
            else:
                seconds = models[name].seconds(part.columns, gpu, part.added)
            total += np.bincount(part.op, weights=seconds, minlength=len(self))
        return np.where(total > 0, np.maximum(total, self.least_s(gpu)), 0.0)

    def least_s(self, gpu: GpuFacts) -> Floats:
        """What no kernel can undercut: FLOPs (less what Winograd saves) and what L2 cannot hold.

        NaN: the GPU has no unit for the op.
        """
        rate = np.where(self.flops > 0, gpu.nominal_rates[self.unit], 1.0)
        moved = np.maximum(self.nbytes - gpu.l2_bytes, 0.0)
        memory_s = moved / (gpu.nominal_bytes_per_s * MOST_SHARE)
        found: Floats = np.maximum(self.flops / (rate * self.gain), memory_s)
        return found


def batch_of(given: Sequence[Op], families: Mapping[str, float]) -> Batch:
    """The columns of ops."""
    numbers: dict[str, list[tuple[float, ...]]] = {}
    owners: dict[str, list[int]] = {}
    added: dict[str, list[float]] = {}
    main: list[str] = []
    for position, op in enumerate(given):
        found = parts_of(op) if ops.launches(op) else ()
        for part in found:
            numbers.setdefault(part.model, []).append(part.numbers)
            owners.setdefault(part.model, []).append(position)
            known = families.get(op.base, 0.0) if part.model == "stream" else 0.0
            added.setdefault(part.model, []).append(known)
        main.append(_main(op, found[0]) if found else UNMODELLED)
    parts = {
        model: PartColumns(
            dict(zip(COLUMNS[model], np.array(values).T.copy(), strict=True)),
            np.array(owners[model]),
            np.array(added[model]),
        )
        for model, values in numbers.items()
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
    )


def _seen(main: str, op: Op, families: Mapping[str, float]) -> bool:
    """Of the products in fp8 no groups were in the fit."""
    if main == "product" and op.base in matmul.GROUPED:
        return op.base == "aten._grouped_mm"
    return main in COLUMNS or op.base in families


def _main(op: Op, part: Part) -> str:
    """Groups that run one by one are products."""
    kind, model = ops.kind(op), part.model
    if model == "grouped" and not part.numbers[GROUPED.index("kernel")]:
        return "product"
    return str(kind) if model == "stream" and kind is not Kind.CONVOLUTION else model


def group_of(main: str, unit: int, gpu: GpuFacts) -> str:
    """The ops whose errors count together: `product/tensor`, `norm`."""
    if main not in CLASSED:
        return main
    if main == "grouped" and not gpu.groups:
        main = "product"
    return f"{main}/tensor" if gpu.tensor[unit] else f"{main}/cores"
