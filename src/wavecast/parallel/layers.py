"""The axes that shard the layers themselves: context, expert and tensor."""

from __future__ import annotations

from wavecast.errors import InvalidInput
from wavecast.parallel.context import NOTE, context_axis
from wavecast.parallel.experts import expert_axis
from wavecast.parallel.sharding.rank_trace import ShardedAxis, rank_trace
from wavecast.parallel.sharding.units import Units
from wavecast.parallel.strategy import Parallel
from wavecast.parallel.tensor import tensor_axis
from wavecast.traces.step import Trace


class Layers:
    """The layers of a step, sharded by one strategy after another.

    Args:
        trace: forward pass, backward pass and optimizer of one micro-batch.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._units: Units | None = None

    def sharded(self, strategy: Parallel) -> tuple[Trace, tuple[str, ...]]:
        """The step of one rank of the axes that shard layers, and what was assumed.

        Raises:
            InvalidInput: the layers cannot be sharded so. The message says what would fit.
        """
        if strategy.tensor == strategy.context == strategy.expert == 1:
            return self._trace, ()
        if not self._trace.values:
            raise InvalidInput(
                "tensor, sequence, context and expert parallelism follow the values of a step, and "
                "this trace has none (it is a profile, or was written by an earlier version); "
                "trace the step again, or use data, shard and pipeline only"
            )
        if self._units is None:
            self._units = Units(self._trace)
        axes: list[ShardedAxis] = []
        notes: tuple[str, ...] = ()
        context = context_axis(self._trace, strategy)
        if context is not None:
            axes.append(context)
            notes += (NOTE,)
        for shard in (expert_axis, tensor_axis):
            made = shard(self._trace, self._units, strategy)
            if made is not None:
                axes.append(made[0])
                notes += made[1]
        return rank_trace(self._trace, axes), notes


def with_layers_sharded(trace: Trace, strategy: Parallel) -> tuple[Trace, tuple[str, ...]]:
    """The step of one rank of the axes that shard layers, and what was assumed.

    Raises:
        InvalidInput: the layers cannot be sharded so. The message says what would fit.
    """
    return Layers(trace).sharded(strategy)
