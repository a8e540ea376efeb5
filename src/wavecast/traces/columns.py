"""Columns of a trace file: small numbers that repeat where layers do, so that they pack well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


class DistinctItems:
    """Distinct values in order of first use."""

    def __init__(self) -> None:
        self._index: dict[Any, int] = {}

    def add(self, value: Any) -> int:
        """The number of a value."""
        return self._index.setdefault(value, len(self._index))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._index)


def differences(column: Iterable[int | None]) -> list[int | None]:
    """Each number less the one before it; None stays None and is passed over."""
    found: list[int | None] = []
    last = 0
    for item in column:
        if item is None:
            found.append(None)
        else:
            found.append(item - last)
            last = item
    return found


def marks(column: Iterable[int | None]) -> list[list[int | None]]:
    """The rows that have a number, and these numbers, both as differences."""
    known = [(row, item) for row, item in enumerate(column) if item is not None]
    return [differences(row for row, _ in known), differences(item for _, item in known)]
