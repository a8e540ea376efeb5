"""What the ranks of a parallel step run: one group for all ranks that run the same."""

from __future__ import annotations

from dataclasses import dataclass

from wavecast.parallel.strategy import Parallel
from wavecast.showing import Brief
from wavecast.traces.step import TensorSpec, Trace


@dataclass(frozen=True, repr=False)
class ModelPart(Brief):
    """A part of the model on one rank: the whole model, or one chunk of a pipeline stage."""

    plain: Trace
    """One micro-batch whose gradients are only added up: forward and backward pass."""
    last: Trace
    """The last micro-batch: its backward pass also reduces gradients, and the optimizer follows."""
    end: int
    """The position in `last` where the backward pass ends."""


@dataclass(frozen=True, repr=False)
class RankGroup(Brief):
    """Ranks that run the same ops. Without a pipeline there is one group."""

    ranks: int
    """How many ranks are in the group."""
    stage: int
    """Their stage of the pipeline, from 0."""
    parts: tuple[ModelPart, ...]
    """The parts of the model that the stage has: one, unless `Parallel.virtual`."""


@dataclass(frozen=True, repr=False)
class ParallelStep(Brief):
    """One optimizer step of all ranks."""

    strategy: Parallel
    groups: tuple[RankGroup, ...]
    """The distinct groups, one for each pipeline stage, in order of the stages."""
    boundary: TensorSpec | None = None
    """The tensor that one stage sends to the next.

    None without a pipeline, or where the step's own code sends it."""
    notes: tuple[str, ...] = ()
    """What was assumed: how products were paired, where the model was cut, ..."""
