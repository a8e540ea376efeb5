"""What is replaced for a while: attributes of modules, classes and objects; the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def replacing() -> Iterator[Callable[..., None]]:
    """A function that replaces attributes of an owner, by name; the block's end puts them back.

    The last that was replaced is put back first. What an owner only inherited, or did not have, is
    deleted again.
    """
    with ExitStack() as stack:

        def replace(owner: Any, **values: Any) -> None:
            for name, value in values.items():
                if name in vars(owner):
                    stack.callback(setattr, owner, name, vars(owner)[name])
                else:
                    stack.callback(delattr, owner, name)
                setattr(owner, name, value)

        yield replace


@contextmanager
def environment_kept() -> Iterator[None]:
    """Whatever the block does to the environment is undone at its end."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ |= before
