"""What can go wrong, as one small family.

WavecastError
├── UnknownName       a GPU, model or op that we do not know; names the nearest
├── InvalidInput      a file or value that is not what it should be; says where and why
├── CaptureError      the user's step could not be traced; names the op and the line
├── MissingExtra      an optional dependency is not installed; says what to install
└── StoreUnavailable  the store of runs cannot be reached or written

DoubtfulInput is a warning: a file was read, but not all of it, or it should be looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class WavecastError(Exception):
    """Anything wavecast refuses to do, with what was asked, what is known and what to do."""


class UnknownName(WavecastError):
    """A name that resolves to nothing, or to several things."""


class InvalidInput(WavecastError):
    """A file or a value that is not what it should be."""


class CaptureError(WavecastError):
    """A training step that could not be traced."""


class MissingExtra(WavecastError):
    """An optional dependency that this needs and that is not installed."""


class StoreUnavailable(WavecastError):
    """A run store that cannot be reached, read or written; what it holds is whole."""


class DoubtfulInput(UserWarning):
    """Part of a file that was left out, or should be looked at; says where and why."""


# What an optional dependency is called, and the extra that brings it.
_EXTRAS = {"torch": ("torch", "torch"), "sqlalchemy": ("SQLAlchemy", "runs")}


@contextmanager
def needing_extra(what: str) -> Iterator[None]:
    """A block whose missing imports become a MissingExtra that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        name, extra = _EXTRAS[error.name]
        raise MissingExtra(f"{what} needs {name}: pip install 'wavecast[{extra}]'") from error
