"""Warnings about logs: what is wrong in a file, where, and what was done about it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from wavecast.errors import DoubtfulInput

MOST_TOLD = 10
"""How many warnings of one kind are given for one file. Further ones are only counted."""

_MOST_KINDS = 20
"""How many kinds are told apart in one file: what it says may be in the name of a kind."""

_OTHERS = "other problems"


def warn(doubt: str) -> None:
    """Give a Python warning, a `DoubtfulInput`."""
    warnings.warn(doubt, DoubtfulInput, stacklevel=2)


@dataclass
class Doubts:
    """Gives the warnings about one file while the file is read."""

    path: Path
    told: Callable[[str], None] = warn
    """The function that takes each warning."""
    counts: dict[str, int] = field(default_factory=dict)
    """How many warnings of each kind there were."""

    def tell(self, place: str, what: str, kind: str = "") -> None:
        """Warn about a problem in the file.

        Args:
            place: where in the file: "line 12". Empty for the whole file.
            what: the problem, and what was done about it.
            kind: the problem without its details, under which many are counted; `what` if empty.
        """
        kind = kind or what
        if kind not in self.counts and len(self.counts) >= _MOST_KINDS:
            kind = _OTHERS
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.counts[kind] <= MOST_TOLD:
            self._tell(f"{place}: {what}" if place else what)

    def close(self) -> None:
        """Say how many further warnings there were of each kind."""
        for kind, count in self.counts.items():
            if count > MOST_TOLD:
                self._tell(f"{count - MOST_TOLD} more lines like this: {kind}")

    def _tell(self, doubt: str) -> None:
        # What a file says may control a terminal; a DoubtfulInput is one line that does not.
        self.told(str(DoubtfulInput(f"{self.path}: {doubt}")))
