"""The time of convolutions: implicit products, Winograd's algorithm, conversions of layout."""

from __future__ import annotations

from typing import Any

import numpy as np

from wavecast.predictors.learned.gpus import Floats, GpuFacts
from wavecast.predictors.learned.physics.parts import OF_IMAGE, OF_WEIGHT
from wavecast.predictors.learned.physics.tiles import (
    Bounds,
    Columns,
    Theta,
    TimeLimits,
    class_parameters,
    from_memory,
    picked,
    sustained,
    tiled_s,
)

WINOGRAD_GAIN = 2.25
"""F(2x2, 3x3) takes 16 products for 36 (Lavin and Gray, CVPR 2016): no answer is below the
direct FLOPs' time by more."""
PADDED_CHANNELS = 8.0
"""cuDNN fills up the channels to this for tensor cores."""

CONVOLUTION_PARAMETERS: dict[str, Bounds] = class_parameters() | {
    "cores.of_image": (0.9, 0.3, 1.5),  # rate of the image's gradient, relative to forwards
    "cores.of_weight": (0.8, 0.3, 1.5),
    "tensor.of_image": (0.9, 0.3, 1.5),
    "tensor.of_weight": (0.8, 0.3, 1.5),
    "cores.strided": (0.2, 0.0, 1.0),  # loss in a strided gradient of the image: a power
    "tensor.strided": (0.2, 0.0, 1.0),
    "winograd": (0.7, 0.3, 1.0),  # efficiency of its products, relative to direct ones
    "transforms": (1.0, 0.0, 8.0),  # its traffic for transformed tiles, in tensors
    "convert": (0.6, 0.2, 1.0),  # share of the bandwidth when the layout is converted
    "convert_us": (4.0, 1.0, 15.0),  # kernels for it
}
DEPTHWISE_PARAMETERS: dict[str, Bounds] = {
    "floor_us": (3.0, 0.5, 20.0),
    "dram": (0.85, 0.75, 0.95),
    "forward": (0.3, 0.005, 1.0),  # share of the plain cores' rate
    "of_image": (0.3, 0.005, 1.0),
    "of_weight": (0.1, 0.002, 1.0),
}


def convolution_s(columns: Columns, gpu: GpuFacts, theta: Theta) -> Floats:
    """Seconds of convolutions with a product in them."""
    unit = columns["unit"].astype(np.int64)
    tensor, which = gpu.on_tensor_cores(unit), columns["which"]
    rate = sustained(gpu.rate(unit), gpu, picked(theta, tensor, "picojoules"))
    rate = rate * np.where(which == OF_IMAGE, picked(theta, tensor, "of_image"), 1.0)
    rate = rate * np.where(which == OF_WEIGHT, picked(theta, tensor, "of_weight"), 1.0)
    lost = columns["steps"] ** -picked(theta, tensor, "strided")
    rate = rate * np.where(which == OF_IMAGE, lost, 1.0)
    nbytes = columns["image_bytes"] + columns["out_bytes"] + columns["weight_bytes"]
    dram = from_memory(nbytes, gpu, picked(theta, tensor, "resident"))
    sizes = _padded(columns, tensor)
    direct = tiled_s(sizes, columns["item"], dram, rate, tensor, gpu, theta)
    direct = _winograd(columns, gpu, theta, direct, dram, rate, tensor)
    # Tensor cores want channels last, plain ones do not.
    converted = np.where(tensor, columns["converted"], columns["last"])
    moved = 2.0 * (columns["image_bytes"] * _fill(columns["channels"]) + columns["out_bytes"])
    convert_s = moved / (gpu.bytes_per_s * theta["convert"]) + theta["convert_us"] * 1e-6
    floor_s = picked(theta, tensor, "floor_us") * 1e-6
    seconds: Floats = floor_s + direct + np.where(converted > 0, convert_s, 0.0)
    return seconds


def _fill(channels: Floats) -> Floats:
    """By how much channels grow when they are filled up."""
    filled: Floats = np.ceil(channels / PADDED_CHANNELS) * PADDED_CHANNELS / channels
    return filled


def _padded(columns: Columns, tensor: Any) -> tuple[Floats, Floats, Floats, Floats]:
    """The product's sizes, with few channels filled up for tensor cores."""
    fill = np.where(tensor, _fill(columns["channels"]), 1.0)
    which = columns["which"]
    n = columns["n"] * np.where(which == OF_WEIGHT, fill, 1.0)
    k = columns["k"] * np.where(which == 0.0, fill, 1.0)
    return columns["groups"], columns["m"], n, k


def _winograd(
    columns: Columns,
    gpu: GpuFacts,
    theta: Theta,
    direct: Floats,
    dram: Floats,
    rate: Floats,
    tensor: Any,
) -> Floats:
    """The faster of the two where filters are 3 x 3, dense and without steps, on plain cores."""
    fits = (columns["taps"] == 9) & (columns["steps"] < 1.5) & (columns["groups"] == 1)
    fits = fits & ~(columns["dilated"] > 0) & ~tensor
    fits = np.flatnonzero(fits & (gpu.winograd | (columns["which"] == OF_WEIGHT)))
    if not len(fits):
        return direct
    few = {name: values[fits] for name, values in columns.items()}
    part = _rows(gpu, fits)
    tiles = few["images"] * few["points"] / 4.0
    whole = few["which"] == OF_WEIGHT
    m = np.where(whole, few["filters"], tiles)
    n = np.where(
        whole, few["channels"], np.where(few["which"] == OF_IMAGE, few["channels"], few["filters"])
    )
    k = np.where(whole, tiles, np.where(few["which"] == OF_IMAGE, few["filters"], few["channels"]))
    sizes = (np.full(len(fits), 16.0), m, n, k)
    moved = dram[fits] * (1.0 + theta["transforms"])
    found = tiled_s(
        sizes,
        few["item"],
        moved,
        rate[fits] * theta["winograd"],
        np.asarray(tensor)[fits],
        part,
        theta,
    )
    best = direct.copy()
    best[fits] = np.minimum(found, direct[fits])
    return best


def _rows(gpu: GpuFacts, rows: Any) -> GpuFacts:
    """The facts of some rows' GPUs."""
    if not isinstance(gpu.sm, np.ndarray):
        return gpu
    return GpuFacts(*(getattr(gpu, name)[rows] for name in gpu.__dataclass_fields__))


def depthwise_limits(columns: Columns, gpu: GpuFacts, theta: Theta) -> TimeLimits:
    """Of convolutions of each channel by itself: memory, and arithmetic on plain cores."""
    which = columns["which"]
    flops = 2.0 * columns["groups"] * columns["m"] * columns["n"] * columns["k"]
    share = np.where(which == OF_IMAGE, theta["of_image"], theta["forward"])
    share = np.where(which == OF_WEIGHT, theta["of_weight"], share)
    nbytes = columns["image_bytes"] + columns["out_bytes"] + columns["weight_bytes"]
    memory_s = nbytes / (gpu.bytes_per_s * theta["dram"])
    compute_s = flops / (gpu.fp32 * share)
    return TimeLimits(theta["floor_us"] * 1e-6 + 0.0 * memory_s, memory_s, compute_s)
