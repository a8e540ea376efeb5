"""What the ranks of a parallel step run: one group for all ranks that run the same."""

from __future__ import annotations

from dataclasses import dataclass

from wavecast.parallel.strategy import Parallel
from wavecast.traces.step import Trace


@dataclass(frozen=True)
class RankGroup:
    """Ranks that run the same ops. Without a pipeline there is one group."""

    ranks: int
    """How many ranks are in the group."""
    stage: int
    """Their stage of the pipeline, from 0."""
    chunks: tuple[Trace, ...]
    """The forward and backward pass of one micro-batch through each part of the model that the
    stage has (one, unless `Parallel.virtual`). Gradients are kept, not reduced."""
    last: tuple[Trace, ...]
    """The same for the last micro-batch, whose backward pass also reduces gradients. It equals
    `chunks` where all reduction follows the backward pass."""
    tail: Trace
    """What follows the last backward pass: the rest of the reduction, clipping, the optimizer."""


@dataclass(frozen=True)
class ParallelStep:
    """One optimizer step of all ranks."""

    strategy: Parallel
    groups: tuple[RankGroup, ...]
    """The distinct groups, one for each pipeline stage, in order of the stages."""
    notes: tuple[str, ...] = ()
    """What was assumed: how products were paired, where the model was cut, ..."""
