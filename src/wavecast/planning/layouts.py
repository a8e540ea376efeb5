"""The search for the best way to spread a training step over a number of GPUs.

Strategies whose least possible time (`bounds`) is above the times of enough others are not played.
So the first strategies of the answer are those that playing all of them would have given.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from wavecast.errors import InvalidInput
from wavecast.footprint.kinds import peak_bytes
from wavecast.footprint.memory import Memory
from wavecast.hardware.device import Device
from wavecast.hardware.hosts import HostModel
from wavecast.hardware.processors import update_rate
from wavecast.parallel.mixtures import expert_weights
from wavecast.parallel.spreading import backward_end
from wavecast.parallel.strategy import Parallel
from wavecast.planning.bounds import LayerBounds, RankStates, RankWork
from wavecast.planning.strategies import Search, candidates, shards_layers, shared_layers
from wavecast.showing import Shown
from wavecast.steps.op_times import ClusterPredictor
from wavecast.steps.parallel_steps import ParallelSteps
from wavecast.steps.prediction import Prediction
from wavecast.traces.blocks import blocks_of
from wavecast.traces.step import Trace

TraceOf = Callable[[int, str], Trace]
"""The trace of one micro-batch of so many samples, with so much recomputed."""


@dataclass(frozen=True)
class Layout(Shown):
    """One way to spread the step, and what became of it."""

    strategy: Parallel
    micro_batch: int
    """Samples of one micro-batch on one replica."""
    recompute: str = "none"
    """What the backward pass recomputes: none, selective or full."""
    memory: Memory | None = None
    """The memory of the fullest rank. None when it was clear before that it cannot fit."""
    prediction: Prediction | None = None
    """None when it does not fit, cannot be done, or was not played."""
    least_s: float | None = None
    """The least time that it could take, where it was not played because others are faster."""
    reason: str = ""
    """Why it cannot be used, or what it loses time with."""

    @property
    def seconds(self) -> float | None:
        """The time of one optimizer step; None when it cannot be used or was not played."""
        return None if self.prediction is None else self.prediction.seconds

    @property
    def fits(self) -> bool:
        """Whether it was not refused for its memory."""
        return not self.reason.startswith(_TOO_LARGE)


BUCKET_SIZES = (25 << 20, 200 << 20, 1600 << 20)
"""The sizes of buckets that are tried beside the framework's own, in bytes."""
_REFINED = 3
"""How many of the best strategies are tried with them."""
_TOO_LARGE = "does not fit: "
_SLOWER = "slower than those shown, by its lower bound"


def search_layouts(
    search: Search,
    trace_of: TraceOf,
    predictor: ClusterPredictor,
    host: HostModel,
    progress: Callable[[int, int], None] | None = None,
    part: tuple[int, int] = (0, 1),
) -> list[Layout]:
    """All strategies for a number of GPUs: those that fit, fastest first, then the others.

    Args:
        search: the number of GPUs and the global batch.
        trace_of: gives the trace of one micro-batch of so many samples.
        predictor: predicts ops on the GPU and its cluster.
        host: the host that issues the ops.
        progress: called with the number of strategies that were tried, and of all.
        part: which part of the strategies to try, from 0 on, and how many parts there are. Those
            whose layers are sharded alike stay together.

    Raises:
        InvalidInput: the global batch cannot be divided among the GPUs.
    """
    first = search.recompute[0]
    smallest = trace_of(min(search.micro_batches), first)
    blocks = len({block for block in blocks_of(smallest) if block})
    experts = math.gcd(*expert_weights(smallest).values()) or 1
    offload = search.offload and update_rate(predictor.cluster) is not None
    asked = replace(search, offload=offload)
    todo = list(candidates(asked, predictor.cluster.domain_gpus, blocks, experts))
    if not todo:
        raise InvalidInput(
            f"a global batch of {search.global_batch} cannot be divided among {search.gpus} GPUs; "
            "use a multiple of the number of GPUs, or fewer GPUs"
        )
    running = _Running(search, trace_of, predictor, host, progress, _part_of(todo, *part))
    running.try_all(range(len(running.todo)), first)
    for recompute in search.recompute[1:]:
        # What fits without is slower with it: the same calls run, and some of them twice.
        running.try_all(running.too_large(), recompute)
    running.try_buckets()
    return ranked(running.tried)


def _has_buckets(strategy: Parallel) -> bool:
    return strategy.axes["data"].size > 1 and strategy.shard < 3


def _part_of(
    todo: Sequence[tuple[Parallel, int]], at: int, parts: int
) -> list[tuple[Parallel, int]]:
    """One of several parts of the strategies, with those together whose layers are alike."""
    keys = [(*shared_layers(strategy), micro) for strategy, micro in todo]
    order = {key: number for number, key in enumerate(sorted(set(keys)))}
    return [one for one, key in zip(todo, keys, strict=True) if order[key] % parts == at]


@dataclass
class _Running:
    """A search on its way."""

    search: Search
    trace_of: TraceOf
    predictor: ClusterPredictor
    host: HostModel
    progress: Callable[[int, int], None] | None
    todo: Sequence[tuple[Parallel, int]]
    """The strategies with their micro-batches. Their positions stand for them."""
    tried: list[Layout] = field(default_factory=list)
    best_s: list[float] = field(default_factory=list)
    """The times of those that fit, shortest first."""
    least_s: dict[int, float] = field(default_factory=dict)
    """The least time of strategies, as far as it is known."""
    large: set[int] = field(default_factory=set)
    """The strategies that did not fit with what was recomputed last."""

    def too_large(self) -> list[int]:
        """The strategies whose activations did not fit, without those left out by their bound."""
        hopeful = [at for at in self.large if self.least_s.get(at, math.inf) <= self._enough_s]
        self.large.clear()
        return sorted(hopeful)

    def try_all(self, chosen: Iterable[int], recompute: str) -> None:
        """Try strategies: whole layers first, since nothing is done to know their bounds."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for at in chosen:
            strategy, micro = self.todo[at]
            groups.setdefault((*shared_layers(strategy), micro), []).append(at)
        traces = {micro: self.trace_of(micro, recompute) for *_, micro in groups}
        steps = {m: ParallelSteps(t, self.predictor, self.host) for m, t in traces.items()}
        bounds = LayerBounds()
        whole = [key for key in groups if not shards_layers(key)]
        for key in whole:
            groups[key] = self._bounded(groups[key], recompute, steps[key[-1]], bounds, key)
        least = {key: min(map(self.least_s.__getitem__, groups[key]), default=0.0) for key in whole}
        for key in sorted(whole, key=least.__getitem__):
            self._play(groups[key], recompute, steps[key[-1]])
        for key in sorted(groups.keys() - set(whole)):
            left = self._bounded(groups[key], recompute, steps[key[-1]], bounds, key)
            self._play(left, recompute, steps[key[-1]])

    def try_buckets(self) -> None:
        """Try other sizes of buckets with the best, and add those with which they are faster."""
        bucketed = (one for one in ranked(self.tried) if one.seconds and _has_buckets(one.strategy))
        for layout in list(islice(bucketed, _REFINED)):
            trace = self.trace_of(layout.micro_batch, layout.recompute)
            steps = ParallelSteps(trace, self.predictor, self.host)
            for size in BUCKET_SIZES:
                changed = replace(layout.strategy, bucket_bytes=size)
                other = _tried(
                    changed, layout.micro_batch, layout.recompute, steps, self.predictor.device
                )
                if other.seconds and other.seconds < (layout.seconds or 0.0):
                    self.tried.append(other)

    def _bounded(
        self,
        members: Sequence[int],
        recompute: str,
        steps: ParallelSteps,
        bounds: LayerBounds,
        key: tuple[int, ...],
    ) -> list[int]:
        """The strategies, with layers sharded alike, that may fit and be among the best."""
        states = RankStates.of(steps.trace)
        left = self._fitting(members, recompute, states.least_bytes)
        left = self._hopeful(left, recompute, bounds.before(key))
        if not left:
            return []
        try:
            timed = steps.rank_trace(self.todo[left[0]][0])
        except InvalidInput as error:
            for at in left:
                self._add(at, Layout(*self.todo[at], recompute, reason=str(error)))
            return []
        work = RankWork(timed, backward_end(timed.trace), self.predictor)
        bounds.add(key, work)
        left = self._hopeful(left, recompute, work.least_s)
        kept = work.kept_bytes
        return self._fitting(
            left, recompute, lambda one: states.with_activations(one, kept[one.shard < 3])
        )

    def _fitting(
        self, members: Sequence[int], recompute: str, least_bytes: Callable[[Parallel], float]
    ) -> list[int]:
        """The strategies that may fit, by the least memory of a rank."""
        left = []
        for at in members:
            least = least_bytes(self.todo[at][0])
            if least <= self.predictor.device.memory_bytes:
                left.append(at)
                continue
            needed = f"{_TOO_LARGE}it needs at least {least / 1e9:.0f} GB"
            self._add(at, Layout(*self.todo[at], recompute, reason=needed))
        return left

    def _hopeful(
        self, members: Sequence[int], recompute: str, bound: Callable[[Parallel], float]
    ) -> list[int]:
        """The strategies that may be among the best, those with the lowest bound first."""
        left = []
        for at in members:
            least_s = max(bound(self.todo[at][0]), self.least_s.get(at, 0.0))
            self.least_s[at] = least_s
            if least_s <= self._enough_s:
                left.append(at)
            else:
                slower = Layout(*self.todo[at], recompute, least_s=least_s, reason=_SLOWER)
                self._add(at, slower)
        return sorted(left, key=self.least_s.__getitem__)

    def _play(self, members: Sequence[int], recompute: str, steps: ParallelSteps) -> None:
        """Play strategies with layers sharded alike, as long as they may be among the best."""
        for at in members:
            if self._hopeful([at], recompute, lambda _: 0.0):
                strategy, micro = self.todo[at]
                self._add(at, _tried(strategy, micro, recompute, steps, self.predictor.device))

    def _add(self, at: int, layout: Layout) -> None:
        self.tried.append(layout)
        if layout.seconds is not None:
            insort(self.best_s, layout.seconds)
        if not layout.fits:
            self.large.add(at)
        if self.progress is not None:
            self.progress(min(len(self.tried), len(self.todo)), len(self.todo))

    @property
    def _enough_s(self) -> float:
        """The time above which a strategy is not among the best that are wanted."""
        wanted = self.search.best
        return math.inf if wanted is None or len(self.best_s) < wanted else self.best_s[wanted - 1]


def ranked(layouts: Sequence[Layout]) -> list[Layout]:
    """Layouts that work, fastest first, then the others."""
    working = [layout for layout in layouts if layout.seconds is not None]
    failed = [layout for layout in layouts if layout.seconds is None]
    return [*sorted(working, key=lambda layout: layout.seconds or 0.0), *failed]


def shortened(layouts: Sequence[Layout], best: int | None) -> list[Layout]:
    """Ranked layouts, of which those after the best keep their times and not their predictions."""
    if best is None:
        return list(layouts)
    rest = (
        one
        if one.prediction is None
        else replace(one, prediction=None, memory=None, least_s=one.seconds, reason=_SLOWER)
        for one in layouts[best:]
    )
    return [*layouts[:best], *rest]


def _tried(
    strategy: Parallel, micro: int, recompute: str, steps: ParallelSteps, device: Device
) -> Layout:
    layout = Layout(strategy, micro, recompute)
    try:
        step = steps.predict(steps.spread(strategy))
        least = peak_bytes(step.fullest.allocations)
        if least > device.memory_bytes:
            return replace(layout, reason=f"{_TOO_LARGE}it needs at least {least / 1e9:.0f} GB")
        if step.memory is not None and not step.memory.fits:
            needed = f"it needs {step.memory.needed_bytes / 1e9:.0f} GB"
            return replace(layout, memory=step.memory, reason=_TOO_LARGE + needed)
        return replace(layout, memory=step.memory, prediction=step, reason=_losses(step))
    except InvalidInput as error:
        return replace(layout, reason=str(error))


def _losses(prediction: Prediction) -> str:
    """What a strategy loses time with."""
    strategy = prediction.parallel
    on_host = strategy is not None and strategy.offload != "none"
    exposed = "exposed communication" + (" and the host's optimizer" if on_host else "")
    parts = {"waiting for other stages": prediction.idle_s, exposed: prediction.exposed_s}
    shares = [
        f"{name} {seconds / prediction.seconds:.0%}"
        for name, seconds in parts.items()
        if seconds > 0.005 * prediction.seconds
    ]
    return ", ".join(shares)
