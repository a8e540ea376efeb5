"""Expert parallelism: the experts of a mixture spread over ranks, and tokens sent to them and back.

Each rank has the same number of experts and its own tokens. Before the grouped matmuls of the
experts an all-to-all sends each token to the ranks of its experts, and another brings the results
back; the backward pass mirrors both. Ranks first exchange how many tokens they send, and the host
waits for these numbers, as in Megatron and torchtitan. Tokens are taken to be spread evenly, so
that a rank receives as many as it sends.
"""

from __future__ import annotations

from wavecast.errors import InvalidInput
from wavecast.parallel.plans import fitting
from wavecast.parallel.sharding.placements import Shard, even
from wavecast.parallel.sharding.propagation import Propagation
from wavecast.parallel.sharding.rank_trace import ShardedAxis
from wavecast.parallel.sharding.state import Policy
from wavecast.parallel.sharding.units import Units
from wavecast.parallel.strategy import Parallel, RankAxis
from wavecast.traces.step import Trace


def expert_axis(
    trace: Trace, units: Units, strategy: Parallel
) -> tuple[ShardedAxis, tuple[str, ...]] | None:
    """The placements on the expert axis, and what was assumed; None if it has one rank.

    Raises:
        InvalidInput: the step has no grouped matmuls of experts, or they cannot be spread.
    """
    if strategy.expert == 1:
        return None
    axis = _axis(strategy)
    weights = {
        trace.values[source.value].parameter: source
        for source in units.sources.values()
        if "expert" in source.roles
    }
    if not weights:
        raise InvalidInput(
            f"expert={axis.size} spreads the experts of a mixture, and the step has no grouped "
            "matmuls of experts (torch's grouped_mm, as Hugging Face's models use it)"
        )
    shards = {}
    for name, source in weights.items():
        count = len(source.numbers)
        if count % axis.size:
            raise InvalidInput(
                f"expert={axis.size} does not divide the {count} experts of {name}; possible sizes "
                f"are {fitting(count)}"
            )
        shards[name] = Shard(source.dim, even(count, axis.size, "features"))
    policy = Policy(axis.size, "expert", reduces=False)
    layers = len({name.rpartition(".")[0] for name in weights})
    note = f"assumed that tokens are spread evenly over the experts of {layers} layers"
    return ShardedAxis(axis, Propagation(trace, policy, shards).run()), (note,)


def _axis(strategy: Parallel) -> RankAxis:
    """The ranks that share the experts: ranks with other tokens, which are those of the data axis.

    With sequence parallelism, tensor ranks have other tokens, too.
    """
    axis, tokens = strategy.axes["expert"], strategy.data * strategy.context
    if not strategy.sequence and tokens % strategy.expert:
        raise InvalidInput(
            f"expert={strategy.expert} must divide data x context = {tokens}, since tensor ranks "
            f"have the same tokens; possible sizes are {fitting(tokens)}, or set sequence=True"
        )
    return axis
