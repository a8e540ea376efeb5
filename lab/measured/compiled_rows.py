"""Published times of compiled steps on one GPU, each beside the eager time of the same step.

NeuSight measured BERT and GPT-2 in inference with torch.compile (torch 2.1). timm's tables mark
compiled rows (torch 2); the eager row of the same model, GPU, mode, precision and image size may
have another batch or layout, so times are compared per sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import wavecast
from lab.measured.public_steps import neusight, timm_steps
from lab.measured.public_steps.case import Case, MakeStep, Options
from lab.measured.tables import NEUSIGHT, read_rows

Row = Mapping[str, Any]


@dataclass(frozen=True)
class CompiledRow:
    """A step that was measured compiled; and eager, if there is such a row."""

    compiled: Case
    eager: Case | None

    @property
    def gain(self) -> float | None:
        """How many times as fast the compiled step was, per sample."""
        return None if self.eager is None else self.compiled.throughput / self.eager.throughput


def neusight_rows(folder: Path) -> Iterator[CompiledRow]:
    """NeuSight's compiled rows."""
    rows = list(neusight.measured_rows(folder))
    for row in rows:
        if row["fused"]:
            key = _neusight_key(row)
            plain = (other for other in rows if not other["fused"] and _neusight_key(other) == key)
            eager = next(plain, None)
            beside = None if eager is None else _neusight_case(eager)
            yield CompiledRow(_neusight_case(row), beside)


def _neusight_key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("gpu", "model", "mode", "seq_len", "batch"))


def _neusight_case(row: Row) -> Case:
    batch, sequence, compiled = int(row["batch"]), int(row["seq_len"]), bool(row["fused"])
    training, model, gpu = row["mode"] == "train", row["model"], NEUSIGHT[row["gpu"]]
    return _case(
        "neusight",
        gpu,
        model,
        neusight.MODELS[model].kind,
        "fp32",
        batch,
        "",
        row["e2e_ms"] * 1e-3,
        partial(neusight.make_named, model, batch, sequence, training, compiled),
        (("sequence", sequence), ("mode", row["mode"])),
        compiled,
        "torch 2.1",
    )


def timm_rows(folder: Path) -> Iterator[CompiledRow]:
    """timm's compiled rows, of training and inference."""
    for mode, file in (("train", "timm_train.parquet"), ("infer", "timm_infer.parquet")):
        rows = read_rows(folder / file)
        eager: dict[tuple[Any, ...], list[Row]] = {}
        for row in rows:
            if not row["compiled"]:
                eager.setdefault(_timm_key(row), []).append(row)
        for row in rows:
            if row["compiled"]:
                beside = eager.get(_timm_key(row), [])
                # The same layout, if there is one, and the nearest version of torch.
                beside = sorted(beside, key=lambda other: _distance(row, other))
                plain = _timm_case(mode, beside[0]) if beside else None
                yield CompiledRow(_timm_case(mode, row), plain)


def _timm_key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("gpu", "model", "precision", "img_size"))


def _distance(row: Row, other: Row) -> tuple[bool, bool, int]:
    return (
        row["layout"] != other["layout"],
        row["torch"] != other["torch"],
        abs(int(row["batch"]) - int(other["batch"])),
    )


def _timm_case(mode: str, row: Row) -> Case:
    model, batch, image = row["model"], int(row["batch"]), int(row["img_size"])
    layout, precision, compiled = row["layout"], row["precision"], bool(row["compiled"])
    make = timm_steps.make_step if mode == "train" else timm_steps.make_inference
    return _case(
        f"timm {mode}",
        wavecast.device(row["gpu"]).id,
        model,
        row["family"],
        precision,
        batch,
        layout,
        row["step_ms"] * 1e-3,
        partial(make, model, batch, image, layout, precision, compiled),
        (("image", image), ("tuned", 1)),
        compiled,
        f"torch {row['torch']}",
    )


def _case(
    source: str,
    gpu: str,
    model: str,
    family: str,
    precision: str,
    batch: int,
    layout: str,
    measured_s: float,
    make_step: MakeStep,
    options: Options,
    compiled: bool,
    software: str,
) -> Case:
    """A case whose trace is its GPU's own if it is compiled: kernels depend on the GPU."""
    own: Options = (("compiled", 1), ("gpu", gpu)) if compiled else ()
    return Case(
        set=f"{source} {'compiled' if compiled else 'eager'}",
        gpu=gpu,
        model=model,
        family=family,
        precision=precision,
        batch=batch,
        layout=layout,
        measured_s=measured_s,
        make_step=make_step,
        options=(*options, *own),
        software=software,
    )
