"""Lines, JSON and numbers of files that may be damaged: every problem is named with its place."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from wavecast import reading
from wavecast.errors import DoubtfulInput, InvalidInput

LONGEST_LINE = 1 << 20
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def read_lines(path: Path, doubts: Doubts, strict: bool = False) -> Iterator[tuple[int, str]]:
    """The lines of a text file, numbered from 1, without their line ends.

    A last line without a line end may be cut off, perhaps within a number. It is left out with a
    warning.

    Args:
        doubts: takes warnings about lines that are not UTF-8 or have no line end.
        strict: refuse a file that is not UTF-8. Otherwise its invalid characters are replaced.
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
                    "has no line end: it may be cut off and is left out; add a line end if it is "
                    "complete",
                )
                return
            yield number, _decoded(path, number, line.rstrip(b"\r\n"), doubts, strict)


def read_whole(path: Path, most_bytes: int) -> str:
    """The content of a file of UTF-8 text, which may have `most_bytes` at most."""
    content = reading.read_bytes(path, most_bytes, prefix=f"{path}: ")
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

    NaN and Infinity are accepted, because losses may have these values. `number_of` refuses them.

    Raises:
        InvalidInput: the text is not JSON; says where.
    """
    return reading.parse_json(text, constants=True, prefix=f"{place}: ")


def whole(text: str) -> int | None:
    """The whole number that a text spells. None if it is something else."""
    text = text.strip()
    return int(text) if _WHOLE.fullmatch(text) else None


def number(text: str) -> float | None:
    """The finite number that a text spells. None if it is something else."""
    text = text.strip()
    if len(text) > 400 or not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def whole_of(value: object) -> int | None:
    """The whole number that a JSON value is or spells. None if it is something else."""
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else None
    return value if type(value) is int and abs(value) < 2**63 else None


def number_of(value: object) -> float | None:
    """The finite number that a JSON value is or spells. None if it is something else."""
    if isinstance(value, str):
        return number(value)
    if type(value) is int:
        return float(value) if abs(value) < 2**63 else None
    return value if isinstance(value, float) and math.isfinite(value) else None


def open_file(path: Path) -> BinaryIO:
    """The file, open for reading.

    Raises:
        InvalidInput: the file cannot be opened; says why. So does reading it.
    """
    return reading.open_file(path, prefix=f"{path}: ")


def _without_mark(path: Path, content: bytes) -> bytes:
    if coding := _MARKS.get(content[:2]):
        raise InvalidInput(f"{path}: is {coding} text; save it as UTF-8")
    return content.removeprefix(b"\xef\xbb\xbf")


def _decoded(path: Path, line: int, content: bytes, doubts: Doubts, strict: bool) -> str:
    if b"\0" in content:
        raise InvalidInput(f"{path}: line {line} has zero bytes: it is not text, or is damaged")
    try:
        return content.decode()
    except UnicodeDecodeError:
        if strict:
            raise InvalidInput(f"{path}: line {line} is not UTF-8 text; save it as UTF-8") from None
        doubts.tell(f"line {line}", "is not UTF-8 text; its invalid characters are replaced")
        return content.decode(errors="replace")


# Warnings about logs: what is wrong in a file, where, and what was done about it.


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


# The outermost `name: value` lines of a YAML file, which is all that these logs need.


_PAIR = re.compile(r"([\w./-]+):(.*)", re.ASCII)


def read_flat(lines: Iterable[str]) -> dict[str, str]:
    """The pairs at the outermost level, as text. Nested values and lists are ignored."""
    pairs = {}
    for line in lines:
        pair = _PAIR.fullmatch(line)
        value = pair[2].strip() if pair else ""
        if pair is None or not value or value[0] in "&*!|>[{#":
            continue
        if value[0] in "'\"" and value[-1] == value[0] and len(value) > 1:
            value = value[1:-1]
        pairs[pair[1]] = value
    return pairs
