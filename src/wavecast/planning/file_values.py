"""Values of users' TOML files and rows of their tables, checked: the message names the key."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput
from wavecast.planning.durations import seconds_of
from wavecast.reading import read_text

MOST = 100_000
"""No count in a file is larger."""


def number(least: float = 0.0, *, above: bool = False) -> Callable[[Any, str], float]:
    """A check of a number that is at least so much, or above it."""

    def check(value: Any, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not value < 1e30:
            raise InvalidInput(f"{where} must be a number, not {value!r}")
        if value < least or (above and value == least):
            word = "above" if above else "at least"
            raise InvalidInput(f"{where} must be {word} {least:g}, not {value:g}")
        return value

    return check


def whole(value: Any, where: str) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MOST:
        raise InvalidInput(f"{where} must be a whole number from 1 to {MOST}, not {value!r}")
    return value


def one_of(words: Sequence[str]) -> Callable[[Any, str], str]:
    """A check of a text that is one of some words."""

    def check(value: Any, where: str) -> str:
        if value not in words:
            listed = " or ".join(f'"{word}"' for word in words)
            raise InvalidInput(f"{where} must be {listed}, not {value!r}")
        return str(value)

    return check


def text(value: Any, where: str) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidInput(f"{where} must be a text in quotes, not {value!r}")
    return value


def yes_or_no(value: Any, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{where} must be true or false, not {value!r}")
    return value


def time_s(value: Any, where: str) -> float:
    """The seconds of a time in a file: a text such as "48h", or a number of seconds."""
    if isinstance(value, str):
        return seconds_of(value, where)
    return number()(value, where)


def texts(value: Any, where: str) -> tuple[str, ...]:
    """A list of texts."""
    if not isinstance(value, list) or not value:
        raise InvalidInput(f"{where} must be a list of texts in quotes, not {value!r}")
    return tuple(text(one, where) for one in value)


def wholes(value: Any, where: str) -> tuple[int, ...]:
    """A list of whole numbers."""
    if not isinstance(value, list) or not value:
        raise InvalidInput(f"{where} must be a list of whole numbers, not {value!r}")
    return tuple(whole(one, where) for one in value)


def table_rows(
    path: Path, what: str, columns: Sequence[str]
) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV file, with the numbers of their lines.

    Args:
        path: the file.
        what: what it is, for the message: "a table of jobs".
        columns: those that it must have.

    Raises:
        InvalidInput: it is no such table. The caller adds its name.
    """
    reader = csv.DictReader(io.StringIO(read_text(path), newline=None))
    try:
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise InvalidInput(f"has no column {missing[0]}; {what} has {', '.join(columns)}")
        for row in reader:
            if None in row:
                raise InvalidInput(f"line {reader.line_num} has more cells than there are columns")
            yield reader.line_num, row
    except csv.Error as error:
        raise InvalidInput(f"is not CSV: {error}") from None
