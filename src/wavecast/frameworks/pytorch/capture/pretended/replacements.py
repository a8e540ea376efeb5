"""Kernels of torch's dispatcher, and attributes of its objects, that are replaced while tracing.

When the replacement of a kernel is withdrawn, torch does not always go back to the one before
it. So each kernel is replaced once, by a function that calls the innermost of the traces that are
under way.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

Kernel = Callable[..., Any]

_active: dict[tuple[str, str], list[Kernel]] = {}
"""The replacements of the traces under way, the innermost last, by op and dispatch key."""


@contextmanager
def aten_kernels(key: str, kernels: Iterable[tuple[str, Kernel]]) -> Iterator[None]:
    """Replace the kernels of these aten ops for a dispatch key, inside the block."""
    library = torch.library.Library("aten", "IMPL")
    with ExitStack() as stack:
        stack.callback(library._destroy)
        for name, kernel in kernels:
            replacements = _active.setdefault((name, key), [])
            if not replacements:
                _register(library, name, key, kernel)
            replacements.append(kernel)
            stack.callback(replacements.pop)
        yield


def _register(library: Any, name: str, key: str, kernel: Kernel) -> None:
    replacements = _active[name, key]

    def call(*args: Any, **kwargs: Any) -> Any:
        return replacements[-1](*args, **kwargs)

    is_fallthrough = kernel is torch.library.fallthrough_kernel
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns of replaced kernels
        library.impl(name, kernel if is_fallthrough else call, key)


def replacing(stack: ExitStack) -> Callable[..., None]:
    """A function that replaces attributes of an object, by name, until the stack is closed."""

    def replace(owner: Any, **values: Any) -> None:
        for name, value in values.items():
            if name in vars(owner):
                stack.callback(setattr, owner, name, vars(owner)[name])
            else:
                stack.callback(delattr, owner, name)
            setattr(owner, name, value)

    return replace
