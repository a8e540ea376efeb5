"""The time of depthwise convolutions, by the library whose kernels run."""

from __future__ import annotations

from typing import Any

import numpy as np

from wavecast.predictors.learned.gpus import Floats, GpuFacts
from wavecast.predictors.learned.physics.columns import FORWARD, OF_IMAGE, OF_WEIGHT, Columns
from wavecast.predictors.learned.physics.convolutions import WIDENING_CLOCKS, one_by_one_s
from wavecast.predictors.learned.physics.tiles import Bounds, Theta, TimeLimits, overlapped

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
