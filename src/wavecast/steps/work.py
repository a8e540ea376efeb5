"""The distinct pieces of work of a step, and which of them give the GPU something to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from wavecast import ops
from wavecast.predictors.base import Estimate
from wavecast.traces.arrays import Codes, StepArrays, encode
from wavecast.traces.step import Call, Op, Trace


@dataclass(frozen=True, eq=False)
class StepWork:
    """What predictors are asked about a step."""

    arrays: StepArrays
    launches: tuple[bool, ...]
    """Of each piece of work: whether the GPU has something to run."""
    kind: Codes
    """Of each piece of work: a number for its kind."""

    @cached_property
    def launched_calls(self) -> tuple[Call, ...]:
        """The pieces of work that give the GPU something to run."""
        pairs = zip(self.arrays.works, self.launches, strict=True)
        return tuple(call for call, launches in pairs if launches)

    @cached_property
    def launched_ops(self) -> tuple[Op, ...]:
        """The ops of `launched_calls`."""
        return tuple(call.op for call in self.launched_calls)

    def spread(self, answers: Sequence[Estimate | None]) -> tuple[Estimate | None, ...]:
        """The answers for `launched_calls` as one for each piece of work; None for the others."""
        following = iter(answers)
        return tuple(next(following) if launches else None for launches in self.launches)


def work_of(trace: Trace) -> StepWork:
    """The work of a trace; kept for the traces that were asked about last."""
    return _work(trace.arrays, trace.measurement is not None)


@lru_cache(maxsize=16)
def _work(arrays: StepArrays, measured: bool) -> StepWork:
    return StepWork(
        arrays=arrays,
        launches=tuple(
            bool(call.kernels) if measured else ops.launches(call.op) for call in arrays.works
        ),
        kind=encode([str(ops.kind(call.op)) for call in arrays.works])[1],
    )
