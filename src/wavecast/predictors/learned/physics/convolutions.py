"""The time of convolutions: implicit matmuls, Winograd's algorithm, conversions of layout."""

from __future__ import annotations

from typing import Any

import numpy as np

from wavecast.ops import Unit
from wavecast.predictors.learned.gpus import CODES, Floats, GpuFacts
from wavecast.predictors.learned.physics.columns import FORWARD, OF_IMAGE, OF_WEIGHT, Columns
from wavecast.predictors.learned.physics.tiles import (
    Bounds,
    Theta,
    TimeLimits,
    class_parameters,
    from_memory,
    picked,
    sustained,
    tiled_s,
)

WINOGRAD_GAIN = 2.25
"""F(2x2, 3x3) needs 16 multiplications instead of 36 (Lavin and Gray, CVPR 2016). No answer is
faster than the direct FLOPs' time by more than this factor."""
PADDED_CHANNELS = 8.0
"""cuDNN pads channels to a multiple of this for tensor cores."""

CONVOLUTION_PARAMETERS: dict[str, Bounds] = class_parameters() | {
    "cores.of_image": (0.9, 0.3, 1.5),  # rate of the image's gradient, relative to the forward pass
    "cores.of_weight": (0.8, 0.3, 1.5),
    "tensor.of_image": (0.9, 0.3, 1.5),
    "tensor.of_weight": (0.8, 0.3, 1.5),
    "cores.strided": (0.2, 0.0, 1.0),  # loss in a strided image gradient: a power
    "tensor.strided": (0.2, 0.0, 1.0),
    "winograd": (0.7, 0.3, 1.0),  # efficiency of its matmuls, relative to direct ones
    "transforms": (1.0, 0.0, 8.0),  # its traffic for transformed tiles, relative to the tensors
    "convert": (0.6, 0.2, 1.0),  # share of the bandwidth when the layout is converted
    "convert_us": (4.0, 1.0, 15.0),  # microseconds of the kernels that convert
}
FEWEST_CHANNELS = 4.0
"""The fewest channels of a group for which tensor cores have kernels."""
GROUPS_WIDTH = 64.0
"""Channels that such a kernel takes at once: of several groups, where they are narrower."""
WIDENING_CLOCKS = 1.9
"""Clocks of an SM for each element that is copied to wider groups (tensorTransformGeneric). These
and what follows were read off 450 grouped convolutions on our H200, cuDNN 9.19."""
WIDEST_COPIED = 48.0
"""The most channels of a group that are copied so; with more, each group is copied by itself."""
SLICING_CLOCKS, SLICED_CLOCKS = 1.1, 14_000.0
"""Clocks of an SM for each element then, and clocks of each group's kernels, which follow."""
FEW_WEIGHT_CLOCKS = 7.0
"""Clocks for each point of all outputs, in the gradient of filters of four channels."""
LAUNCH_CLOCKS, LAUNCH_TAP_CLOCKS = 5_000.0, 85.0
"""Clocks of a kernel for one group, and for each tap of its filters, where groups follow."""
ALONE_CLOCKS, ALONE_TAP_CLOCKS = 3.5, 0.5
"""Clocks of an SM for each output of such kernels, and for each tap of it."""
LONG = 48.0
"""Points of a filter from which cuDNN may compute 16-bit convolutions in groups one group after the
other, on plain cores. Which ones was read off 224 passes over sequences on our H200, cuDNN 9.19."""
FORWARD_CLOCKS = 257.0
"""Clocks for each term of an output's sum: few blocks work, each on sums of its own."""
IMAGE_CLOCKS = {"bf16": 39.0, "fp16": 2.6}
"""Clocks of an SM for each point of the images and term of its sum, in the image's gradient."""
FORWARD_ROWS, IMAGE_ROWS = 8400.0, {"bf16": 20_000.0, "fp16": 12_500.0}
"""Points of all images from which tensor cores are used in each of these passes."""


def convolution_limits(columns: Columns, gpu: GpuFacts, theta: Theta) -> TimeLimits:
    """The limits of convolutions: matmuls on the chip, or groups that follow each other."""
    unit = columns["unit"].astype(np.int64)
    tensor, computes = gpu.on_tensor_cores(unit), columns["computes"]
    rate = sustained(unit, gpu, picked(theta, tensor, "picojoules"))
    rate = rate * np.where(computes == OF_IMAGE, picked(theta, tensor, "of_image"), 1.0)
    rate = rate * np.where(computes == OF_WEIGHT, picked(theta, tensor, "of_weight"), 1.0)
    lost = columns["stride_area"] ** -picked(theta, tensor, "strided")
    rate = rate * np.where(computes == OF_IMAGE, lost, 1.0)
    nbytes = columns["image_bytes"] + columns["out_bytes"] + columns["weight_bytes"]
    dram = from_memory(nbytes, gpu, picked(theta, tensor, "resident"))
    sizes = _padded(columns, tensor)
    direct = tiled_s(sizes, columns["item_bytes"], dram, rate, tensor, gpu, theta)
    direct = _winograd(columns, gpu, theta, direct, dram, rate, tensor)
    # Tensor cores need channels last, plain cores need them first.
    converted = np.where(tensor, columns["converted"], columns["channels_last"])
    moved = 2.0 * (columns["image_bytes"] * _fill(columns["channels"]) + columns["out_bytes"])
    convert_s = moved / (gpu.bytes_per_s * theta["convert"]) + theta["convert_us"] * 1e-6
    floor_s = picked(theta, tensor, "floor_us") * 1e-6
    seconds: Floats = floor_s + direct + np.where(converted > 0, convert_s, 0.0)
    alone_s = np.maximum(_alone_s(columns, gpu), _group_by_group(columns, gpu))
    apart_s = np.where(alone_s > 0, alone_s, np.where(tensor, _in_groups_s(columns, gpu), 0.0))
    return TimeLimits(apart_s, 0.0, np.where(alone_s > 0, 0.0, seconds))


def _alone_s(columns: Columns, gpu: GpuFacts) -> Floats:
    """Seconds of forward passes in channels-last whose groups are too narrow for tensor cores."""
    narrow = (columns["groups"] > 1) & (columns["item_bytes"] == 2) & (columns["channels_last"] > 0)
    narrow &= (columns["computes"] == FORWARD) & (columns["channels"] < FEWEST_CHANNELS)
    seconds: Floats = np.where(narrow, one_by_one_s(columns, gpu), 0.0)
    return seconds


def one_by_one_s(columns: Columns, gpu: GpuFacts) -> Floats:
    """Seconds of a forward pass in a kernel for each group, which cuDNN runs on plain cores."""
    taps, outputs = columns["taps"], columns["out_bytes"] / columns["item_bytes"]
    launches = columns["groups"] * (LAUNCH_CLOCKS + LAUNCH_TAP_CLOCKS * taps)
    work = outputs * (ALONE_CLOCKS + ALONE_TAP_CLOCKS * taps)
    seconds: Floats = (launches + work / gpu.sm) / gpu.clock_hz
    return seconds


def width_of_groups(columns: Columns) -> Floats:
    """Channels and filters of a group for which tensor cores have kernels: a power of two."""
    widest = np.maximum(np.maximum(columns["channels"], columns["filters"]), FEWEST_CHANNELS)
    width: Floats = 2.0 ** np.ceil(np.log2(widest))
    return width


def _in_groups_s(columns: Columns, gpu: GpuFacts) -> Floats:
    """Seconds that 16-bit convolutions in groups in channels-last take besides their matmuls.

    cuDNN copies images whose groups have no such width: to others that have or, of more channels,
    each group by itself. In gradients of filters of four channels, a block goes through all points.
    """
    computes, width = columns["computes"], width_of_groups(columns)
    grouped = (
        (columns["groups"] > 1) & (columns["item_bytes"] == 2) & (columns["channels_last"] > 0)
    )
    image, out = (columns[f"{name}_bytes"] / columns["item_bytes"] for name in ("image", "out"))
    channels, filters = columns["channels"], columns["filters"]
    widened = np.where(width > channels, image * width / channels, 0.0)
    widened = widened + np.where(width > filters, out * width / filters, 0.0)
    sliced = np.where(computes == OF_IMAGE, 0.0, image) + np.where(computes == FORWARD, 0.0, out)
    wide, even = (
        np.maximum(channels, filters) > WIDEST_COPIED,
        (width == channels) & (width == filters),
    )
    few = (computes == OF_WEIGHT) & even & (width == FEWEST_CHANNELS)
    clocks = np.where(even, 0.0, widened * WIDENING_CLOCKS)
    clocks = np.where(wide & ~even, sliced * SLICING_CLOCKS, clocks) / gpu.sm
    launches = np.where(wide & ~even, columns["groups"] * SLICED_CLOCKS, 0.0)
    launches = np.where(few, columns["k"] * FEW_WEIGHT_CLOCKS, launches)
    seconds: Floats = np.where(grouped, np.maximum(clocks, launches) / gpu.clock_hz, 0.0)
    return seconds


def _group_by_group(columns: Columns, gpu: GpuFacts) -> Floats:
    """Seconds of convolutions with long filters whose groups follow each other; 0 for others.

    Speech networks give positions by such convolutions (wav2vec 2.0, HuBERT).
    """
    computes, n, m = columns["computes"], columns["n"], columns["m"]
    long = (columns["groups"] > 1) & (columns["item_bytes"] == 2) & (columns["taps"] >= LONG)
    long &= columns["of_sequences"] > 0  # a filter of 7 x 7 points in groups runs as others do
    odd = long & ((n > 64) | ((n > 32) & (n < 64)))
    forward = odd & (computes == FORWARD) & (m < FORWARD_ROWS)
    forward &= (n > 64) | (columns["taps"] >= 2 * LONG)
    forward &= columns["taps"] <= columns["out_points"]
    bf16 = columns["unit"] == CODES[Unit.BF16_TENSOR]
    image = long & (computes == OF_IMAGE)
    image &= m < np.where(bf16, IMAGE_ROWS["bf16"], IMAGE_ROWS["fp16"])
    image &= (n > 64) | ((n == 64) & bf16 & (columns["groups"] <= 8))
    terms = columns["groups"] * columns["k"]
    clocks = np.where(bf16, IMAGE_CLOCKS["bf16"], IMAGE_CLOCKS["fp16"])
    seconds: Floats = np.where(forward, terms * FORWARD_CLOCKS / gpu.clock_hz, 0.0)
    return np.where(image, terms * m * clocks / (gpu.sm * gpu.clock_hz), seconds)


def _fill(channels: Floats) -> Floats:
    """The factor by which padding increases the channels."""
    factors: Floats = np.ceil(channels / PADDED_CHANNELS) * PADDED_CHANNELS / channels
    return factors


def _padded(columns: Columns, tensor: Any) -> tuple[Floats, Floats, Floats, Floats]:
    """The matmul's sizes, with channels padded for tensor cores, which take groups together."""
    computes, groups = columns["computes"], columns["groups"]
    fill = np.where(tensor, _fill(columns["channels"]), 1.0)
    in_groups = tensor & (groups > 1) & (columns["item_bytes"] == 2)
    width = width_of_groups(columns)
    together = np.clip(GROUPS_WIDTH / width, 1.0, groups)
    channels = np.where(in_groups, width * together / columns["channels"], fill)
    filters = np.where(in_groups, width * together / columns["filters"], 1.0)
    batch = np.where(in_groups, groups / together, groups)
    of_weight, forward = computes == OF_WEIGHT, computes == FORWARD
    m = columns["m"] * np.where(of_weight, filters, 1.0)
    n = columns["n"] * np.where(forward, filters, np.where(in_groups | of_weight, channels, 1.0))
    k = columns["k"] * np.where(forward, channels, np.where(of_weight, 1.0, filters))
    return batch, m, n, k


def _winograd(
    columns: Columns,
    gpu: GpuFacts,
    theta: Theta,
    direct: Floats,
    dram: Floats,
    rate: Floats,
    tensor: Any,
) -> Floats:
    """The time of the faster algorithm: direct, or Winograd's where it can be used.

    It can be used on plain cores, for 3 x 3 filters without stride, groups and dilation.
    """
    fits = (columns["taps"] == 9) & (columns["stride_area"] < 1.5) & (columns["groups"] == 1)
    fits = fits & ~(columns["dilated"] > 0) & ~tensor
    fits = np.flatnonzero(fits & (gpu.winograd | (columns["computes"] == OF_WEIGHT)))
    if not len(fits):
        return direct
    chosen = {name: values[fits] for name, values in columns.items()}
    gpus = _rows(gpu, fits)
    tiles = chosen["images"] * chosen["out_points"] / 4.0
    of_weight = chosen["computes"] == OF_WEIGHT
    m = np.where(of_weight, chosen["filters"], tiles)
    n = np.where(
        of_weight,
        chosen["channels"],
        np.where(chosen["computes"] == OF_IMAGE, chosen["channels"], chosen["filters"]),
    )
    k = np.where(
        of_weight,
        tiles,
        np.where(chosen["computes"] == OF_IMAGE, chosen["filters"], chosen["channels"]),
    )
    sizes = (np.full(len(fits), 16.0), m, n, k)
    moved = dram[fits] * (1.0 + theta["transforms"])
    winograd_s = tiled_s(
        sizes,
        chosen["item_bytes"],
        moved,
        rate[fits] * theta["winograd"],
        np.asarray(tensor)[fits],
        gpus,
        theta,
    )
    best = direct.copy()
    best[fits] = np.minimum(winograd_s, direct[fits])
    return best


def _rows(gpu: GpuFacts, rows: Any) -> GpuFacts:
    """The facts of the GPUs of some rows."""
    if not isinstance(gpu.sm, np.ndarray):
        return gpu
    return GpuFacts(*(getattr(gpu, name)[rows] for name in gpu.__dataclass_fields__))
