"""What importing a file of runs did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of importing one file."""

    file: str
    """The file."""
    runs: int
    """How many runs the file has."""
    new: int
    """How many of them the store did not have."""
    resumed_at: int = 0
    """How many of them an earlier import, which was interrupted, had added."""
