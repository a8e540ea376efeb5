"""Labels of an op's dimensions: what is the same in its inputs and outputs.

Equal labels go together: they are sharded alike or not at all. A label of inputs that an output
lacks is summed there, so that a shard of it gives partial sums. An empty label is a dimension of
size 1 that is broadcast, or one that nothing depends on.
"""

from __future__ import annotations

from dataclasses import dataclass

Labels = tuple[str, ...]


@dataclass(frozen=True)
class Dims:
    """The labels of an op's dimensions."""

    inputs: tuple[Labels, ...]
    outputs: tuple[Labels, ...]
    whole: frozenset[str] = frozenset()
    linear: bool = False
    """Whether partial sums of its inputs give partial sums of its outputs."""
    looked_up: str = ""
    """The dimension of a table whose rows are chosen by index."""
    repeats: tuple[tuple[str, str, int], ...] = ()
    """Labels (many, few, times): so many of the first share one of the second, as grouped heads."""
    vocabulary: str = ""
    """The dimension over which a loss normalises. A shard of it takes all-reduces of its rows."""
    reductions: int = 0
    """How many such all-reduces."""
    rows: bool = False
    """Whether `whole` dimensions of tokens are local: a rank sorts and picks its own tokens."""
    factors: tuple[int, ...] = ()
    """The two inputs of a matmul or convolution."""
    sums_all: bool = False
    """Whether an output without labels is a sum, not a seed or a count."""
