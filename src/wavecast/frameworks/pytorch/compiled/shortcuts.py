"""Functions of torch's compiler that quicker ones with equal results stand in for.

Torch walks over a graph dozens of times and asks small questions at each node. On a GPU that hides
behind the generation of code, which is left out here.

Each shortcut was written for one text of torch's function. Where the installed torch has another
one, torch's own function runs.
"""

from __future__ import annotations

import hashlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from wavecast.frameworks.pytorch.capture.replacements import replacing

Function = Callable[..., Any]


@dataclass(frozen=True)
class Shortcut:
    """A quicker function that stands in for one of torch."""

    owner: str
    """The module of torch's function, or module and class, as "torch.fx.graph:Graph"."""
    name: str
    digest: str
    """The digest of the text of torch's function for which it was written."""
    make: Callable[[Any], Function]
    """Makes the quicker function; it is given torch's, for what it leaves to it."""
    relies: tuple[tuple[str, str], ...] = ()
    """Other functions of torch whose text it relies on, as "torch.fx.graph:Graph.lint", and the
    digests of these."""

    def made(self) -> StandIn | None:
        """The function for the installed torch; None if torch has another text or other helpers."""
        try:
            owner = pkgutil.resolve_name(self.owner)
            original = vars(owner)[self.name]
            is_known = digest_of(original) == self.digest and all(
                digest_of(pkgutil.resolve_name(name)) == digest for name, digest in self.relies
            )
            return StandIn(owner, self.name, original, self.make(original)) if is_known else None
        except (ImportError, AttributeError, KeyError):
            return None


class StandIn(NamedTuple):
    """A shortcut that the installed torch allows."""

    owner: Any
    name: str
    original: Any
    function: Function


def digest_of(function: Any) -> str:
    """The digest of a function's text; empty if it has none."""
    try:
        text = inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def in_place_of(
    owner: str, name: str, digest: str, *relies: tuple[str, str]
) -> Callable[[Callable[[Any], Any]], Shortcut]:
    """A decorator that makes a shortcut of the function that makes it."""
    return lambda make: Shortcut(owner, name, digest, make, relies)


@cache
def allowed(shortcuts: tuple[Shortcut, ...]) -> tuple[StandIn, ...]:
    """The shortcuts that the installed torch allows."""
    return tuple(made for shortcut in shortcuts if (made := shortcut.made()) is not None)


@contextmanager
def taken(shortcuts: tuple[Shortcut, ...]) -> Iterator[None]:
    """Take these shortcuts where the installed torch allows it, inside the block."""
    with ExitStack() as stack:
        replace = replacing(stack)
        for shortcut in allowed(shortcuts):
            for place in _places(shortcut):
                replace(place, **{shortcut.name: shortcut.function})
        yield


def _places(shortcut: StandIn) -> Iterator[Any]:
    """The owner of a function, and the modules of torch that have imported it by its name."""
    yield shortcut.owner
    if isinstance(shortcut.owner, ModuleType):
        for name, module in list(sys.modules.items()):
            is_other = name.startswith("torch.") and module is not shortcut.owner
            if is_other and vars(module).get(shortcut.name) is shortcut.original:
                yield module
