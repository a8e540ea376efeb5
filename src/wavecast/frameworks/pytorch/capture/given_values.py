"""Values that the user gives for results that depend on data, by the line of code that uses them.

A traced step has no data, so what it reads from the GPU is assumed. `assume={"train.py:41": 0.5}`
gives the value that line 41 reads. Where a line makes a result whose size depends on data, such as
a boolean mask, it gives the number of rows.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from wavecast.errors import CaptureError, InvalidInput

Number = bool | int | float
Given = Number | Sequence[Number]
"""One value, or several in the order in which they are read. The last one is repeated."""

MOST_READS = 10_000
"""How often one line may read a value that is not known, in one call of the step."""
_OFTEN = 100
"""A line that does so this often is taken for the reason if a step does not end."""


class ReadKind(StrEnum):
    """What a line needs to know of the data."""

    VALUE = "value"
    SIZE = "size"


@dataclass(frozen=True)
class _GivenLine:
    """The values given for one line: `FILE:LINE`, or `FILE:LINE:value` or `FILE:LINE:size`."""

    key: str
    file: str
    line: int
    kind: ReadKind | None
    values: tuple[Number, ...]


class GivenValues:
    """The values given for a trace, and how often each line read a value that is not known."""

    def __init__(self, assume: Mapping[str, Given] | None = None) -> None:
        self._lines = [_parsed(key, value) for key, value in (assume or {}).items()]
        self._reads: Counter[tuple[str, ReadKind]] = Counter()
        self._used: dict[str, set[ReadKind]] = {}
        self._places: dict[str, set[ReadKind]] = {}

    def begin(self) -> None:
        """Count the reads of a new call of the step."""
        self._reads.clear()

    def read(self, place: str, kind: ReadKind) -> tuple[Number, str] | None:
        """The value given for a line, and the note about it. None if none is given.

        Args:
            place: the line of the user's code, as `file.py:12`.
            kind: what it needs.
        """
        self._places.setdefault(place, set()).add(kind)
        count = self._reads[place, kind]
        self._reads[place, kind] += 1
        if count >= MOST_READS:
            raise CaptureError(self._too_often(place, kind))
        for given in self._lines:
            if given.kind in (None, kind) and _is_at(place, given.file, given.line):
                self._use(given, kind, place)
                value = given.values[min(count, len(given.values) - 1)]
                texts = ", ".join(map(str, given.values))
                return value, f"{texts} {'was' if len(given.values) == 1 else 'were'} given"
        return None

    def check_used(self) -> None:
        """Refuse values that are given for lines that read nothing."""
        unused = [given.key for given in self._lines if given.key not in self._used]
        if not unused:
            return
        if not self._places:
            known = "the step reads no value that is not known"
        else:
            known = "such reads are at " + ", ".join(
                f"{place} ({' and '.join(sorted(kinds))})"
                for place, kinds in sorted(self._places.items())
            )
        raise InvalidInput(
            f"a value is given for {', '.join(unused)}, which reads nothing that is not known; "
            f"{known}"
        )

    def _too_often(self, place: str, kind: ReadKind) -> str:
        """The error about a loop, which reads at one line or at several."""
        often = {line for (line, _), count in self._reads.items() if count >= MOST_READS}
        also = "".join(f" and {line}" for line in sorted(often - {place}))
        return _loop_message(f"{place}{also}", place, kind, MOST_READS)

    def why_endless(self) -> str:
        """The line whose loop may be the reason that the step does not end; empty if none is."""
        for (place, kind), count in self._reads.most_common(1):
            if count >= _OFTEN:
                return _loop_message(place, place, kind, count - 1)
        return ""

    def _use(self, given: _GivenLine, kind: ReadKind, place: str) -> None:
        kinds = self._used.setdefault(given.key, set())
        kinds.add(kind)
        if given.kind is None and len(kinds) > 1:
            raise InvalidInput(
                f"{place} reads a value and makes a result whose size depends on data; say which "
                f"of them is given: {given.key}:value or {given.key}:size"
            )


def _loop_message(places: str, place: str, kind: ReadKind, times: int) -> str:
    what = "reads a GPU value" if kind is ReadKind.VALUE else "makes a result of unknown size"
    return (
        f"the step {what} at {places} more than {times:,} times in one call; if a loop waits for a "
        f'value to change, give the values in order, as in assume={{"{place}": [1, 0.5, 0]}} '
        f"(--assume {place}=1,0.5,0), or bound the loop"
    )


def whole(number: Number, place: str) -> int:
    """A given number as a whole number, for a line that needs one."""
    if number != number or number in (float("inf"), float("-inf")) or int(number) != number:
        raise InvalidInput(f"{number} is given for {place}, which needs a whole number")
    return int(number)


def _parsed(key: str, value: Given) -> _GivenLine:
    name, kind = key, None
    for candidate in ReadKind:
        if key.endswith(f":{candidate}"):
            name, kind = key.removesuffix(f":{candidate}"), candidate
    file, _, line = name.rpartition(":")
    if not file or not line.isdecimal():
        raise InvalidInput(
            f"{key!r} is not a line of code; write FILE:LINE, as in train.py:41, and "
            "FILE:LINE:size for the size of a result"
        )
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not values or not all(isinstance(number, bool | int | float) for number in values):
        raise InvalidInput(
            f"{value!r} is given for {key}; give a number, True or False, or a list of them"
        )
    return _GivenLine(key, os.path.normpath(file), int(line), kind, values)


@cache
def _is_at(place: str, file: str, line: int) -> bool:
    """Whether a line of the user's code is in a file, which may be named by its last parts."""
    place_file, _, place_line = place.rpartition(":")
    if place_line != str(line):
        return False
    wanted = Path(file).parts
    return Path.cwd().joinpath(place_file).parts[-len(wanted) :] == wanted
