"""Files of tensors that a step reads: plain tensors on the host, which take little memory."""

from __future__ import annotations

import os
import zipfile
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes


def load_real(load: Any) -> Any:
    """`torch.load`, which gives plain tensors and not fake ones: a file may hold the data."""

    def load_plain(
        file: Any, map_location: Any = None, pickle_module: Any = None, **options: Any
    ) -> Any:
        if isinstance(file, str | os.PathLike) and options.get("mmap") is None:
            options["mmap"] = zipfile.is_zipfile(file)  # weights that nobody reads take no memory
        with _disable_current_modes():
            loaded = load(file, "cpu", pickle_module, **options)
        if _is_cuda(map_location):
            return _pytree.tree_map_only(torch.Tensor, lambda t: t.cuda(), loaded)
        return loaded

    return load_plain


def rebuilt(rebuild: Any) -> Any:
    """How torch makes a tensor from a storage that was read: a plain one, if it has memory."""

    def rebuild_plain(storage: Any, *args: Any) -> Any:
        if storage._untyped_storage.device.type != "cpu":
            return rebuild(storage, *args)
        with _disable_current_modes():
            return rebuild(storage, *args)

    return rebuild_plain


def _is_cuda(location: Any) -> bool:
    """Whether `map_location` puts everything on the GPU."""
    return isinstance(location, str | torch.device) and torch.device(location).type == "cuda"
