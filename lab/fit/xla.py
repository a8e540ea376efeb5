"""Fit the time of XLA's fused kernels (JAX), measured on our H200.

    python -m lab fit xla

Needs only measurements/h200/jax. Writes src/wavecast/data/models/xla.toml (ranges, errors) and
xla.npz (constants, trees). The physics is that of Inductor's fused kernels, with constants of its
own, and errors and ranges are found in the same way (`lab/fit/fused.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from lab import needs
from lab.fit.fused import card, families_of, fit, left_out
from lab.measured.compiled import GPU, FusedKernel
from lab.measured.jax_steps import fused_kernels, kernels
from lab.places import MODELS
from wavecast.hardware.devices import device
from wavecast.ops.matmul import XLA_UNALIGNED
from wavecast.predictors.learned.autotuned import MARK, class_of
from wavecast.predictors.learned.file import stored
from wavecast.predictors.learned.predictor import Learned
from wavecast.traces.step import Op, Scalar, TensorSpec


def library_lines() -> list[str]:
    """The classes of library calls: how they differ from the models, and how many kernels run."""
    measured = [kernel for kernel in kernels() if class_of(kernel.op) is not None]
    compared = [_aligned(kernel.op) for kernel in measured]
    plain = [Op(op.name, op.inputs, op.outputs, _unmarked(op)) for op in compared]
    said = Learned.shipped().predict_all(plain, device(GPU))
    found: dict[str, list[tuple[float, float, float]]] = {}
    for kernel, op, estimate in zip(measured, compared, said, strict=True):
        name = class_of(op)
        if name is not None and estimate is not None:
            row = kernel.seconds / estimate.seconds, kernel.runs, kernel.runs * kernel.kernels
            found.setdefault(name, []).append(row)
    lines = ["", "# Library calls: the median logarithm of measured over predicted time, and the"]
    lines += ["# mean number of kernels of a call.", "[libraries]"]
    for name, values in sorted(found.items()):
        ratio, runs, launched = (np.array(column) for column in zip(*values, strict=True))
        lines.append(
            f'"{name}" = {{ log = {float(np.median(np.log(ratio))):.3f}, '
            f"kernels = {launched.sum() / runs.sum():.2f}, calls = {len(values)} }}"
        )
    return lines


def _unmarked(op: Op) -> tuple[tuple[str, Scalar], ...]:
    return tuple((name, value) for name, value in op.attrs if name != MARK)


def _aligned(op: Op) -> Op:
    """A matmul with odd rows as it is traced without a GPU: padded, and marked as unaligned."""
    if op.base not in ("aten.mm", "aten.bmm"):
        return op
    a, b = op.inputs
    odd = any(_row_length(t) % 8 for t in (a, b))
    m, k, n = (-(-size // 8) * 8 for size in (*a.shape[-2:], b.shape[-1]))
    if (m, k, n) == (*a.shape[-2:], b.shape[-1]):
        return op
    tensors = _resized(a, m, k), _resized(b, k, n)
    out = TensorSpec((*a.shape[:-2], m, n), op.outputs[0].dtype)
    return Op(XLA_UNALIGNED if odd else op.name, tensors, (out,), op.attrs)


def _row_length(t: TensorSpec) -> int:
    return t.shape[-1] if t.strides is None else t.shape[-2]


def _resized(t: TensorSpec, rows: int, columns: int) -> TensorSpec:
    shape = (*t.shape[:-2], rows, columns)
    if t.strides is None:
        return TensorSpec(shape, t.dtype)
    return TensorSpec(shape, t.dtype, (rows * columns, 1, rows)[-len(shape) :])


def _head(rows: Sequence[FusedKernel]) -> list[str]:
    return [
        "# The model of the fused kernels that XLA makes.",
        "# Written by lab/fit/xla.py.",
        f'fitted = "{datetime.now(UTC).date()}"',
        f'data = "{len(rows)} kernels of JAX steps of {len(families_of(rows))} families on our '
        'H200, jax 0.11.2 (measurements/h200/jax)"',
    ]


def main(given: Sequence[str] = ()) -> None:
    """Fit, write the files and print the card."""
    needs.parser(__doc__).parse_args(given)
    rows = fused_kernels()
    model, others_s = fit(rows, "xla"), left_out(rows, "xla")
    np.savez_compressed(MODELS / "xla.npz", **stored({"xla": model}))  # type: ignore[arg-type]
    path = MODELS / "xla.toml"
    lines = "\n".join(library_lines())
    path.write_text(f"{card(rows, others_s, 'xla', _head(rows))}{lines}\n", encoding="utf-8")
    print(path.read_text(encoding="utf-8"))
