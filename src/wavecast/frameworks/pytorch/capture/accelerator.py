"""`torch.accelerator` of a pretended CUDA machine: it answers as `torch.cuda` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_SAME = (
    *("synchronize", "current_stream", "set_stream", "empty_cache", "reset_peak_memory_stats"),
    *("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
    "memory_stats",
)
"""Functions that `torch.cuda` has under the same name."""


def replace_accelerator(replace: Callable[..., None]) -> None:
    """Replace the functions of `torch.accelerator`, after those of `torch.cuda`."""

    def nothing(*_: Any, **__: Any) -> None:
        return None

    functions: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: torch.cuda.device_count(),
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "set_device_index": nothing,
        "set_device_idx": nothing,
        "device_index": torch.cuda.device,
        "reset_accumulated_memory_stats": nothing,
        "get_memory_info": lambda device=None: torch.cuda.mem_get_info(),
        "get_device_capability": lambda device=None: {"supported_dtypes": set()},
    }
    functions |= {name: _as_cuda(name) for name in _SAME}
    known = {name: f for name, f in functions.items() if hasattr(torch.accelerator, name)}
    replace(torch.accelerator, **known)
    memory = getattr(torch.accelerator, "memory", None)
    if memory is not None:
        replace(memory, **{name: f for name, f in known.items() if hasattr(memory, name)})


def _as_cuda(name: str) -> Callable[..., Any]:
    """A function that answers as that of `torch.cuda`. Dynamo knows each function by itself."""
    return lambda *args, **kwargs: getattr(torch.cuda, name)(*args, **kwargs)
