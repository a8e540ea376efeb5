"""Attributes of torch's modules and classes that are replaced while a step is traced."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any


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
