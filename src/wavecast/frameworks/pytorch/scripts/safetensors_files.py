"""Files of safetensors that a script reads: on the host, since its code would write to the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes


def load_on_host(load: Callable[..., Any]) -> Callable[..., Any]:
    """`safetensors.torch.load_file`, which reads on the host and then moves the tensors."""

    def load_file(filename: Any, device: Any = "cpu", **options: Any) -> Any:
        with _disable_current_modes():
            loaded = load(filename, device="cpu", **options)
        return {name: _moved(tensor, device) for name, tensor in loaded.items()}

    return load_file


class OpenedFile:
    """`safetensors.safe_open`, whose tensors are read on the host and then moved.

    Args:
        open_file: the function of safetensors.
        filename: the file.
        framework: the framework of the tensors.
        device: where they are wanted.
        options: what else safetensors takes.
    """

    def __init__(
        self,
        open_file: Callable[..., Any],
        filename: Any,
        framework: str = "pt",
        device: Any = "cpu",
        **options: Any,
    ) -> None:
        self._file = open_file(filename, framework=framework, device="cpu", **options)
        self._device = device

    def __enter__(self) -> OpenedFile:
        self._file.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def get_tensor(self, name: str) -> Any:
        """A tensor of the file."""
        with _disable_current_modes():
            tensor = self._file.get_tensor(name)
        return _moved(tensor, self._device)

    def get_slice(self, name: str) -> _Slice:
        """A tensor of which parts can be read."""
        return _Slice(self._file.get_slice(name), self._device)


class _Slice:
    """A tensor of a file, which is read when it is indexed."""

    def __init__(self, part: Any, device: Any) -> None:
        self._part = part
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __getitem__(self, index: Any) -> Any:
        with _disable_current_modes():
            tensor = self._part[index]
        return _moved(tensor, self._device)


def _moved(tensor: Any, device: Any) -> Any:
    if isinstance(tensor, torch.Tensor) and torch.device(device).type == "cuda":
        return tensor.cuda()
    return tensor
