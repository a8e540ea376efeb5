"""The axes that divide the layers themselves: context, expert and tensor, in this order."""

from __future__ import annotations

from wavecast.parallel.context import with_context
from wavecast.parallel.experts import with_experts
from wavecast.parallel.strategy import Parallel
from wavecast.parallel.tensor import with_tensor
from wavecast.traces.step import Trace


def with_layers_divided(trace: Trace, strategy: Parallel) -> tuple[Trace, tuple[str, ...]]:
    """The step of one rank of the axes that divide layers, and what was assumed.

    Args:
        trace: forward pass, backward pass and optimizer of one micro-batch.
        strategy: how the step is spread.

    Raises:
        InvalidInput: the layers cannot be divided so. The message says what would fit.
    """
    notes: tuple[str, ...] = ()
    for divide in (with_context, with_experts, with_tensor):
        trace, assumed = divide(trace, strategy)
        notes += assumed
    return trace, notes
