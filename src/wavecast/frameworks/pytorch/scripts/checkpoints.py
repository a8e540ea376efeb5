"""Checkpoints that a script saves: kept in this process, because fake tensors have no values.

In place of the values, a file gets a short text with a number. When the script loads such a file
again, it gets what it saved.
"""

from __future__ import annotations

import copy
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.scripts.safetensors_files import OpenedFile, load_on_host

_TEXT = "a checkpoint that was saved while tracing: "
_PATTERN = re.compile(rf"{_TEXT}(\d+)\n".encode())


@contextmanager
def checkpoints_kept(recorder: OpRecorder) -> Iterator[None]:
    """Let `torch.save`, `torch.load` and safetensors work inside the block, at no cost."""
    kept = _Checkpoints(recorder)
    with ExitStack() as stack:

        def replace(owner: Any, name: str, value: Any) -> None:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)

        replace(torch.UntypedStorage, "data_ptr", _address(torch.UntypedStorage.data_ptr))
        replace(torch, "save", kept.save)
        replace(torch, "load", kept.load(torch.load))
        replace(torch.serialization, "save", kept.save)
        replace(torch.serialization, "load", torch.load)
        if safetensors := _safetensors():
            for name in {"_flatten", "_flatten_as_ptr"} & set(vars(safetensors)):
                replace(safetensors, name, lambda tensors, *_, **__: tensors)
            replace(safetensors, "serialize_file", kept.save_file)
            replace(safetensors, "serialize", kept.as_bytes)
            replace(safetensors, "load_file", kept.load(load_on_host(safetensors.load_file)))
            for module in (safetensors, sys.modules["safetensors"]):
                replace(module, "safe_open", partial(OpenedFile, safetensors.safe_open))
            replace(safetensors, "load", kept.load(safetensors.load))
        yield


def _address(real: Callable[[Any], int]) -> Callable[[Any], int]:
    """The address of a storage; a number that is only its own where there is no memory.

    Code that saves tensors finds shared ones by it.
    """

    def data_ptr(storage: Any) -> int:
        try:
            return real(storage)
        except RuntimeError:  # of a fake tensor
            return int(storage._cdata)

    return data_ptr


def _safetensors() -> Any:
    """The functions of safetensors for torch. None if it is not installed."""
    try:
        return importlib.import_module("safetensors.torch")
    except ModuleNotFoundError:
        return None


class _Checkpoints:
    """What a script saved, by number."""

    def __init__(self, recorder: OpRecorder) -> None:
        self._recorder = recorder
        self._objects: list[Any] = []

    def as_bytes(self, saved: Any, *_args: Any, **_kwargs: Any) -> bytes:
        """The text that stands for an object."""
        self._objects.append(_snapshot(saved))
        return f"{_TEXT}{len(self._objects) - 1}\n".encode()

    def save(self, obj: Any, f: Any, *_args: Any, **_kwargs: Any) -> None:
        """`torch.save`."""
        text = self.as_bytes(obj)
        if hasattr(f, "write"):
            f.write(text)
            return
        with Path(f).open("wb") as file:
            file.write(text)

    def save_file(self, tensors: Any, filename: Any, *_args: Any, **_kwargs: Any) -> None:
        """`safetensors.serialize_file`."""
        self.save(tensors, filename)

    def load(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """`torch.load`, or a function like it."""

        def load(source: Any, *args: Any, **kwargs: Any) -> Any:
            number = _number_in(source)
            if number is not None and number < len(self._objects):
                with self._recorder.silence():
                    return copy.deepcopy(self._objects[number])
            return real(source, *args, **kwargs)

        return load


def _number_in(source: Any) -> int | None:
    """The number in the text that stands for an object; None if there is no such text."""
    beginning = b""
    if isinstance(source, bytes):
        beginning = source[:80]
    elif hasattr(source, "read") and hasattr(source, "seek"):
        place = source.tell()
        beginning = source.read(80)
        source.seek(place)
    elif not hasattr(source, "read"):
        with Path(source).open("rb") as file:
            beginning = file.read(80)
    match = _PATTERN.fullmatch(beginning) if isinstance(beginning, bytes) else None
    return int(match[1]) if match else None


def _snapshot(value: Any) -> Any:
    """The containers of an object copied, its tensors and other objects shared."""
    if type(value) is dict:
        return {key: _snapshot(item) for key, item in value.items()}
    return value
