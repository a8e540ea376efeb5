"""Library calls in XLA, which tries algorithms and its own Triton kernels and takes the fastest.

The models of matmuls and convolutions were fitted on what torch calls. `lab/fit/xla.py` compares
them with what XLA ran on our GPU, class by class. Which matmuls XLA writes in Triton was learned
from what it chose there; other GPUs are assumed to choose alike.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache

import numpy as np

from wavecast import ops
from wavecast.files import shipped, shipped_toml
from wavecast.ops import Kind, matmul
from wavecast.ops.registry import integers, item_bytes, reading
from wavecast.predictors.learned.columns import FORWARD, OF_WEIGHT
from wavecast.predictors.learned.convolutions import has_depthwise_kernel
from wavecast.predictors.learned.gpus import Floats
from wavecast.predictors.learned.model import Forest
from wavecast.traces.step import Op

MARK = "autotuned"
"""The attribute of ops that XLA tuned."""
CHOSEN = "triton"
"""The attribute of matmuls that says what XLA chose, where its tuner ran: True for Triton."""
CHOICE = "choice/"
"""The prefix of the arrays of the trees that choose, in the file of the fit."""
DEPTHWISE = "depthwise_2d"
"""How classes of depthwise convolutions of images begin, which have a model of their own."""
_LONG_ROW = 4096
"""Rows of this length and more are long. A Triton matmul whose rows begin at odd places loads them
element by element, which takes most of its time where they are long, and more where they are summed
over. Rows of 392 and of 50,257 elements were measured."""
_LONG_WINDOW = 32
"""cuDNN's fast kernels have windows of up to so many places a dimension."""


def class_of(op: Op) -> str | None:
    """The class of a library call that XLA tuned: "matmul/float32"; None for other ops."""
    return reading(_class_of, None, op)


def _class_of(op: Op) -> str | None:
    if not op.attr(MARK, False) or not op.inputs:
        return None
    dtype = op.inputs[-1].dtype
    match ops.kind(op):
        case Kind.MATMUL if op.base == matmul.XLA_UNALIGNED:
            return f"{_rows(op)}unaligned/{dtype}"
        case Kind.MATMUL:
            return f"{'triton' if in_triton(op) else 'matmul'}/{dtype}"
        case Kind.CONVOLUTION:
            return f"{_convolution(op)}/{dtype}"
        case Kind.ATTENTION:
            return "attention_backward" if "backward" in op.base else "attention"
    return None


def _rows(op: Op) -> str:
    """Whether the longest rows of the operands are long and summed over, or there is a batch."""
    lengths = []
    for tensor, summed in zip(op.inputs[-2:], (-1, -2), strict=True):
        fastest = -1 if tensor.strides is None else -2
        lengths.append((tensor.shape[fastest], fastest == summed))
    length, is_summed = max(lengths)
    if length < _LONG_ROW:
        return "batched " if len(op.inputs[-1].shape) > 2 else ""
    return "long summed " if is_summed else "long "


def _convolution(op: Op) -> str:
    """The class of a convolution: cuDNN has kernels of their own for some."""
    wants = integers(op, "output_mask")
    gradient = "" if not wants else ("_weight" if wants[1] else "_image")
    weight = op.inputs[-1 if wants else 1].shape
    if ops.is_depthwise(op) and len(weight) == 4:
        computes = OF_WEIGHT if gradient == "_weight" else FORWARD
        own = has_depthwise_kernel(computes, item_bytes(op.inputs[0]), math.prod(weight[2:]))
        return f"{DEPTHWISE}{'' if own else '_large_window'}{gradient}"
    if ops.is_depthwise(op):
        return f"depthwise_1d{gradient}"
    is_long = max(weight[2:], default=1) > _LONG_WINDOW
    return f"convolution{'_long_window' if is_long else ''}{gradient}"


@lru_cache(maxsize=1 << 14)
def in_triton(op: Op) -> bool:
    """Whether XLA writes a matmul in Triton, rather than calling cuBLAS."""
    chosen = op.attr(CHOSEN, None)
    if chosen is not None:
        return bool(chosen)
    return bool(_choice()(choice_features(op)[None])[0] > 0)


@cache
def _choice() -> Forest:
    with np.load(shipped("models/xla.npz")) as arrays:
        of_choice = {k.removeprefix(CHOICE): v for k, v in arrays.items() if k.startswith(CHOICE)}
    return Forest.of(of_choice)


def choice_features(op: Op) -> Floats:
    """What the choice between cuBLAS and Triton is learned from: sizes, layouts and type.

    What is added to the result, and its type, are left out: they are known of a kernel that was
    chosen, and differ before.
    """
    a, b = op.inputs[-2:]
    batch, (m, k), n = math.prod(a.shape[:-2]), a.shape[-2:], b.shape[-1]
    item = item_bytes(a)
    moved = batch * (m * k + k * n + m * n) * item
    tiles = batch * math.ceil(m / 128) * math.ceil(n / 128)
    sizes = batch, m, n, k, min(m, n), max(m, n), tiles, 2 * batch * m * n * k / max(moved, 1)
    logs = [math.log2(max(size, 1)) for size in sizes]
    by_columns = [float(tensor.strides is not None) for tensor in (a, b)]
    return np.array([*logs, *by_columns, item], dtype=np.float64)


@cache
def _classes() -> dict[str, dict[str, float]]:
    classes: dict[str, dict[str, float]] = shipped_toml("models/xla.toml")["libraries"]
    return classes


def term_of(op: Op) -> float:
    """The logarithm of how much longer a tuned call takes than the models say; 0 for others."""
    name = class_of(op)
    return 0.0 if name is None else _classes().get(name, {}).get("log", 0.0)


def kernels_of(op: Op) -> float:
    """How many kernels one run of an op launches on average, copies and fills included."""
    name = class_of(op)
    return float(ops.kernels(op)) if name is None else _classes().get(name, {}).get("kernels", 1.0)
