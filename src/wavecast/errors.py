"""The exceptions and the warning that wavecast raises.

WavecastError
├── UnknownName       a name that matches nothing, or several things; the message lists the nearest
├── InvalidInput      a file or value is wrong; the message says where and why
├── CaptureError      the user's step could not be traced; the message names the op and the line
├── MissingExtra      an optional dependency is not installed; the message says what to install
└── StoreUnavailable  the store of runs cannot be reached or written

DoubtfulInput is a warning: a part of a file was skipped, or the user should check it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

_LONGEST_WORD, _LONGEST_MESSAGE = 300, 800
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}")


class WavecastError(Exception):
    """The base of all errors. Messages say what is wrong, what is valid and what to do.

    ```python
    try:
        wavecast.device("h1000")
    except wavecast.WavecastError as error:
        print(error)  # unknown device "h1000"; did you mean ...
    ```
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(_short(str(message)))


class UnknownName(WavecastError):
    """A name matches nothing, or several things: `wavecast.device("h1000")`."""


class InvalidInput(WavecastError):
    """A file or a value is wrong: `wavecast.load_trace("not-a-trace.json")`."""


class CaptureError(WavecastError):
    """A training step could not be traced; the message names the op and the line of code."""

    script_code: int | None = None
    """The code with which a script ended itself; None if it did not."""


class MissingExtra(WavecastError):
    """An optional dependency is not installed: `pip install 'wavecast[torch]'` would install it."""


class StoreUnavailable(WavecastError):
    """A store of runs cannot be reached, read or written. Nothing was half-written."""


class DoubtfulInput(UserWarning):
    """A part of a file was skipped, or the user should check it; the warning says where and why."""

    def __init__(self, message: object = "") -> None:
        super().__init__(_short(str(message)))


def _short(message: str) -> str:
    r"""A message in one line of bearable length: what it quotes from a file may be of any length.

    Characters that control a terminal become escapes, such as \x1b.
    """
    line = " ".join(message.splitlines())
    if not line.isprintable():
        line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    line = _LONG_WORD.sub(lambda word: f"{word[0][:200]}...{word[0][-60:]}", line)
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[:600]} ... {line[-150:]}"


@contextmanager
def prefixed(prefix: str) -> Iterator[None]:
    """A context in which the messages of errors get a prefix, such as the file's path.

    Those of what is not installed or cannot be reached stay as they are: no input is to blame.
    """
    try:
        yield
    except (InvalidInput, UnknownName, CaptureError) as error:
        named = type(error)(f"{prefix}{error}")
        vars(named).update(vars(error))
        raise named from None


# The import name of each optional dependency, its name in messages, and the extra that installs it.
_EXTRAS = {
    "jax": ("jax", "jax"),
    "torch": ("torch", "torch"),
    "sqlalchemy": ("SQLAlchemy", "runs"),
    "fastapi": ("FastAPI", "server"),
    "pydantic": ("FastAPI", "server"),
    "uvicorn": ("uvicorn", "server"),
    "ortools": ("OR-Tools", "planning"),
    "ray": ("Ray", "cluster"),
    "scipy": ("scipy", "regression"),
}


_REQUIRED = frozenset({"numpy", "rich", "tomli_w", "typer"})
"""The import names of the packages that every installation of wavecast has."""


def missing_requirement(error: BaseException) -> str | None:
    """What to say of an error if a package that wavecast always needs is missing; else None."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    if name not in _REQUIRED:
        return None
    return f"wavecast needs {name}, which is not installed; install wavecast again with pip"


@contextmanager
def needing_extra(what: str) -> Iterator[None]:
    """A context in which a missing optional dependency raises MissingExtra.

    Args:
        what: the feature that needs it, for the message: "tracing a step".
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        name, extra = _EXTRAS[error.name]
        raise MissingExtra(f"{what} needs {name}: pip install 'wavecast[{extra}]'") from error
