"""Readers of untrusted JSON: each gives what it names, completely checked, or raises Malformed."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

_LARGEST_DIMENSION = 1 << 48
MOST_DIMENSIONS = 64
"""The most dimensions of a tensor that PyTorch's kernels take."""

T = TypeVar("T")


class Malformed(Exception):
    """The JSON is not a trace; the message says where and why."""


def short(value: Any) -> str:
    """A value as an error message shows it, shortened."""
    return reprlib.repr(value)


def optional(value: Any, where: str, read: Callable[[Any, str], T]) -> T | None:
    """What a reader makes of a value; None if there is none."""
    return None if value is None else read(value, where)


def exact_fields(value: Any, where: str, names: tuple[str, ...]) -> dict[str, Any]:
    """An object that has exactly these fields."""
    if not isinstance(value, dict) or set(value) != set(names):
        raise Malformed(f"{where} should have exactly the fields {', '.join(names)}")
    return value


def listed(value: Any, where: str) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise Malformed(f"{where} should be a list")
    return value


def row_of(value: Any, length: int, where: str) -> list[Any]:
    """A list of so many items."""
    if len(listed(value, where)) != length:
        raise Malformed(f"{where} should have {length} items, not {len(value)}")
    return list(value)


def sparse_column(
    value: Any, where: str, length: int, read: Callable[[Any, str], Any]
) -> dict[int, Any]:
    """The values of a column of which most have their default, by position."""
    rows = [row_of(pair, 2, where) for pair in listed(value, where)]
    return {whole(i, where, high=length - 1): read(v, where) for i, v in rows}


def whole(value: Any, where: str, low: int = 0, high: int = 1 << 62) -> int:
    """A whole number in a range."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Malformed(f"{where}: {short(value)} is not a whole number from {low} to {high}")
    return value


def truth(value: Any, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise Malformed(f"{where} should be true or false")
    return value


def sizes(value: Any, where: str) -> tuple[int, ...]:
    """The sizes or strides of a tensor."""
    if len(listed(value, where)) > MOST_DIMENSIONS:
        raise Malformed(f"{where}: {len(value)} dimensions; a tensor has at most {MOST_DIMENSIONS}")
    return tuple(whole(v, where, high=_LARGEST_DIMENSION) for v in value)


def pair(value: Any, where: str) -> tuple[int, int]:
    """A compute capability."""
    major, minor = row_of(value, 2, where)
    return whole(major, where, high=99), whole(minor, where, high=99)


def triple(value: Any, where: str) -> tuple[int, int, int]:
    """Three whole numbers."""
    x, y, z = row_of(value, 3, where)
    return whole(x, where), whole(y, where), whole(z, where)


def amount(value: Any, where: str) -> float:
    """A finite number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed(f"{where}: {short(value)} is not a number")
    """A finite number from 0 on."""
    if not (math.isfinite(value) and value >= 0):
        raise Malformed(f"{where}: {short(value)} is not a finite number from 0 on")
    return float(value)


def text(value: Any, where: str) -> str:
    """A text."""
    if not isinstance(value, str):
        raise Malformed(f"{where}: {short(value)} is not a text")
    return value


def pick(table: Sequence[T], index: Any, where: str) -> T:
    """The item of a table that a number names."""
    return table[whole(index, where, high=len(table) - 1)]


def wholes(value: Any, where: str, low: int = 0, high: int = 1 << 62) -> list[int]:
    """A list of whole numbers in a range."""
    items = listed(value, where)
    if not set(map(type, items)) <= {int} or (
        items and not low <= min(items) <= max(items) <= high
    ):
        for item in items:
            whole(item, where, low, high)
    return items


def picks(table: Sequence[T], indices: Any, where: str) -> list[T]:
    """The items of a table that numbers name."""
    return [table[index] for index in wholes(indices, where, high=len(table) - 1)]


def sums(value: Any, where: str) -> list[int | None]:
    """A column that is stored as differences; null stays None and counts for nothing."""
    items = listed(value, where)
    wholes([item for item in items if item is not None], where, low=-(1 << 62))
    total = 0
    column: list[int | None] = []
    for item in items:
        if item is not None:
            total += item
        column.append(None if item is None else total)
    return column


def marked(value: Any, where: str, length: int, table: Sequence[T]) -> dict[int, T]:
    """The items of a table that some rows name, by row: two lists of differences."""
    rows, items = (sums(part, where) for part in row_of(value, 2, where))
    row_of(items, len(rows), where)
    return dict(zip(wholes(rows, where, high=length - 1), picks(table, items, where), strict=True))
