"""One piece of memory that an op takes for itself, and when."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Taking:
    """Memory that an op takes inside and gives back."""

    nbytes: int
    passing: bool = False
    """Whether it is given back before the op takes more; else it is held to the op's end."""
    before_bytes: int | None = None
    """The size of the op's own result that is made after it. None: it is taken after all."""
