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
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.replacements import replacing

_TEXT = "a checkpoint that was saved while tracing: "
_PATTERN = re.compile(rf"{_TEXT}(\d+)\n".encode())


@contextmanager
def checkpoints_kept(recorder: OpRecorder) -> Iterator[None]:
    """Let `torch.save`, `torch.load` and safetensors work inside the block, at no cost."""
    kept = _Checkpoints(recorder)
    with replacing() as replace:
        replace(torch.UntypedStorage, data_ptr=_address(torch.UntypedStorage.data_ptr))
        replace(torch, save=kept.save, load=kept.load(torch.load))
        replace(torch.serialization, save=kept.save, load=torch.load)
        if safetensors := _safetensors():
            for name in {"_flatten", "_flatten_as_ptr"} & set(vars(safetensors)):
                replace(safetensors, **{name: lambda tensors, *_, **__: tensors})
            replace(safetensors, serialize_file=kept.save_file, serialize=kept.as_bytes)
            replace(safetensors, load_file=kept.load(load_on_host(safetensors.load_file)))
            for module in (safetensors, sys.modules["safetensors"]):
                replace(module, safe_open=partial(OpenedFile, safetensors.safe_open))
            replace(safetensors, load=kept.load(safetensors.load))
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


# Files of safetensors that a script reads: on the host, since its code would write to the GPU.


def load_on_host(load: Callable[..., Any]) -> Callable[..., Any]:
    """`safetensors.torch.load_file`, which reads on the host and then moves the tensors."""

    def load_file(filename: Any, device: Any = "cpu", **options: Any) -> Any:
        with _disable_current_modes():
            loaded = load(filename, device="cpu", **options)
        return {name: _moved(tensor, device) for name, tensor in loaded.items()}

    return load_file


class OpenedFile:
    """`safetensors.safe_open`, whose tensors are read on the host and then moved."""

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


# Evaluation that repeats itself, which is not run again.
#
# A script may evaluate its model on hundreds of batches before it trains. All but the first of
# these forward passes add nothing new, so they are not run: their results are made from the shapes
# of an earlier one.


_RUNS = 3
"""How many equal forward passes run before the next ones are left out."""
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device)


@dataclass
class Evaluation:
    """One forward pass without gradients of a module in evaluation mode, and its repetitions."""

    module: str
    begin: int
    """The position of its first op in the recording."""
    end: int
    skipped: int = 0
    """How many equal ones were not run."""


@dataclass(frozen=True)
class _Blank:
    """What is needed to make a tensor like one that a module returned."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any


@dataclass
class _Seen:
    """Equal forward passes since the last training step."""

    runs: int = 0
    last: Evaluation | None = None
    result: tuple[list[Any], Any] | None = None
    """How to make the result again."""


class ModuleCalls:
    """Watches the outermost calls of modules while a script runs."""

    def __init__(self, recorder: OpRecorder, notify: Callable[[], None]) -> None:
        self.skipping = True
        """Whether repeated evaluation may be left out."""
        self.evaluations: list[Evaluation] = []
        self.skips: list[int] = []
        """The positions in the recording where a call was left out."""
        self.first_trained: int | None = None
        """The position in the recording of the first forward pass with gradients."""
        self._recorder = recorder
        self._notify = notify
        """Called before a forward pass with gradients."""
        self._inside = False
        self._seen: dict[Any, _Seen] = {}
        """By module and shapes of the inputs."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the calls inside the block."""
        original = torch.nn.Module.__call__

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return original(module, *args, **kwargs)
            self._inside = True
            try:
                return self._outermost(original, module, args, kwargs)
            finally:
                self._inside = False

        torch.nn.Module.__call__ = call
        try:
            yield
        finally:
            torch.nn.Module.__call__ = original

    def _outermost(self, original: Callable[..., Any], module: Any, args: Any, kwargs: Any) -> Any:
        position = len(self._recorder)
        if torch.is_grad_enabled():
            self._notify()
            self._seen.clear()
            if self.first_trained is None and module.training:
                self.first_trained = position
            return original(module, *args, **kwargs)
        if module.training:
            return original(module, *args, **kwargs)
        key = _signature(module, args, kwargs)
        seen = _Seen() if key is None else self._seen.setdefault(key, _Seen())
        if self.skipping and seen.result is not None and seen.last is not None:
            seen.last.skipped += 1
            self.skips.append(position)
            return self._made_again(*seen.result)
        result = original(module, *args, **kwargs)
        seen.runs += 1
        seen.last = Evaluation(type(module).__name__, position, len(self._recorder))
        seen.result = _blanks_of(result) if seen.runs >= _RUNS else None
        self.evaluations.append(seen.last)
        return result

    def _made_again(self, leaves: list[Any], spec: Any) -> Any:
        with self._recorder.silence():
            values = [
                torch.empty_strided(leaf.shape, leaf.strides, dtype=leaf.dtype, device="cuda")
                if isinstance(leaf, _Blank)
                else leaf
                for leaf in leaves
            ]
        return pytree.tree_unflatten(values, spec)


def _signature(module: Any, args: Any, kwargs: Any) -> Any:
    """What decides which ops a forward pass runs; None if not only shapes and plain values do."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    described: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            described.append((tuple(leaf.shape), leaf.dtype, leaf.device))
        elif isinstance(leaf, _PLAIN):
            described.append((type(leaf), leaf))
        else:
            return None
    autocast = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    return id(module), tuple(described), str(spec), autocast


def _blanks_of(result: Any) -> tuple[list[Any], Any] | None:
    """How to make a result again; None if a tensor in it is on the host, where values count."""
    leaves, spec = pytree.tree_flatten(result)
    blanks: list[Any] = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            blanks.append(leaf)
        elif leaf.device.type == "cuda":
            blanks.append(_Blank(tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype))
        else:
            return None
    return blanks, spec
