"""What is kept to be used again: the results used last, and objects as keys of results."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """The results used last, by their keys; those unused for longest are forgotten.

    Args:
        most: the largest size of all kept results together.
        size: the size of a result, from its key and itself; without it results are counted.
        fewest: how many of the last results are kept, however large.
    """

    def __init__(
        self, most: int, size: Callable[[Any, T], int] = lambda key, result: 1, fewest: int = 0
    ) -> None:
        self._most = most
        self._size = size
        self._fewest = fewest
        self._results: dict[Hashable, T] = {}
        self._total = 0

    def get(self, key: Hashable) -> T | None:
        """The result of a key, which is now the one used last; None if it is not kept."""
        if key not in self._results:
            return None
        result = self._results[key] = self._results.pop(key)
        return result

    def put(self, key: Hashable, result: T) -> T:
        """Keep a result, which is returned, and forget others if there is no room."""
        self.forget(key)
        self._results[key] = result
        self._total += self._size(key, result)
        while self._total > self._most and len(self._results) > self._fewest:
            self.forget(next(iter(self._results)))
        return result

    def forget(self, key: Hashable) -> None:
        """Keep the result of a key no longer."""
        if key in self._results:
            self._total -= self._size(key, self._results.pop(key))


class Same(Generic[T]):
    """An object as a key: it equals only itself, since hashing all of a trace would take long.

    The key holds the object, so that no other one gets its place in memory.
    """

    def __init__(self, value: T) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)
