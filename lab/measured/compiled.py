"""Compiled steps and their kernels, measured on our H200."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lab.places import H200
from wavecast.frameworks.pytorch.compiled.fused_ops import FEW_PLACES
from wavecast.ops.fused import FUSED
from wavecast.traces.step import Op, TensorSpec

FOLDER = H200 / "compiled"
GPU = "h200-sxm"
SMALL = "small functions"
"""The family of kernels that belong to no step."""

MEMORY = ("held_bytes", "peak_bytes", "reserved_bytes")
"""Steps whose memory was measured again."""

BLIND_FILES = {"blind": "blind-", "blind_2": "blind2-"}
"""The files of the blind tests, and how the names of their steps begin."""


class FusedKernel(NamedTuple):
    """A kernel of Inductor with its measured time."""

    family: str
    source: str
    """The step or the bundle of functions."""
    op: Op
    seconds: float
    runs: int
    """How often it ran in one iteration of its step; 1 for functions."""
    name: str


Row = dict[str, Any]


def lines(name: str, folder: Path = FOLDER) -> Iterator[Row]:
    """The rows of a file."""
    path = folder / f"{name}.jsonl.gz"
    if not path.exists():
        return
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


def steps(folder: Path = FOLDER) -> list[Row]:
    """The measured steps."""
    return list(lines("steps", folder))


def by_name(folder: Path = FOLDER) -> dict[str, Row]:
    """All measured steps by name, those of the blind tests too.

    Memory is that of a process of its own, where this was recorded: other processes measured many
    steps, and still had the buffers of cuBLAS when a step needed none.
    """
    files = ("steps", *BLIND_FILES)
    rows = {row["step"]: row for file in files for row in lines(file, folder)}
    for row in lines("allocations", folder):
        alone = {key: row[key] for key in MEMORY if key in row}
        rows[row["step"]]["compiled"] |= alone
    return rows


def op_of(encoded: Any) -> Op | None:
    """The op that was written as JSON; None where the node could not be described."""
    if isinstance(encoded, str):
        return None
    name, count, tensors, attrs = encoded
    attrs = _repaired(attrs, tensors[count:])
    specs = [
        TensorSpec(tuple(shape), dtype, None if strides is None else tuple(strides), place)
        for shape, dtype, strides, place in tensors
    ]
    return Op(name, tuple(specs[:count]), tuple(specs[count:]), tuple(attrs.items()))


def _repaired(attrs: Row, outputs: list[Any]) -> Row:
    """Attributes of atomic additions, which the first collection counted by distinct places."""
    if not attrs.get("atomic_bytes") or "colliding_bytes" in attrs:
        return attrs
    atomic = max(attrs["atomic_bytes"], 4 * attrs["points"])
    fewest = min(math.prod(shape) for shape, *_ in outputs)
    few = attrs["reduction"] > 1 and fewest <= FEW_PLACES
    return {**attrs, "atomic_bytes": atomic, "colliding_bytes": atomic if few else 0}


def kernels(folder: Path = FOLDER) -> list[FusedKernel]:
    """All fused kernels: those of steps, equal ones of a step once, and those of functions."""
    return [*_of_steps(folder), *_of_functions(folder)]


def _of_steps(folder: Path) -> Iterator[FusedKernel]:
    for row in steps(folder):
        times: dict[str, list[float]] = {}
        for kernel in row["compiled"]["kernels"]:
            times.setdefault(kernel["name"], []).append(kernel["us"] * 1e-6)
        for name, each in times.items():
            op = op_of(row["ops"][name]) if name in row["ops"] else None
            if op is not None and op.name in FUSED:
                mean_s = sum(each) / len(each)
                yield FusedKernel(row["family"], row["step"], op, mean_s, len(each), name)


def _of_functions(folder: Path) -> Iterator[FusedKernel]:
    for row in lines("kernels", folder):
        for kernel in row["kernels"]:
            op = op_of(kernel["op"])
            if op is not None and op.name in FUSED:
                source = f"bundle {row['bundle']}"
                yield FusedKernel(SMALL, source, op, kernel["us"] * 1e-6, 1, kernel["name"])
