"""JAX training steps, measured on our H200: iterations, memory, and kernels by HLO instruction."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from lab.measured.compiled import FusedKernel
from lab.places import H200
from lab.steps.jax_steps import HOST, step_named
from wavecast import ops
from wavecast.frameworks.jax.assembly import Schedule, scheduled
from wavecast.frameworks.jax.hlo import read_hlo
from wavecast.ops import Kind
from wavecast.ops.fused import XLA_FUSED
from wavecast.predictors.learned.autotuned import CHOSEN
from wavecast.traces.step import Op

FOLDER = H200 / "jax"
Row = dict[str, Any]


class JaxKernel(NamedTuple):
    """An instruction of a step, as an op, with its measured time."""

    step: str
    instruction: str
    op: Op
    seconds: float
    """The mean time of all kernels of one run of the instruction."""
    runs: int
    kernels: float
    """Kernels of one run."""


@cache
def steps(group: str = "fit") -> dict[str, Row]:
    """The measured steps of a group, by name; those that failed are left out."""
    found = json.loads(gzip.decompress((FOLDER / f"{group}-steps.json.gz").read_bytes()))
    return {row["name"]: row for row in found if "error" not in row}


@cache
def hlo_texts(group: str = "fit") -> dict[str, str]:
    """The scheduled HLO of the measured steps, as XLA compiled them on the GPU."""
    texts: dict[str, str] = json.loads(
        gzip.decompress((FOLDER / f"{group}-hlo.json.gz").read_bytes())
    )
    return texts


@cache
def schedule_of(name: str, group: str = "fit") -> Schedule:
    """The schedule of a measured step, as the GPU ran it."""
    return scheduled(read_hlo(hlo_texts(group)[name]))


def kernels(group: str = "fit") -> Iterator[JaxKernel]:
    """The instructions of all steps of a group that ran kernels."""
    for name, row in steps(group).items():
        yield from kernels_of(name, row, schedule_of(name, group))


def kernels_of(name: str, row: Row, schedule: Schedule) -> Iterator[JaxKernel]:
    """The instructions of a step that ran kernels; those that no op describes are left out."""
    runs = schedule.runs()
    times: dict[str, list[float]] = defaultdict(list)
    for _, instruction, microseconds, *_ in row["nograph"]["kernels"]:
        times[instruction].append(microseconds * 1e-6)
    for instruction, each in times.items():
        if instruction in runs:
            op, count = runs[instruction]
            op = _chosen(op)
            yield JaxKernel(name, instruction, op, sum(each) / count, count, len(each) / count)


def _chosen(op: Op) -> Op:
    """A matmul of cuBLAS says that it was chosen: the tuner ran where the step was measured."""
    if ops.kind(op) is not Kind.MATMUL or op.attr(CHOSEN, None) is not None:
        return op
    return replace(op, attrs=(*op.attrs, (CHOSEN, False)))


def fitted() -> Iterator[JaxKernel]:
    """The instructions that are fitted: of the steps of "fit" and of "more", but for the host's."""
    for group in ("fit", "more"):
        for kernel in kernels(group):
            if step_named(kernel.step).family != HOST:
                yield kernel


def fused_kernels() -> list[FusedKernel]:
    """The fused kernels that are fitted; equal ones of a step once."""
    found: dict[tuple[str, Op], list[JaxKernel]] = defaultdict(list)
    for kernel in fitted():
        if kernel.op.name in XLA_FUSED:
            found[kernel.step, kernel.op].append(kernel)
    return [
        FusedKernel(
            step_named(step).family,
            step,
            op,
            sum(one.seconds * one.runs for one in each) / sum(one.runs for one in each),
            sum(one.runs for one in each),
            each[0].instruction,
        )
        for (step, op), each in found.items()
    ]
