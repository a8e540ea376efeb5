"""The memory format of a tensor, decided as in torch: contiguous or channels_last."""

from __future__ import annotations

from typing import Any

import torch

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def suggested(*tensors: Any) -> Any:
    """The memory format of a tensor (`suggest_memory_format` in torch).

    For several tensors it is channels_last if one of them is. That is cuDNN's rule for an input
    and a weight (`cudnn_conv_suggest_memory_format`).
    """
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
