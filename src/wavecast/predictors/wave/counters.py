"""Which kernels deserve hardware counters, whose collection is slow."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from wavecast import ops
from wavecast.ops import Kind
from wavecast.predictors.wave.kernel import CONTRACTIONS
from wavecast.traces.step import Call, Phase


def kernels_that_matter(
    calls: Iterable[Call],
    percentile: float = 99.5,
    apart: frozenset[Kind] = CONTRACTIONS,
) -> tuple[Call, ...]:
    """The calls that are so long that their kernels deserve hardware counters (Habitat, 4.2).

    These are at or above the percentile of their phase; for the others gamma = 1 is good enough.
    As in Habitat's code, each phase has its own percentile, and ops that are not wave-scaled do
    not count.

    Args:
        calls: The calls of a measured step.
        percentile: The percentile of the calls' times.
        apart: Kinds of ops that are not wave-scaled.
    """
    timed: dict[Phase, list[tuple[int, Call, float]]] = {}
    for position, call in enumerate(calls):
        if call.kernels and ops.kind(call.op) not in apart:
            seconds = sum(kernel.seconds for kernel in call.kernels)
            timed.setdefault(call.phase, []).append((position, call, seconds))
    chosen = []
    for group in timed.values():
        least = np.percentile([seconds for _, _, seconds in group], percentile)
        chosen += [(position, call) for position, call, seconds in group if seconds >= least]
    return tuple(call for _, call in sorted(chosen, key=lambda pair: pair[0]))
