"""The memory format that torch takes a tensor to have."""

from __future__ import annotations

from typing import Any

import torch

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def suggested(*tensors: Any) -> Any:
    """`suggest_memory_format` of a tensor; of several, channels_last if one of them is.

    The latter is cuDNN's rule for an input and a weight (`cudnn_conv_suggest_memory_format`).
    """
    layout = _CHANNELS_LAST.get(tensors[0].dim())
    if layout is not None and any(_is_channels_last(tensor) for tensor in tensors):
        return layout
    return torch.contiguous_format


def _is_channels_last(tensor: Any) -> bool:
    """`is_channels_last_strides` of c10/core/MemoryFormat.h, which settles sizes of one."""
    sizes, strides = tensor.shape, tensor.stride()
    least = 0
    for dim in (1, *range(tensor.dim() - 1, 1, -1), 0):
        if sizes[dim] == 0 or strides[dim] < least or (dim == 0 and least == strides[1]):
            return False
        least = strides[dim] * max(1, sizes[dim])
    return bool(strides[1])
