"""What is being done at this moment, in words: for a status line, and for whoever interrupts it.
Code that may take long says so. A process does one such thing at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_stages: list[str] = []
_failed: list[str] = []
"""What the innermost stage was that ended with an exception."""


def current() -> str:
    """What is being done, such as "compiling graph 3"; empty if nobody has said."""
    return _stages[-1] if _stages else ""


def say(text: str) -> None:
    """Say what is being done from here on, inside of the present stage."""
    _stages[-1:] = [text]


def last() -> str:
    """What was being done when an exception ended it; empty if that is not known."""
    return _failed[0] if _failed else ""


@contextmanager
def stage(text: str) -> Iterator[None]:
    """Say what the block does."""
    _stages.append(text)
    _failed.clear()
    depth = len(_stages)
    try:
        yield
    except BaseException:
        _failed.append(_stages[-1])
        raise
    finally:
        del _stages[depth - 1 :]


class Watched(ABC):
    """A training loop that is watched."""

    boundaries: list[Any]
    """The ends of its steps; each has a `line`."""
    running = False

    @property
    def ops_recorded(self) -> int:
        """How many ops were recorded; where none are, how many steps ended."""
        return len(self.boundaries)

    @property
    def first_trained(self) -> int | None:
        """The ops before its first forward pass with gradients; None where there is none."""
        return None

    @property
    def looks_ahead(self) -> bool:
        """Whether its step is known, and it only looks for rare work."""
        return False

    def why_endless(self) -> str:
        """Why it may not come to an end; empty if nothing is known of that."""
        return ""

    @abstractmethod
    def cut(self, why: str) -> None:
        """Stop the script."""
