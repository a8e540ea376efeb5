"""One piece of scratch memory that an op allocates while it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workspace:
    """Scratch memory that an op allocates and frees while it runs."""

    nbytes: int
    released_early: bool = False
    """True if it is freed before the op allocates anything else; False if it is held to the end."""
    before_bytes: int | None = None
    """The size of the op's result that is allocated next. None when it comes after all."""
