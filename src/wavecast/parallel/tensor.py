"""Tensor and sequence parallelism: the weights of each layer sharded among ranks.

Layers by columns give each rank some of the units (heads, features); layers by rows take them and
give partial sums, which are reduced over the ranks. With sequence parallelism the rest is sharded
by token: a gather precedes the layers by columns, and a reduce-scatter follows those by rows
(Korthikanti et al. 2022). As with DTensor, what was gathered is kept for the backward pass.
"""

from __future__ import annotations

from wavecast.parallel.mixtures import expert_weights
from wavecast.parallel.plans import plan_of
from wavecast.parallel.sharding.propagation import Propagation
from wavecast.parallel.sharding.rank_trace import ShardedAxis
from wavecast.parallel.sharding.state import Policy
from wavecast.parallel.sharding.units import Units
from wavecast.parallel.strategy import Parallel
from wavecast.traces.blocks import block_finder
from wavecast.traces.step import Phase, Trace


def tensor_axis(
    trace: Trace, units: Units, strategy: Parallel
) -> tuple[ShardedAxis, tuple[str, ...]] | None:
    """The placements on the tensor axis, and what was assumed; None if it has one rank.

    Raises:
        InvalidInput: no weights can be sharded, or the plan does not fit the model.
    """
    axis = strategy.axes["tensor"]
    if axis.size == 1:
        return None
    sequence = strategy.sequence
    plan = plan_of(trace, units, strategy.tensor_plan, axis.size, experts_too=not sequence)
    # With sequence parallelism tensor ranks have whole experts, as the ranks of the data axis do.
    experts = frozenset(expert_weights(trace)) if sequence else frozenset()
    policy = Policy(axis.size, "tensor", sequence, plan.joint or sequence, plan.gathered, experts)
    begins = _first_block(trace) if sequence else {}
    placements = Propagation(trace, policy, plan.shards, begins=begins).run()
    return ShardedAxis(axis, placements), plan.notes


def _first_block(trace: Trace) -> dict[int, frozenset[int]]:
    """The hidden state that the first of the repeated blocks reads, by position of its readers."""
    block_of = block_finder(trace)
    written: set[int] = set()
    found: dict[int, frozenset[int]] = {}
    block = ""
    for position, call in enumerate(trace):
        if call.phase is not Phase.FORWARD:
            continue
        own = block_of(call.module)
        if not own and not block:
            written.update(call.writes)
        elif own and block in ("", own):
            block = own
            hidden = {
                value for value in call.reads if value in written and _is_hidden(trace, value)
            }
            if hidden and not found:
                written = hidden
            if hidden:
                found[position] = frozenset(hidden)
    return found


def _is_hidden(trace: Trace, value: int) -> bool:
    spec = trace.values[value].spec
    return len(spec.shape) == 3 and spec.dtype in ("float32", "bfloat16", "float16")
