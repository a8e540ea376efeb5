"""Attributes of other libraries' modules, classes and objects, replaced for a while."""

from __future__ import annotations

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
