"""Triton in scripts: kernels are defined as always, and refused where one is launched.

What a kernel of Triton costs is not known without a GPU. Where Triton is not installed, the
script's own code gets names in its place, so that files that define kernels can be imported.
Libraries and torch itself find what is there.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

from torch.utils import _triton

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.recording.user_lines import is_ours, is_users, user_line
from wavecast.frameworks.pytorch.scripts.imports import after_import

_NAME = "triton"
_VERSION = "3.4.0"
"""Scripts compare it with the oldest one that they need."""


@contextmanager
def kernels_refused() -> Iterator[None]:
    """Let the block import Triton, and refuse its kernels where they are launched."""

    def refuse_launches(jit: Any) -> None:
        run = jit.JITFunction.run
        undo.append(lambda: setattr(jit.JITFunction, "run", run))
        jit.JITFunction.run = lambda kernel, *_, **__: _refuse(getattr(kernel, "__name__", "?"))

    undo: list[Callable[[], None]] = []
    finder = _TritonFinder()
    sys.meta_path.append(finder)  # the last one: it finds what no other does
    try:
        with after_import(f"{_NAME}.runtime.jit", refuse_launches):
            yield
    finally:
        sys.meta_path.remove(finder)
        for function in undo:
            function()
        for name in [n for n, module in sys.modules.items() if isinstance(module, _TritonModule)]:
            del sys.modules[name]


def _refuse(kernel: str) -> Any:
    raise CaptureError(
        f"the step launches the Triton kernel {kernel} at {user_line()}, whose time is not known; "
        "call torch's own ops there, or give the kernel a fake form with torch.library.custom_op "
        "and register_fake, and a cost (Add an op in the documents)"
    )


class _TritonFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds Triton for the user's own code."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """The spec of Triton or a part of it. None for other modules and for libraries."""
        if fullname.partition(".")[0] != _NAME or not _is_imported_by_user():
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        """A module that has every name."""
        if spec.name == _NAME:
            # Torch remembers whether there is a Triton, and shall not take this one for it.
            _triton.has_triton_package()
            _triton.get_triton_version()
            importlib.import_module("torch._inductor.runtime.triton_compat")
        return _TritonModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Give the functions that are called where kernels are defined."""
        if module.__name__ == _NAME:
            vars(module).update(_FUNCTIONS, __version__=_VERSION)


def _is_imported_by_user() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        is_ours(frame.f_code.co_filename) or frame.f_code.co_filename.startswith("<frozen import")
    ):
        frame = frame.f_back
    return frame is not None and is_users(frame.f_code.co_filename)


class _TritonModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _TritonName(f"{self.__name__}.{name}")


class _TritonName:
    """Something of Triton's: only its name is known. It stands in annotations and in kernels."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _TritonName(f"{self._name}.{name}")

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        if self._name.endswith(".constexpr"):
            return arguments[0]
        raise CaptureError(
            f"{self._name} is called at {user_line()}, and Triton is not installed here; without "
            "it, only files that define kernels can be imported"
        )


class _TritonKernel:
    """A function that `triton.jit` would compile."""

    def __init__(self, function: Any) -> None:
        self.fn = function
        self.__name__ = getattr(function, "__name__", "?")

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return _refuse(self.__name__)

    run = warmup = __call__


def _jit(function: Any = None, **_: Any) -> Any:
    return _TritonKernel if function is None else _TritonKernel(function)


_FUNCTIONS: dict[str, Any] = {
    "jit": _jit,
    "autotune": lambda *_, **__: lambda kernel: kernel,
    "heuristics": lambda *_, **__: lambda kernel: kernel,
    "Config": lambda *_, **__: None,
    "cdiv": lambda number, by: -(-number // by),
    "next_power_of_2": lambda number: 1 << max(number - 1, 0).bit_length(),
}
