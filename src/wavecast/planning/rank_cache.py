"""What the ranks of a step run and hold, kept for all GPUs that its trace serves."""

from __future__ import annotations

from dataclasses import dataclass, field

from wavecast.footprint.kinds import peak_bytes
from wavecast.footprint.memory import Memory
from wavecast.footprint.parallel_memory import fullest_trace, memory_of_rank
from wavecast.hardware.device import Device
from wavecast.parallel.ranks import ParallelStep
from wavecast.parallel.spreading import spread
from wavecast.parallel.strategy import Parallel
from wavecast.planning.bounds import RankStates
from wavecast.traces.step import Trace


@dataclass
class RankCache:
    """What ranks run and hold, which is the same on all GPUs that a trace serves."""

    _steps: dict[tuple[int, Parallel], tuple[Trace, ParallelStep]] = field(default_factory=dict)
    _held: dict[tuple[int, Parallel], Trace] = field(default_factory=dict)
    _least: dict[int, tuple[Trace, int, RankStates]] = field(default_factory=dict)

    def spread(self, trace: Trace, strategy: Parallel) -> ParallelStep:
        """The step, spread over data-parallel ranks."""
        key = id(trace), strategy
        if key not in self._steps:
            self._steps[key] = trace, spread(trace, strategy)  # the trace keeps its id
        return self._steps[key][1]

    def memory(self, trace: Trace, strategy: Parallel, device: Device) -> Memory | None:
        """The memory of a rank; None if it is not known."""
        if not trace.allocations:
            return None
        key = id(trace), strategy
        if key not in self._held:
            self._held[key] = fullest_trace(self.spread(trace, strategy))
        return memory_of_rank(self._held[key], strategy, device)

    def least_bytes(self, trace: Trace, strategy: Parallel) -> float:
        """What a rank holds at least: the whole step, or its share of weights and states."""
        if id(trace) not in self._least:
            states = RankStates.of(trace)
            self._least[id(trace)] = trace, peak_bytes(trace.allocations), states
        _, peak, states = self._least[id(trace)]
        shares = strategy.shard or strategy.offload != "none"
        return states.least_bytes(strategy) if shares else peak
