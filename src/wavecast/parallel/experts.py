"""Expert parallelism: the experts of a mixture spread over ranks, and tokens sent to them and back.

Each rank has the same number of experts and its own tokens. Before the grouped matmuls of the
experts an all-to-all sends each token to the ranks of its experts, and another brings the results
back; the backward pass mirrors both. Ranks first exchange how many tokens they send, and the host
waits for these numbers, as in Megatron and torchtitan. Tokens are taken to be spread evenly, so
that a rank receives as many as it sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wavecast.errors import InvalidInput
from wavecast.ops.matmul import GROUPED
from wavecast.parallel.gradients import Gradient
from wavecast.parallel.sharding.placements import Shard, even
from wavecast.parallel.sharding.propagation import Propagation
from wavecast.parallel.sharding.rank_trace import ShardedAxis
from wavecast.parallel.sharding.state import Policy
from wavecast.parallel.sharding.units import Units
from wavecast.parallel.strategy import Parallel, RankAxis, divisors
from wavecast.traces.step import Phase, Trace


def expert_axis(
    trace: Trace, units: Units, strategy: Parallel
) -> tuple[ShardedAxis, tuple[str, ...]] | None:
    """The placements on the expert axis, and what was assumed; None if it has one rank.

    Raises:
        InvalidInput: the step has no grouped matmuls of experts, or they cannot be spread.
    """
    if strategy.expert == 1:
        return None
    axis, tokens = strategy.axes["expert"], strategy.data * strategy.context
    if not strategy.sequence and tokens % strategy.expert:
        raise InvalidInput(
            f"expert={strategy.expert} must divide data x context = {tokens}, since tensor ranks "
            f"have the same tokens; possible sizes are {divisors(tokens)}, or set sequence=True"
        )
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
                f"are {divisors(count)}"
            )
        shards[name] = Shard(source.dim, even(count, axis.size, "features"))
    policy = Policy(axis.size, "expert", reduces=False)
    layers = len({name.rpartition(".")[0] for name in weights})
    note = f"assumed that tokens are spread evenly over the experts of {layers} layers"
    return ShardedAxis(axis, Propagation(trace, policy, shards).run()), (note,)


# Reduction groups of dense and of expert weights.
#
# Experts that are spread over `expert` ranks are on data / expert ranks each. So their gradients
# are reduced, and their states are sharded, among these only. With sequence parallelism tensor
# ranks have tokens of their own and whole experts, so they are among the ranks that hold the same
# experts.


@dataclass(frozen=True)
class Holders:
    """The ranks among which weights are reduced or sharded."""

    dense: RankAxis
    experts: RankAxis
    names: frozenset[str] = frozenset()
    """The parameters that are experts spread over ranks."""
    _of_memory: dict[int, str] = field(default_factory=dict, compare=False)

    @staticmethod
    def of(trace: Trace, strategy: Parallel, axis: str) -> Holders:
        """The holders along an axis, "data" or "shard", of what one rank runs."""
        dense = strategy.axes[axis]
        names = frozenset(expert_weights(trace))
        if not names or (strategy.expert == 1 and not strategy.sequence):
            return Holders(dense, dense)
        memory = {
            value.allocation: value.parameter or value.gradient_of
            for value in trace.values
            if value.allocation is not None and (value.parameter or value.gradient_of)
        }
        return Holders(dense, strategy.axes["expert_replica"], names, memory)

    @property
    def alone(self) -> bool:
        """Whether no rank has what another one has."""
        return self.dense.size == self.experts.size == 1

    def axis(self, parameter: str) -> RankAxis:
        """The ranks that have a parameter."""
        return self.experts if parameter in self.names else self.dense

    def axis_of(self, allocation: int) -> RankAxis:
        """The ranks that have the weight, gradient or state in an allocation."""
        return self.axis(self._of_memory.get(allocation, ""))

    def grouped(self, ready: Sequence[Gradient]) -> list[tuple[RankAxis, list[Gradient]]]:
        """Gradients by the ranks that reduce them, without those that one rank has alone."""
        own = [gradient for gradient in ready if gradient.parameter in self.names]
        others = [gradient for gradient in ready if gradient.parameter not in self.names]
        groups = [(self.dense, others), (self.experts, own)]
        return [(axis, members) for axis, members in groups if members and axis.size > 1]


# The stacked weights of experts: those that grouped matmuls read.


def expert_weights(trace: Trace) -> dict[str, int]:
    """The parameters that are stacked weights of experts, with the number of experts."""
    if not any(op.base in GROUPED for op in trace.counts):
        return {}
    experts: dict[str, int] = {}
    source: dict[int, int] = {}
    """The value of which another one is a view or a copy."""
    seen: set[int] = set()
    for call in trace:
        if call.phase is not Phase.FORWARD or not call.reads:
            continue
        seen.update(call.reads)
        if call.op.base not in GROUPED:
            if len(call.reads) == 1:
                source.update((v, call.reads[0]) for v in call.writes if v not in seen)
            seen.update(call.writes)
            continue
        for value, tensor in zip(call.reads[:2], call.op.inputs, strict=False):
            shown: int | None = value
            while shown is not None and not trace.values[shown].parameter:
                shown = source.get(shown, trace.values[shown].view_of)
            if shown is not None and len(tensor.shape) == 3:
                experts[trace.values[shown].parameter] = tensor.shape[0]
    return experts
