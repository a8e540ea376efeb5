"""Changes to formulas and rules of the package, which the checks of the papers must notice.

A mutation names an attribute as `module:name` or `module:Class.name`, and the Python expression
that takes its place. The expression sees the names of the module, and what it replaces as
`original`. Every module that imported the attribute by name gets the changed one too, so that
nothing goes on with the old formula.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_OURS = ("wavecast", "lab")


@dataclass(frozen=True)
class Mutation:
    """One change, as a record of lab/score/requirements has it."""

    what: str
    """The change in words."""
    where: str
    """The attribute that is changed."""
    to: str
    """The expression that takes its place."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The package with this change, until the end of the block."""
        name, _, path = self.where.partition(":")
        module = importlib.import_module(name)
        *owners, attribute = path.split(".")
        owner: Any = module
        for part in owners:
            owner = getattr(owner, part)
        original = vars(owner)[attribute]
        changed = eval(self.to, {**vars(module), "original": original})
        places = [(owner, attribute)]
        if owner is module:
            places += _importers(original)
        try:
            for place, known_as in places:
                setattr(place, known_as, changed)
            yield
        finally:
            for place, known_as in places:
                setattr(place, known_as, original)


def _importers(original: object) -> list[tuple[Any, str]]:
    """The modules of ours that hold an object, and the names by which they know it."""
    if isinstance(original, (int, float, str)):  # equal numbers may be the same object by chance
        return []
    return [
        (module, known_as)
        for name, module in list(sys.modules.items())
        if module is not None and name.partition(".")[0] in _OURS
        for known_as, value in list(vars(module).items())
        if value is original
    ]
