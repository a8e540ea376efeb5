"""The time of convolutions: implicit matmuls, Winograd's algorithm, conversions of layout."""

from __future__ import annotations

from typing import Any

import numpy as np

from wavecast.ops import Unit
from wavecast.predictors.learned.columns import FORWARD, OF_IMAGE, OF_WEIGHT, Columns
from wavecast.predictors.learned.gpus import CODES, Floats, GpuFacts
from wavecast.predictors.learned.tiles import (
    Bounds,
    Theta,
    TimeLimits,
    class_parameters,
    from_memory,
    overlapped,
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


# The time of depthwise convolutions, by the library whose kernels run.


DEPTHWISE_PARAMETERS: dict[str, Bounds] = {
    "floor_us": (3.0, 0.5, 20.0),
    "dram": (0.85, 0.6, 0.95),
    # Clocks of an SM for each point and for each tap of it, by library and pass.
    "torch.forward": (1.0, 0.2, 4.0),
    "torch.forward.tap": (0.14, 0.05, 0.4),
    "torch.of_image": (1.6, 0.2, 4.0),
    "torch.of_image.tap": (0.18, 0.05, 0.4),
    "torch.of_weight": (0.3, 0.0, 4.0),
    "torch.of_weight.tap": (0.34, 0.1, 1.0),
    "first.forward": (0.1, 0.0, 2.0),  # cuDNN, channels first
    "first.forward.tap": (0.08, 0.02, 0.3),
    "first.of_image": (0.1, 0.0, 2.0),
    "first.of_image.tap": (0.08, 0.02, 0.3),
    "first.of_weight": (0.3, 0.0, 2.0),
    "first.of_weight.tap": (0.08, 0.02, 0.4),
    "last.forward": (0.1, 0.0, 1.0),  # cuDNN, channels last
    "last.forward.tap": (0.04, 0.01, 0.2),
    "last.of_image": (0.1, 0.0, 1.0),
    "last.of_image.tap": (0.08, 0.02, 0.3),
    "last.of_weight": (0.4, 0.0, 2.0),
    "last.of_weight.tap": (0.05, 0.01, 0.3),
    "wide": (1.9, 0.7, 3.0),  # how many times as long cuDNN's forward pass takes in float32
}
TUNED_DEPTHWISE_PARAMETERS: dict[str, Bounds] = {
    "floor_us": (3.0, 0.5, 10.0),
    "dram": (0.85, 0.4, 0.95),
    "forward.2": (0.2, 0.02, 1.0),  # share of the plain cores' rate, by bytes of an element
    "forward.4": (0.2, 0.02, 1.0),
    "of_image": (0.1, 0.005, 1.0),
    "of_weight.2": (0.2, 0.02, 1.0),
    "of_weight.4": (0.2, 0.02, 1.0),
    "padded": (40.0, 5.0, 200.0),  # traffic where there is no kernel, relative to the tensors
    "matmuls.2": (0.03, 0.005, 0.3),  # share of the plain cores' rate where there is no kernel
    "matmuls.4": (0.02, 0.005, 0.3),
}
MOST_TAPS = 49.0
"""cuDNN's own depthwise kernels have filters of up to 7 x 7 points."""
MOST_TAPS_FLOAT32_WEIGHT = 9.0
"""That for the gradient of float32 filters takes 3 x 3 and not 7 x 7; 5 x 5 was not measured."""
OUTPUT_CLOCKS, TAP_CLOCKS, FAR_TAP_CLOCKS = 4.4, 0.88, 0.31
"""Clocks of an SM for each output, for each of its first nine taps and for each other one, where
cuDNN has no fast kernel for channels-last. Read off 80 convolutions on our H200, as all below."""
IMAGE_TAP_CLOCKS = 0.37
"""The same for each tap of the image's gradient, which has a kernel of its own."""
WEIGHT_CLOCKS, POINT_WEIGHT_CLOCKS = 13.0, 31.0
"""The same for each output of the filters' gradient: both images are padded to groups of eight.
For filters of one point they are not."""
FLOAT32_WEIGHT_TAP_CLOCKS, TF32_WEIGHT_TAP_CLOCKS = 1.8, 1.1
"""The same for each tap of the gradient of float32 filters of 7 x 7 points and more. In TF32 it is
a matmul for each channel, whose sides are padded."""
LONG_FLOAT32 = 25.0
"""The most taps of float32 filters whose gradient has a fast kernel."""
GROUPS_APART = 256.0
"""The most groups of filters of 3 x 3 points whose forward pass goes group by group."""
WINOGRAD_POINTS = 10_000.0
"""Points of all outputs from which the gradient of 3 x 3 filters does so."""
CLOCK_FLOPS = 256.0
"""FLOPs in a clock of an SM with 128 lanes, on which clocks of points were read off. SMs with fewer
lanes take longer."""
FULL = 8.0
"""Thread blocks of 256 threads that an SM needs to be busy."""


def depthwise_limits(columns: Columns, gpu: GpuFacts, theta: Theta) -> TimeLimits:
    """The limits of depthwise convolutions: memory, and the clocks of each point and tap."""
    nbytes = columns["image_bytes"] + columns["out_bytes"] + columns["weight_bytes"]
    memory_s = nbytes / (gpu.bytes_per_s * theta["dram"])
    compute_s = np.maximum(_by_points_s(columns, gpu, theta), _direct_s(columns, gpu))
    several = (columns["filters"] > 1) & (columns["channels_last"] > 0)
    compute_s = np.where(several, _of_several_filters_s(columns, gpu), compute_s)
    return TimeLimits(theta["floor_us"] * 1e-6 + 0.0 * memory_s, memory_s, compute_s)


def _by_points_s(columns: Columns, gpu: GpuFacts, theta: Theta) -> Floats:
    """Seconds of the kernel of each row's library: each thread goes through the taps of a point."""
    computes, taps, item = columns["computes"], columns["taps"], columns["item_bytes"]
    by_torch, last = columns["by_torch"] > 0, columns["channels_last"] > 0
    clocks = np.zeros(len(taps))
    for library, here in (
        ("torch", by_torch),
        ("last", ~by_torch & last),
        ("first", ~by_torch & ~last),
    ):
        for name, computed in (
            ("forward", FORWARD),
            ("of_image", OF_IMAGE),
            ("of_weight", OF_WEIGHT),
        ):
            key = f"{library}.{name}"
            own = theta[key] + theta[f"{key}.tap"] * taps
            clocks = np.where(here & (computes == computed), own, clocks)
    wide = (item > 2) & (computes == FORWARD) & ~by_torch
    clocks = np.where(wide, clocks * theta["wide"], clocks)
    written = np.where(computes == OF_IMAGE, columns["image_bytes"], columns["out_bytes"])
    # torch has a block for each tap of each filter (conv_depthwise2d_grad_weight_kernel).
    blocks = columns["groups"] * columns["filters"] * taps
    busy = np.where(
        by_torch & (computes == OF_WEIGHT), np.minimum(blocks / (FULL * gpu.sm), 1.0), 1.0
    )
    seconds: Floats = written / item * clocks * CLOCK_FLOPS / (gpu.fp32 * busy)
    return seconds


def _direct_s(columns: Columns, gpu: GpuFacts) -> Floats:
    """Seconds of depthwise convolutions for which cuDNN has no fast kernel; 0 for others.

    Fast ones are for filters of odd sides, of up to 7 x 7 points, that are not dilated. There is
    none for the image's gradient with a stride where channels come first.
    """
    computes, taps, last = columns["computes"], columns["taps"], columns["channels_last"] > 0
    strided = columns["stride_area"] > 1.5
    outputs = columns["groups"] * columns["filters"] * columns["images"] * columns["out_points"]
    clocks = np.where(taps > 1, WEIGHT_CLOCKS, POINT_WEIGHT_CLOCKS)
    clocks = np.where(computes == OF_IMAGE, IMAGE_TAP_CLOCKS * taps, clocks)
    clocks = np.where(computes == FORWARD, _direct_clocks(taps), clocks)
    odd = (columns["dilated"] > 0) | (taps > MOST_TAPS) | (taps % 2 == 0)
    odd |= (taps == 1) & strided & (computes != OF_IMAGE)
    wide = columns["item_bytes"] > 2
    long = (computes == OF_WEIGHT) & wide & (taps > LONG_FLOAT32)
    tap = np.where(columns["tf32"] > 0, TF32_WEIGHT_TAP_CLOCKS, FLOAT32_WEIGHT_TAP_CLOCKS)
    clocks = np.where(long, tap * taps, clocks)
    first = (computes == OF_IMAGE) & strided & ~(columns["by_torch"] > 0)
    points = np.where(first, outputs * columns["stride_area"], outputs)
    seconds = points * clocks / (gpu.sm * gpu.clock_hz)
    direct: Floats = np.where(np.where(last, odd | long, first), seconds, 0.0)
    return direct


def _direct_clocks(taps: Floats) -> Floats:
    """Clocks of an SM for each output of the forward pass without a fast kernel."""
    clocks: Floats = OUTPUT_CLOCKS + TAP_CLOCKS * np.minimum(taps, 9.0)
    return clocks + FAR_TAP_CLOCKS * np.maximum(taps - 9.0, 0.0)


def _of_several_filters_s(columns: Columns, gpu: GpuFacts) -> Floats:
    """Seconds in channels-last where each channel has several filters: groups for cuDNN.

    The forward pass in 16 bits launches a kernel for each group, as the gradients of filters of one
    point and of 3 x 3 without a stride do. Other gradients in 16 bits convert both images and run
    as matmuls. All was read off in clocks, so that it holds for other GPUs.
    """
    computes, taps, wide = columns["computes"], columns["taps"], columns["item_bytes"] > 2
    image, out = (columns[f"{name}_bytes"] / columns["item_bytes"] for name in ("image", "out"))
    many = (taps <= 9) & (columns["groups"] > GROUPS_APART)
    direct = wide | ((computes == FORWARD) & ((taps == 1) | many))
    both = 2.0 * WIDENING_CLOCKS * (image + out)
    narrow = np.where(computes == OF_IMAGE, (2.4 + 0.067 * taps) * image, (1.0 + 0.14 * taps) * out)
    full = np.where(computes == OF_IMAGE, (5.0 + 1.5 * taps) * out, _direct_clocks(taps) * out)
    full = np.where(computes == OF_WEIGHT, np.minimum(4.0 + 2.6 * taps, 28.0) * out, full)
    apart = np.where((computes == OF_IMAGE) & (taps == 1), 16_000.0, 0.0)
    winograd = (taps == 9) & (columns["stride_area"] < 1.5)
    winograd &= columns["images"] * columns["out_points"] > WINOGRAD_POINTS
    apart = np.where((computes == OF_WEIGHT) & winograd, 100_000.0, apart)
    clocks = np.where(direct, full, both + narrow) / gpu.sm
    clocks = clocks + np.where(direct, 0.0, apart * columns["groups"])
    alone = (computes == FORWARD) & ~direct
    seconds: Floats = np.where(alone, one_by_one_s(columns, gpu), clocks / gpu.clock_hz)
    return seconds


def has_depthwise_kernel(computes: Any, item_bytes: Any, taps: Any) -> Any:
    """Whether cuDNN has a kernel for a depthwise convolution of images in channels-last.

    Otherwise it pads each channel to a group of eight, and runs a matmul for each group.
    """
    float32_weight = (computes == OF_WEIGHT) & (item_bytes > 2)
    return taps <= np.where(float32_weight, MOST_TAPS_FLOAT32_WEIGHT, MOST_TAPS)


def tuned_depthwise_s(columns: Columns, gpu: GpuFacts, theta: Theta) -> Floats:
    """Seconds of depthwise convolutions of images, where XLA tried all of cuDNN's algorithms."""
    computes, wide = columns["computes"], columns["item_bytes"] > 2
    flops = 2.0 * columns["groups"] * columns["m"] * columns["n"] * columns["k"]
    share = np.where(wide, theta["forward.4"], theta["forward.2"])
    share = np.where(computes == OF_IMAGE, theta["of_image"], share)
    of_weight = np.where(wide, theta["of_weight.4"], theta["of_weight.2"])
    share = np.where(computes == OF_WEIGHT, of_weight, share)
    nbytes = columns["image_bytes"] + columns["out_bytes"] + columns["weight_bytes"]
    memory_s = nbytes / (gpu.bytes_per_s * theta["dram"])
    own_s = overlapped(memory_s, flops / (gpu.fp32 * share))
    matmuls = np.where(wide, theta["matmuls.4"], theta["matmuls.2"])
    padded_s = memory_s * theta["padded"] + flops / (gpu.fp32 * matmuls)
    has_kernel = has_depthwise_kernel(computes, columns["item_bytes"], columns["taps"])
    seconds: Floats = theta["floor_us"] * 1e-6 + np.where(has_kernel, own_s, padded_s)
    return seconds
