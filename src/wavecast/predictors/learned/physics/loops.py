"""What the threads of a kernel do that loops over values: how many of them, and how many values."""

from __future__ import annotations

from typing import NamedTuple

SM_THREADS, SM_BLOCKS = 2048, 32
"""Threads and blocks that an SM runs at a time."""


class ThreadLoop(NamedTuple):
    """Thread blocks whose threads load values one after the other, or a few at a time."""

    blocks: int
    """Thread blocks, before a sum is divided among more of them."""
    threads: int
    """Threads of a block."""
    resident: int
    """Blocks that an SM runs at a time."""
    terms: float
    """Values that each thread loads."""
    loads: int = 1
    """Those of them that it loads at a time."""
    sharing: int = 0
    """Threads that add up the partial sums of blocks; 0 if blocks do not share sums."""
    ragged: bool = False
    """Whether some threads of the last block have no sum: they read partial sums that nobody wrote,
    which L2 does not hold."""
    strided: bool = False
    """Whether threads that are neighbours load values that are not."""
    offsets: float = 0.0
    """Elements that finding the place of each value takes."""


def loop(blocks: int, threads: int, terms: float) -> ThreadLoop:
    """Blocks of which an SM runs as many as it has threads for."""
    return ThreadLoop(blocks, threads, min(SM_THREADS // threads, SM_BLOCKS), terms)
