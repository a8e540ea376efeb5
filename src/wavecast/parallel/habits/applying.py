"""The options of a strategy that say how a framework runs a step, applied to a rank's trace."""

from __future__ import annotations

from collections.abc import Callable

from wavecast.parallel.habits.accumulation import with_fused_accumulation, with_narrow_sums
from wavecast.parallel.habits.dispatch import with_dispatch_once
from wavecast.parallel.habits.fp8 import with_fp8
from wavecast.parallel.habits.functions import with_norms_in_functions
from wavecast.parallel.habits.fusion import EXPERTS, GATES, ROTARY, with_fused, with_fused_loss
from wavecast.parallel.habits.gathers import with_gathers_again
from wavecast.parallel.habits.layout import with_sequence_first
from wavecast.parallel.habits.lists import with_direct_lists
from wavecast.parallel.habits.overlap import with_overlap
from wavecast.parallel.strategy import Parallel
from wavecast.traces.step import Trace

_CHANGES: dict[str, Callable[[Trace], Trace]] = {
    "triton_functions": with_norms_in_functions,
    "direct_lists": with_direct_lists,
    "fused_accumulation": with_fused_accumulation,
    "fused_loss": with_fused_loss,
    "reduce_in_16_bits": with_narrow_sums,
}
"""What options do that need the trace only, in this order."""


def with_habits(trace: Trace, strategy: Parallel, domain_gpus: int | None) -> Trace:
    """The step of a rank as the framework runs it.

    Args:
        trace: the step of a rank, whose layers are sharded already.
        strategy: the options.
        domain_gpus: the GPUs of one machine. None if all ranks are in one.

    Raises:
        InvalidInput: the step has nothing to which an option applies.
    """
    if strategy.sequence_first:
        trace = with_sequence_first(trace)
    if strategy.fp8:
        trace = with_fp8(trace)
    for kernel in (ROTARY, GATES, EXPERTS):
        if getattr(strategy, kernel.option):
            in_function = kernel is ROTARY and strategy.triton_functions
            trace = with_fused(trace, kernel, in_function=in_function)
    for option, change in _CHANGES.items():
        if getattr(strategy, option):
            trace = change(trace)
    if strategy.dispatch_once:
        trace = with_dispatch_once(trace, strategy.axes["expert"], domain_gpus)
    if strategy.gathers_again:
        trace = with_gathers_again(trace)
    return with_overlap(trace) if strategy.overlap_tensor else trace
