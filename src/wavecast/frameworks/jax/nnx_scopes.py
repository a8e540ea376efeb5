"""Scopes for Flax's NNX modules, whose calls leave no names in a lowered step.

Flax's older modules (linen) and Keras's layers name their scopes themselves. While a step is
lowered, the classes of the NNX modules among its arguments are made to call themselves in
`jax.named_scope`, by the attribute of the module that holds them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

_CALL = "__call__"


@contextmanager
def named_modules(arguments: Iterable[Any]) -> Iterator[None]:
    """Within it, calls of the NNX modules among the arguments are scopes."""
    classes = _classes(arguments)
    kept = {one: vars(one)[_CALL] for one in classes if _CALL in vars(one)}
    stack: list[Any] = []
    try:
        for one, call in kept.items():
            setattr(one, _CALL, _scoped(call, stack))
        yield
    finally:
        for one, call in kept.items():
            setattr(one, _CALL, call)


def _classes(arguments: Iterable[Any]) -> set[type]:
    """The classes of all NNX modules within the arguments, and those that they inherit from."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return set()
    found = {
        type(module)
        for argument in arguments
        if isinstance(argument, nnx.Module)
        for _, module in nnx.iter_modules(argument)
    }
    return {base for one in found for base in one.__mro__ if issubclass(base, nnx.Module)}


def _scoped(call: Callable[..., Any], stack: list[Any]) -> Callable[..., Any]:
    @wraps(call)
    def scoped(module: Any, *arguments: Any, **named: Any) -> Any:
        import jax

        name = _name_in(stack[-1], module) if stack else type(module).__name__
        if (stack and stack[-1] is module) or not name:
            return call(module, *arguments, **named)
        stack.append(module)
        try:
            with jax.named_scope(name):
                return call(module, *arguments, **named)
        finally:
            stack.pop()

    return scoped


def _name_in(holder: Any, module: Any) -> str:
    """The attribute that holds a module in another: "norm", "blocks.3"; empty if none does."""
    for name, value in vars(holder).items():
        if value is module:
            return str(name)
        if isinstance(value, dict):
            pairs: Iterable[tuple[Any, Any]] = value.items()
        elif (
            hasattr(value, "__iter__") and hasattr(value, "__len__") and not hasattr(value, "dtype")
        ):
            pairs = enumerate(value)
        else:
            continue
        for key, one in pairs:
            if one is module:
                return f"{name}.{key}"
    return ""
