"""Operations of a network by category, to compare with tables of the paper."""

from __future__ import annotations

from collections import Counter

from wavecast.runs.regression.complexities import Category, Network, Pass


def ops_by_category(net: Network, which: Pass, batch: int = 1) -> dict[Category, int]:
    """The operations of the layers that have a coefficient."""
    counts: Counter[Category] = Counter()
    for layer in net.layers:
        if layer.category is not None:
            counts[layer.category] += layer.ops(which, batch)
    return dict(counts)
