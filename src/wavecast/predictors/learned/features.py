"""The features of the learned trees: shapes and ratios, never a number that identifies a GPU.

No feature depends on the GPU's FLOP/s or bandwidth, so a GPU that is better in these is never
predicted slower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavecast.predictors.learned.gpus import Floats, GpuFacts
from wavecast.predictors.learned.physics.columns import Columns
from wavecast.predictors.learned.physics.convolutions import width_of_groups


def _log(values: Floats) -> Floats:
    logarithms: Floats = np.log2(np.maximum(values, 2.0**-20))
    return logarithms


def _matrix(*columns: Any) -> Floats:
    matrix: Floats = np.stack(columns, axis=1).astype(np.float64)
    return matrix


BENCHMARKED = 0.4
"""The value of the feature "cuDNN searched for the fastest algorithm". It is well below 1, so that
rows without a search are close to rows with one, and a chip's trees count for both
(`Forest.__call__`). On many chips only convolutions after a search were measured."""


def product(columns: Columns, gpu: GpuFacts) -> Floats:
    """Features of a matmul: its sides, waves of 128 x 128 tiles, how full they are, L2's share."""
    batch, m, n, k = (columns[name] for name in ("batch", "m", "n", "k"))
    tiles = batch * np.ceil(m / 128) * np.ceil(n / 128)
    full = m * n / (np.ceil(m / 128) * np.ceil(n / 128) * 128**2)
    return _matrix(
        _log(batch),
        _log(m),
        _log(n),
        _log(k),
        _log(np.minimum(m, n)),
        _log(tiles / gpu.sm),
        full,
        _log(columns["moved_bytes"] / gpu.l2_bytes),
        columns["alignment"],
        k % 16,
        columns["a_by_columns"],
        columns["b_by_columns"],
        gpu.on_tensor_cores(columns["unit"].astype(np.int64)) + 0.0,
        columns["item_bytes"],
    )


def convolution(columns: Columns, gpu: GpuFacts) -> Floats:
    """Features of a convolution: what cuDNN chooses its algorithm by, and the matmul's shape.

    One says whether cuDNN has all its float32 algorithms for the GPU.
    """
    m, n = columns["m"], columns["n"]
    tiles = columns["groups"] * np.ceil(m / 128) * np.ceil(n / 128)
    nbytes = columns["image_bytes"] + columns["out_bytes"] + columns["weight_bytes"]
    return _matrix(
        columns["computes"],
        _log(columns["groups"]),
        _log(m),
        _log(n),
        _log(columns["k"]),
        _log(columns["taps"]),
        _log(columns["stride_area"]),
        _log(columns["channels"]),
        _log(columns["filters"]),
        _log(columns["out_points"]),
        _log(columns["images"]),
        columns["channels"] % 8,
        columns["filters"] % 8,
        _log(tiles / gpu.sm),
        _log(nbytes / gpu.l2_bytes),
        gpu.on_tensor_cores(columns["unit"].astype(np.int64)) + 0.0,
        columns["item_bytes"],
        columns["converted"],
        np.zeros(len(m)) + gpu.winograd,
        columns["channels_last"],
        BENCHMARKED * columns["benchmarked"],
        columns["dilated"],
        columns["by_torch"],
        columns["bfloat16"],
        columns["tf32"],
        columns["alignment"],
        columns["groups"] % 8,
        _log(width_of_groups(columns) / columns["channels"]),
        _log(width_of_groups(columns) / columns["filters"]),
    )


def attention(columns: Columns, gpu: GpuFacts) -> Floats:
    """Features of attention: lengths, widths, waves of blocks, and which kernel runs."""
    blocks = columns["sequences"] * np.ceil(columns["q_len"] / 128)
    return _matrix(
        _log(columns["sequences"]),
        _log(columns["q_len"]),
        _log(columns["k_len"]),
        columns["head_width"],
        columns["attended_share"] < 0.99,
        _log(blocks / gpu.sm),
        _log(columns["moved_bytes"] / gpu.l2_bytes),
        columns["backward"],
        columns["efficient"],
        columns["cudnn"],
        columns["biased"],
        columns["masked"],
        columns["dropout"],
        columns["of_mask"],
        _log(columns["shared_keys"]),
    )


def recurrent(columns: Columns, gpu: GpuFacts) -> Floats:
    """Features of a recurrent layer: its sizes, its length, and whether weights fit on the SMs."""
    weights = columns["gates"] * columns["hidden"] ** 2 * columns["item_bytes"]
    return _matrix(
        _log(columns["steps"]),
        _log(columns["batch"]),
        _log(columns["inputs"]),
        _log(columns["hidden"]),
        columns["gates"],
        columns["layers"],
        columns["directions"],
        columns["backward"],
        _log(weights / gpu.sm),
        _log(weights / gpu.l2_bytes),
        columns["batch"] % 8,
        columns["hidden"] % 8,
        columns["item_bytes"],
    )


def stream(columns: Columns, gpu: GpuFacts) -> Floats:
    """Features of a pass over memory: bytes relative to L2 and SMs, row width, kind of access."""
    moved = columns["read_bytes"] + columns["written_bytes"]
    rows = columns["elements"] / np.maximum(columns["row_width"], 1.0)
    return _matrix(
        _log(moved / gpu.l2_bytes),
        _log(moved / gpu.sm),
        _log(columns["reread_bytes"] / np.maximum(moved, 1.0)),
        _log(columns["flops"] / np.maximum(columns["elements"], 1.0)),
        _log(columns["row_width"]),
        _log(rows / gpu.sm),
        columns["item_bytes"],
        columns["reordered_bytes"] / np.maximum(moved, 1.0),
        _log(moved / np.maximum(columns["elements"], 1.0)),
        columns["by_row"],
        _log(columns["tensors"]),
        _log(columns["channel_blocks"] / gpu.sm),
        columns["channels_last"],
        columns["kind"],
        columns["backward"],
        columns["access"],
        _log(columns["kernels"]),
        _log(columns["blocks"] / gpu.sm),
        _log(columns["serial_elements"]),
        _log(columns["loop_blocks"] / gpu.sm),
        _log(columns["loop_terms"]),
    )


def concatenation(columns: Columns, gpu: GpuFacts) -> Floats:
    """Features of a `cat`: how inputs are stored, how many items each SM moves, how unequal."""
    return _matrix(
        columns["inputs"],
        _log(columns["items"] / gpu.sm),
        columns["largest_items"] / np.maximum(columns["items"], 1.0),
    )


def fused(columns: Columns, gpu: GpuFacts) -> Floats:
    """Features of a fused kernel: bytes relative to L2 and SMs, its loops, and kinds of access."""
    moved = np.maximum(columns["read_bytes"] + columns["written_bytes"], 1.0)
    work = np.maximum(columns["points"] * columns["reduction"], 1.0)
    return _matrix(
        _log(moved / gpu.l2_bytes),
        _log(work / gpu.sm),
        _log(columns["points"] / gpu.sm),
        _log(columns["reduction"]),
        _log(moved / work),
        _log(columns["loads"] / work),
        _log(columns["flops"] / work),
        columns["random"] / work,
        columns["strided_bytes"] / moved,
        columns["indirect_bytes"] / moved,
        columns["again_bytes"] / moved,
        columns["atomic_adds"] / work,
        columns["windows"] / work,
        columns["online"] / work,
        columns["written_bytes"] / moved,
        _log(columns["tensors"]),
        columns["shape"],
        columns["inner"],
        columns["mixed"],
        columns["buffers"],
    )


FEATURES: Mapping[str, Callable[[Columns, GpuFacts], Floats]] = {
    "product": product,
    "grouped": product,
    "convolution": convolution,
    "depthwise": convolution,
    "attention": attention,
    "recurrent": recurrent,
    "stream": stream,
    "concatenation": concatenation,
    "fused": fused,
    "xla": fused,
    "xla_depthwise": convolution,
}


def in_groups(name: str, features: Floats) -> NDArray[np.bool_]:
    """Whether each row is a convolution in groups that is not depthwise."""
    if name != "convolution":
        return np.zeros(len(features), bool)
    grouped: NDArray[np.bool_] = features[:, 1] > 0.0
    return grouped


def filter_families(name: str, features: Floats) -> Floats:
    """The filter family of each row; a chip's own trees are trusted only for families they saw.

    A convolution's family is the number of points of its filter and its stride, both rounded to
    half a power of two, and whether it has groups. Rows of other models have no family: the result
    has no columns.
    """
    if name != "convolution":
        return features[:, :0]
    groups, taps, strides = features[:, 1], features[:, 5], features[:, 6]
    return _matrix(np.round(2.0 * taps) / 2.0, np.round(2.0 * strides) / 2.0, groups > 0.0)
