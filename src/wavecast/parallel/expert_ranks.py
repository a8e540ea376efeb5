"""Which ranks have the same weights: all of the data axis, but fewer for the experts of a mixture.

Experts that are spread over `expert` ranks are on data / expert ranks each. So their gradients are
reduced, and their states are sharded, among these only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wavecast.parallel.gradients import Gradient
from wavecast.parallel.mixtures import grouped_products
from wavecast.parallel.strategy import Parallel, RankAxis
from wavecast.traces.step import Allocation, TensorSpec, Trace


@dataclass(frozen=True)
class Holders:
    """The ranks among which weights are reduced or sharded."""

    dense: RankAxis
    experts: RankAxis
    modules: frozenset[str] = frozenset()
    """The modules whose weights are experts that are spread over ranks."""
    shapes: frozenset[tuple[int, ...]] = frozenset()
    """The shapes of their weights on one rank."""

    @staticmethod
    def of(trace: Trace, strategy: Parallel, axis: str) -> Holders:
        """The holders along an axis, "data" or "shard", of what one rank runs."""
        dense = strategy.axes[axis]
        if strategy.expert == 1:
            return Holders(dense, dense)
        products = grouped_products(trace)
        weights = [trace.calls[p].op.inputs[1].shape for own in products.values() for p in own]
        shapes = {shape for shape in weights if len(shape) == 3}
        shapes |= {(count, wide, high) for count, high, wide in shapes}
        replicas = strategy.axes["expert_replica"]
        return Holders(dense, replicas, frozenset(products), frozenset(shapes))

    @property
    def alone(self) -> bool:
        """Whether no rank has what another one has."""
        return self.dense.size == self.experts.size == 1

    def axis(self, module: str) -> RankAxis:
        """The ranks that have the weights of a module."""
        return self.experts if module in self.modules else self.dense

    def shards(self, tensor: TensorSpec) -> int:
        """The ranks that share a weight, its gradient or a state, known by its shape."""
        return (self.experts if tensor.shape in self.shapes else self.dense).size

    def shards_of(self, allocation: Allocation, trace: Trace) -> int:
        """The ranks that share a weight, gradient or state in memory."""
        born = allocation.born
        module = allocation.module
        if not module and born is not None and born < len(trace):
            module = trace.calls[born].module
        return self.axis(module).size

    def grouped(self, ready: Sequence[Gradient]) -> list[tuple[RankAxis, list[Gradient]]]:
        """Gradients by the ranks that reduce them, without those that one rank has alone."""
        own = [gradient for gradient in ready if gradient.module in self.modules]
        others = [gradient for gradient in ready if gradient.module not in self.modules]
        groups = [(self.dense, others), (self.experts, own)]
        return [(axis, members) for axis, members in groups if members and axis.size > 1]
