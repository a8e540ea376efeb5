"""Fit the times of what XLA runs (JAX), measured on our H200.

    python -m lab fit xla

Needs only measurements/h200/jax. Writes src/wavecast/data/models/xla.toml (ranges, errors) and
xla.npz (constants, trees). The physics of fused kernels is that of Inductor's, with constants of
its own, and errors and ranges are found in the same way (`lab/fit/fused.py`). Library calls, and
what the tuner chose, are in `lab/fit/xla.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from lab import needs
from lab.fit.boosting import grow
from lab.fit.fused import MOST, PRIOR, TREES, card, families_of, fit, left_out, our_gpu
from lab.fit.learned import ONE_GPU_SPREAD, RANGE
from lab.fit.op_fit import constants
from lab.measured.compiled import GPU, FusedKernel
from lab.measured.jax_steps import FAMILY, JaxKernel, fitted, fused_kernels
from lab.places import MODELS
from wavecast import ops
from wavecast.hardware.devices import device
from wavecast.ops import Kind
from wavecast.ops.matmul import XLA_UNALIGNED
from wavecast.predictors.learned.autotuned import (
    CHOICE,
    CHOSEN,
    DEPTHWISE,
    MARK,
    choice_features,
    class_of,
    in_triton,
)
from wavecast.predictors.learned.batch import parts_of
from wavecast.predictors.learned.columns import Columns, columns_of
from wavecast.predictors.learned.convolutions import (
    TUNED_DEPTHWISE_PARAMETERS,
    has_depthwise_kernel,
    tuned_depthwise_s,
)
from wavecast.predictors.learned.gpus import Floats
from wavecast.predictors.learned.model import FEATURES, REACH, Forest, OpModel
from wavecast.predictors.learned.predictor import Learned, stored
from wavecast.predictors.learned.tiles import Theta
from wavecast.traces.step import Op, Scalar, TensorSpec


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
    rows, choice, depthwise = fused_kernels(), TunedMatmuls(fitted()), TunedDepthwise(fitted())
    model, others_s = fit(rows, "xla"), left_out(rows, "xla")
    arrays = stored({"xla": model, MODEL: depthwise.fit()})
    arrays |= {CHOICE + key: array for key, array in choice.forest().arrays().items()}
    np.savez_compressed(MODELS / "xla.npz", **arrays)  # type: ignore[arg-type]
    path = MODELS / "xla.toml"
    fused_card = card(rows, others_s, "xla", _head(rows))
    groups, families = fused_card.split("\n\n[families]")
    lines = [f"{groups}\n{depthwise.card()}\n\n[families]{families.rstrip()}"]
    path.write_text("\n".join([*lines, *choice.card(), *library_lines(), ""]), encoding="utf-8")
    print(path.read_text(encoding="utf-8"))


# What XLA's tuner chose on our H200: library calls by class, Triton or cuBLAS, depthwise kernels.
#


MODEL = "xla_depthwise"
MOST_KERNELS = 3
"""A depthwise kernel of cuDNN launches so many at most. Where XLA's tuner took more although there
is such a kernel, it chose badly; this is counted and not fitted."""


def _by_time(kernels: Sequence[JaxKernel]) -> Floats:
    """Weights: those that take long weigh more, by the square root of their time."""
    seconds = np.array([kernel.seconds * kernel.runs for kernel in kernels])
    weight: Floats = np.clip(np.sqrt(seconds / np.median(seconds)), 1 / MOST, MOST)
    return weight


class TunedMatmuls:
    """The matmuls of the fit: which of them XLA wrote in Triton, and what trees learn of that."""

    def __init__(self, kernels: Iterable[JaxKernel]) -> None:
        self.kernels = [kernel for kernel in kernels if _is_aligned(kernel.op)]
        self._features = np.array([choice_features(kernel.op) for kernel in self.kernels])
        self._signs = np.array([1.0 if in_triton(kernel.op) else -1.0 for kernel in self.kernels])
        self._weight = _by_time(self.kernels)
        self._families = np.array([FAMILY[kernel.step] for kernel in self.kernels])

    def forest(self, without: str = "") -> Forest:
        """Trees whose answer is above zero for Triton, fitted without a family."""
        rows = self._families != without
        target, weight = self._signs[rows], self._weight[rows]
        return grow(self._features[rows], target, weight, **TREES)

    def card(self) -> list[str]:
        """How many matmuls the trees choose rightly, each by trees without its family."""
        right = np.zeros(len(self.kernels), dtype=bool)
        for family in np.unique(self._families):
            out = self._families == family
            said = self.forest(str(family))(self._features[out])
            right[out] = (said > 0) == (self._signs[out] > 0)
        seconds = np.array([kernel.seconds * kernel.runs for kernel in self.kernels])
        triton = self._signs > 0

        def share(of: NDArray[np.bool_]) -> str:
            return f"{of.mean():.3f}, by_time = {seconds[of].sum() / seconds.sum():.3f}"

        return [
            "",
            "# Matmuls that XLA writes in Triton: their share, and the share that the trees choose",
            "# rightly, with the family of the step left out.",
            "[choice]",
            f"triton = {{ share = {share(triton)} }}",
            f"right = {{ share = {share(right)}, matmuls = {len(right)} }}",
        ]


def _is_aligned(op: Op) -> bool:
    """Whether an op is a matmul whose rows begin at even places: others are always in Triton."""
    return ops.kind(op) is Kind.MATMUL and not any(_row_length(t) % 8 for t in op.inputs[-2:])


class TunedDepthwise:
    """The depthwise convolutions of the fit, and their model."""

    def __init__(self, kernels: Iterable[JaxKernel]) -> None:
        all_of_them = [kernel for kernel in kernels if _model_of(kernel.op) == MODEL]
        self.kernels = [kernel for kernel in all_of_them if not _is_odd(kernel)]
        self.odd = len(all_of_them) - len(self.kernels)
        self._columns = columns_of([parts_of(kernel.op)[0].row for kernel in self.kernels])
        self._seconds = np.array([kernel.seconds for kernel in self.kernels])
        self._weight = _by_time(self.kernels)

    def _some(self, rows: NDArray[np.bool_]) -> Columns:
        return {name: values[rows] for name, values in self._columns.items()}

    def fit(self, without: str = "") -> OpModel:
        """The model, fitted without a step."""
        rows = np.array([kernel.step != without for kernel in self.kernels])
        gpu, part, seconds, weight = our_gpu(), self._some(rows), self._seconds, self._weight
        seconds, weight = seconds[rows], weight[rows]

        def missed(theta: Theta) -> Floats:
            said = tuned_depthwise_s(part, gpu, theta)
            errors: Floats = np.sqrt(weight) * np.log(said / seconds)
            return errors

        theta = constants(TUNED_DEPTHWISE_PARAMETERS, missed, PRIOR)
        left = np.log(seconds / tuned_depthwise_s(part, gpu, theta))
        features = FEATURES[MODEL](part, gpu)
        return OpModel(MODEL, theta, grow(features, np.clip(left, -REACH, REACH), weight, **TREES))

    def card(self) -> str:
        """The line of the group of ops, each predicted by a fit without its step."""
        said = np.zeros(len(self.kernels))
        for step in {kernel.step for kernel in self.kernels}:
            out = np.array([kernel.step == step for kernel in self.kernels])
            said[out] = self.fit(step).seconds(self._some(out), our_gpu())
        off = np.abs(said / self._seconds - 1)
        low, high = np.quantile(self._seconds / said, RANGE)
        by_time = (off * self._seconds).sum() / self._seconds.sum()
        return (
            f'"{MODEL}" = {{ low = {low / ONE_GPU_SPREAD:.3f}, '
            f"high = {high * ONE_GPU_SPREAD:.3f}, mean = {off.mean():.3f}, "
            f"median = {np.median(off):.3f}, by_time = {by_time:.3f}, ops = {len(off)}, "
            f"odd = {self.odd}, gpus = 1, left_out = true }}"
        )


def _model_of(op: Op) -> str:
    return parts_of(op)[0].model if ops.kind(op) is Kind.CONVOLUTION else ""


def _is_odd(kernel: JaxKernel) -> bool:
    row = parts_of(kernel.op)[0].row._asdict()
    has_kernel = has_depthwise_kernel(row["computes"], row["item_bytes"], row["taps"])
    return bool(has_kernel) and kernel.kernels > MOST_KERNELS


def library_lines() -> list[str]:
    """The classes of library calls: how they differ from the models, and how many kernels run."""
    measured = [kernel for kernel in fitted() if class_of(kernel.op) is not None]
    compared = [_aligned(kernel.op) for kernel in measured]
    plain = [Op(op.name, op.inputs, op.outputs, _unmarked(op)) for op in compared]
    said = Learned.shipped().predict_all(plain, device(GPU))
    by_name: dict[str, list[tuple[float, float, float]]] = {}
    for kernel, op, estimate in zip(measured, compared, said, strict=True):
        name = class_of(op)
        if name is not None and estimate is not None:
            ratio = 1.0 if name.startswith(DEPTHWISE) else kernel.seconds / estimate.seconds
            runs = 0 if name.startswith(DEPTHWISE) and _is_odd(kernel) else kernel.runs
            row = ratio, runs, runs * kernel.kernels
            by_name.setdefault(name, []).append(row)
    lines = ["", "# Library calls: the median logarithm of measured over predicted time, and the"]
    lines += ["# mean number of kernels of a call.", "[libraries]"]
    for name, values in sorted(by_name.items()):
        ratios, counts, launched = (np.array(column) for column in zip(*values, strict=True))
        lines.append(
            f'"{name}" = {{ log = {float(np.median(np.log(ratios))):.3f}, '
            f"kernels = {launched.sum() / counts.sum():.2f}, calls = {len(values)} }}"
        )
    return lines


def _unmarked(op: Op) -> tuple[tuple[str, Scalar], ...]:
    return tuple((name, value) for name, value in op.attrs if name not in (MARK, CHOSEN))


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
