"""Reduction groups of dense and of expert weights.

Experts that are spread over `expert` ranks are on data / expert ranks each. So their gradients are
reduced, and their states are sharded, among these only. With sequence parallelism tensor ranks have
tokens of their own and whole experts, so they are among the ranks that hold the same experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wavecast.parallel.gradients import Gradient
from wavecast.parallel.mixtures import expert_weights
from wavecast.parallel.strategy import Parallel, RankAxis
from wavecast.traces.step import Trace


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
