"""The distinct pieces of work of a step, and which of them launch kernels."""

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
    """The distinct pieces of work of a step, as predictors are asked for them."""

    arrays: StepArrays
    launches: tuple[bool, ...]
    """Whether each piece of work launches a kernel."""
    kind_names: tuple[str, ...]
    """The op kind of each piece of work."""

    @cached_property
    def kind(self) -> Codes:
        """A number for the op kind of each piece of work."""
        return encode(self.kind_names)[1]

    @cached_property
    def launched_calls(self) -> tuple[Call, ...]:
        """The pieces of work that launch a kernel."""
        pairs = zip(self.arrays.works, self.launches, strict=True)
        return tuple(call for call, launches in pairs if launches)

    @cached_property
    def launched_ops(self) -> tuple[Op, ...]:
        """The ops of `launched_calls`."""
        return tuple(call.op for call in self.launched_calls)

    def spread(self, answers: Sequence[Estimate | None]) -> tuple[Estimate | None, ...]:
        """One answer for each piece of work, from those for `launched_calls`; None elsewhere."""
        remaining = iter(answers)
        return tuple(next(remaining) if launches else None for launches in self.launches)


def work_of(trace: Trace) -> StepWork:
    """The work of a trace; the most recent ones are cached."""
    return _work(trace.arrays, trace.measurement is not None)


@lru_cache(maxsize=16)
def _work(arrays: StepArrays, measured: bool) -> StepWork:
    return StepWork(
        arrays=arrays,
        launches=tuple(
            bool(call.kernels) if measured else ops.launches(call.op) for call in arrays.works
        ),
        kind_names=tuple(str(ops.kind(call.op)) for call in arrays.works),
    )
