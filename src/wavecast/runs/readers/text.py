"""Lines and numbers of text that nobody vouches for."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from wavecast.errors import DoubtfulInput, InvalidInput

MOST_TOLD = 10
"""Doubts of one kind and file that are told one by one; the others are counted."""
LONGEST_LINE = 1 << 20
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def warn(doubt: str) -> None:
    """Tell of a doubt as a Python warning."""
    warnings.warn(doubt, DoubtfulInput, stacklevel=2)


@dataclass
class Doubts:
    """What is odd in a file, told as it is found; of many of a kind, the first ones."""

    path: Path
    told: Callable[[str], None] = warn
    counts: dict[str, int] = field(default_factory=dict)

    def tell(self, place: str, what: str, kind: str = "") -> None:
        """Tell of a doubt.

        Args:
            place: where in the file.
            what: is doubtful and what is done about it.
            kind: what doubts of this kind are called when there are many.
        """
        kind = kind or what
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.counts[kind] <= MOST_TOLD:
            self.told(f"{self.path}: {place}: {what}" if place else f"{self.path}: {what}")

    def close(self) -> None:
        """Tell how many doubts were not told one by one."""
        for kind, count in self.counts.items():
            if count > MOST_TOLD:
                self.told(f"{self.path}: {count - MOST_TOLD} more lines like this: {kind}")


def read_lines(path: Path, doubts: Doubts, strict: bool = False) -> Iterator[tuple[int, str]]:
    """The lines of a text file, numbered from 1, without their ends.

    A last line without an end may have been cut off, in the middle of a number even: it is left
    out, and told.

    Args:
        path: the file.
        doubts: are told of lines that are not UTF-8, and of a last one without an end.
        strict: refuse what is not UTF-8; otherwise its odd characters are replaced.
    """
    with open_file(path) as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            if number == 1:
                line = _without_mark(path, line)
            if not line.endswith(b"\n"):
                if len(line) >= LONGEST_LINE:
                    raise InvalidInput(f"{path}: line {number} is longer than {LONGEST_LINE} bytes")
                doubts.tell(
                    f"line {number}",
                    "has no line end: it may be cut off and is left out; end it if it is whole",
                )
                return
            yield number, _decoded(path, number, line.rstrip(b"\r\n"), doubts, strict)


def read_whole(path: Path, most_bytes: int) -> str:
    """A whole file of UTF-8 text."""
    with open_file(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise InvalidInput(f"{path}: is larger than {most_bytes >> 20} MiB; is it what it seems?")
    try:
        return _without_mark(path, content).decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidInput(f"{path}: line {line} is not UTF-8 text") from None


def read_head(path: Path, size: int = 4096) -> bytes:
    """The first bytes of a file."""
    with open_file(path) as file:
        return file.read(size)


def parse_json(text: str, place: str) -> Any:
    """The value of a JSON text.

    NaN and Infinity are numbers here: losses are such. `number_of` knows them for what they are.

    Raises:
        InvalidInput: it is none; says where.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f", line {error.lineno} column {error.colno}" if "\n" in text else ""
        raise InvalidInput(f"{place}{where}: is not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{place}: is not JSON that can be read: {error}") from None


def whole(text: str) -> int | None:
    """The whole number that a text is, if it is one."""
    text = text.strip()
    return int(text) if _WHOLE.fullmatch(text) else None


def number(text: str) -> float | None:
    """The finite number that a text is, if it is one."""
    text = text.strip()
    if len(text) > 400 or not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def whole_of(value: object) -> int | None:
    """The whole number that a value of JSON is or spells, if any."""
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else None
    return value if type(value) is int and abs(value) < 2**63 else None


def number_of(value: object) -> float | None:
    """The finite number that a value of JSON is or spells, if any."""
    if isinstance(value, str):
        return number(value)
    if type(value) is int:
        return float(value) if abs(value) < 2**63 else None
    return value if isinstance(value, float) and math.isfinite(value) else None


def open_file(path: Path) -> BinaryIO:
    """The file, open for reading.

    Raises:
        InvalidInput: it cannot be; says why.
    """
    try:
        return path.open("rb")
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read ({error.strerror})") from None


def _without_mark(path: Path, content: bytes) -> bytes:
    if coding := _MARKS.get(content[:2]):
        raise InvalidInput(f"{path}: is {coding} text; save it as UTF-8")
    return content.removeprefix(b"\xef\xbb\xbf")


def _decoded(path: Path, line: int, content: bytes, doubts: Doubts, strict: bool) -> str:
    if b"\0" in content:
        raise InvalidInput(f"{path}: line {line} has bytes of zero; it is not text, or damaged")
    try:
        return content.decode()
    except UnicodeDecodeError:
        if strict:
            raise InvalidInput(f"{path}: line {line} is not UTF-8 text; save it as UTF-8") from None
        doubts.tell(f"line {line}", "is not UTF-8 text; its odd characters are replaced")
        return content.decode(errors="replace")
