"""The place of a tensor, on the host or on the GPU, as the user's code has chosen it.

Torch sees all fake tensors on the CPU, since its CPU build runs autograd on nothing else. So an
attribute says where the user put one. If it is missing, C++ code made the tensor, and a later op
shows where it belongs. Plain tensors are always on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.recording.user_lines import user_line

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")
META = torch.device("meta")
PLACE = "_wavecast_place"
"""The attribute of fake tensors that has their place."""
ON_GPU, ON_HOST, ON_META = "gpu", "host", "meta"
"""On the meta device a tensor has a shape only, until it is put elsewhere."""


def on_gpu(tensor: Any) -> bool:
    """Whether the user put this tensor on the GPU."""
    return getattr(tensor, PLACE, None) == ON_GPU


def on_host(tensor: Any) -> bool:
    """Whether the user's code made this tensor on the host, or copied it there."""
    return not isinstance(tensor, FakeTensor) or getattr(tensor, PLACE, None) == ON_HOST


def put(tensor: Any, place: str | None) -> None:
    """Mark a fake tensor as being in a place."""
    setattr(tensor, PLACE, place)


def put_on_gpu(tensor: Any) -> None:
    """Mark a fake tensor as being on the GPU."""
    put(tensor, ON_GPU)


def on_meta(tensor: Any) -> bool:
    """Whether the user made this tensor on the meta device."""
    return getattr(tensor, PLACE, None) == ON_META


def is_meta(device: Any) -> bool:
    """Whether a device is the meta device."""
    return device is not None and torch.device(device).type == "meta"


def place_of(tensor: Any) -> str | None:
    """The place of a tensor. None if C++ code made it, so that it is not known yet."""
    if not isinstance(tensor, FakeTensor):
        return ON_HOST
    return getattr(tensor, PLACE, None)


_numbers = {0}
"""The numbers by which the step may name its GPU."""


@contextmanager
def gpu_numbers(numbers: set[int]) -> Iterator[None]:
    """Let the step name its GPU by these numbers, inside the block."""
    global _numbers
    before, _numbers = _numbers, numbers
    try:
        yield
    finally:
        _numbers = before


def is_gpu(device: Any) -> bool:
    """Whether a device is the GPU. Any GPU but the step's own is an error."""
    device = torch.device(device)
    if device.type == "cuda" and (device.index or 0) not in _numbers:
        raise CaptureError(
            f"a tensor is put on {device} at {user_line()}; only steps that use one GPU can be "
            "traced"
        )
    return bool(device.type == "cuda")


def tensors_in(value: Any) -> Iterator[Any]:
    """The tensors in an argument, also those in lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


_compiling = False
"""Whether the compiler runs now. Its tensors, which are not fake tensors, are on the GPU."""


@contextmanager
def compiling() -> Iterator[None]:
    """Run the block as the compiler's code."""
    global _compiling
    before, _compiling = _compiling, True
    try:
        yield
    finally:
        _compiling = before


def is_cuda(tensor: Any) -> bool:
    """Whether a tensor is on the GPU, also if it is one of the compiler's."""
    return bool(tensor.is_cuda) or (_compiling and not isinstance(tensor, FakeTensor))


_PINNED = "_wavecast_pinned"


def pin(tensor: Any, device: Any = None) -> Any:
    """The tensor in pinned memory: itself, with a mark, since pinning needs a GPU."""
    setattr(tensor, _PINNED, True)
    return tensor


def is_pinned(tensor: Any, device: Any = None) -> bool:
    """Whether a tensor is in pinned memory."""
    return getattr(tensor, _PINNED, False)


# The memory format of a tensor, decided as in torch: contiguous or channels_last.


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def suggested(*tensors: Any) -> Any:
    """The memory format of a tensor (`suggest_memory_format` in torch); of several, channels_last
    if one has it, as in cuDNN (`cudnn_conv_suggest_memory_format`)."""
    layout = _CHANNELS_LAST.get(tensors[0].dim())
    if layout is not None and any(_is_channels_last(tensor) for tensor in tensors):
        return layout
    return torch.contiguous_format


def _is_channels_last(tensor: Any) -> bool:
    """Whether strides are channels_last (`is_channels_last_strides`, c10/core/MemoryFormat.h)."""
    sizes, strides = tensor.shape, tensor.stride()
    least = 0
    for dim in (1, *range(tensor.dim() - 1, 1, -1), 0):
        if sizes[dim] == 0 or strides[dim] < least or (dim == 0 and least == strides[1]):
            return False
        least = strides[dim] * max(1, sizes[dim])
    return bool(strides[1])
