"""Images that are resized: what threads go through, and additions that wait for each other."""

from __future__ import annotations

import math

from wavecast.ops.registry import item_bytes
from wavecast.traces.step import Op

_NEIGHBOURS = {"trilinear": 8, "bilinear": 4, "bicubic": 16}
"""How many places the gradient of one interpolated point goes to."""
CROWDING, JOINED = 1.5, 0.35
"""The power with which additions of neighbours to one place slow each other down, and what one of
32 bits takes, relative to one of 16. On our H200, additions of images that are enlarged 2, 8, 28
and 128 times take 2.3, 14, 170 and 1,100 ps."""
APART = 10.0
"""From this enlargement on, additions slow each other down in channels-last, too."""
LINE_BYTES, HIT = 128, 0.12
"""Bytes of a line of L1, and what an element costs that is in the line of the one before, relative
to one that is not. On our H200, planes of one point take 60 ns, those of 50 and more 340 ns."""
BICUBIC = {1: 24.0, 2: 24.0, 4: 190.0}
"""Additions to a single place in the time of an element, by the bytes of one. Of more places, the
square root counts (1 and 8 ns for an addition of 32 and 16 bits on our H200)."""


def is_resized(op: Op) -> bool:
    """Whether an op resizes an image to another size; torch copies those that keep theirs."""
    sizes = [t.shape for t in (op.inputs[0], op.outputs[0])]
    return sizes[0] != sizes[1]


def elements(op: Op) -> int:
    """Points of the larger image of a backward pass, or of the result; none to copy an image."""
    if not is_resized(op):
        return 0
    return op.inputs[0].numel if "backward" in op.base else op.outputs[0].numel


def additions(op: Op) -> float:
    """Atomic additions of a backward pass, or what takes as long; 0 for a forward pass."""
    if "backward" not in op.base or not is_resized(op):
        return 0
    near = next((n for name, n in _NEIGHBOURS.items() if name in op.base), 0)
    return round(near * op.inputs[0].numel * _crowding(op))


def _crowding(op: Op) -> float:
    """How much longer an addition takes where neighbours add to one place, in enlarged images.

    In channels-last, neighbours are other channels and add to other places; those of the next
    points wait for each other only where the image is enlarged much.
    """
    large, small = op.inputs[0], op.outputs[0]
    if "bicubic" in op.base or len(large.shape) < 3 or not small.numel:
        return 1.0  # threads of bicubic kernels go through planes one by one
    joined = 1.0 if item_bytes(large) <= 2 else JOINED
    enlarged = (large.numel / small.numel) ** (1.0 / (len(large.shape) - 2))
    if large.channels_last and small.channels_last:
        return float(joined * max(enlarged / APART, 1.0))
    return float(joined * max(enlarged / 2.0, 1.0) ** CROWDING)


def serial_elements(op: Op) -> float:
    """Elements that one thread computes one after the other.

    Interpolation has one thread for each point of an image; it loops over images and channels
    (UpSampleBilinear2d.cu), whose points are in one line of memory if the image is small.
    """
    image = op.inputs[0]
    if len(image.shape) < 3 or not is_resized(op):
        return 0
    planes = math.prod(image.shape[:2])
    if op.base == "aten.upsample_nearest2d_backward":
        return _nearest_elements(op)
    if "bicubic" in op.base:
        return planes * _bicubic_elements(op)
    smooth = "linear" in op.base and "backward" not in op.base
    if not smooth or image.channels_last:
        return 0
    lines = math.prod(image.shape[2:]) * item_bytes(image) / LINE_BYTES
    return planes * min(HIT + 2 * lines, 1.0)


def _nearest_elements(op: Op) -> float:
    """What a thread of the gradient of an enlarged image adds up: the points around its own.

    In NCHW it also goes through the images of a batch, and neighbours are in one line.
    """
    large, small = op.inputs[0], op.outputs[0]
    window = math.prod(
        _up(a, max(b, 1)) for a, b in zip(large.shape[2:], small.shape[2:], strict=True)
    )
    if large.channels_last and small.channels_last:
        return 0.75 * window
    return 0.55 * window * large.shape[0]


def _bicubic_elements(op: Op) -> int:
    """Elements for each plane of a bicubic interpolation (UpSampleBicubic2d.cu).

    Sixteen neighbours are in few lines of memory or, in channels-last, in as many for each of a
    block's threads. In the backward pass, all points add to 16 places each; additions to one place
    wait for each other.
    """
    image, result = op.inputs[0], op.outputs[0]
    if "backward" not in op.base:
        threads = min(math.prod(result.shape[2:]), 1024)
        return max(16 * threads // 1024, 1) if image.channels_last else 2
    added = 16 * image.numel / max(math.prod(image.shape[:2]), 1)
    apart = BICUBIC[min(item_bytes(image), 4)] * math.sqrt(max(math.prod(result.shape[2:]), 1))
    return max(round(added / apart), 16)


def _up(count: int, size: int) -> int:
    return -(-count // size)
