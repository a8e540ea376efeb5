"""The search for the best way to spread a training step over a number of GPUs.

What may be fastest is tried first. Strategies whose least memory does not fit are not spread, and
those whose least possible time (`bounds`) is above the times of enough others are not played. So
the first strategies of the answer are those that playing all of them would have given.
"""

from __future__ import annotations

import math
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush
from itertools import islice

from wavecast.errors import InvalidInput
from wavecast.footprint.memory import peak_bytes
from wavecast.hardware.clusters import usual_cluster
from wavecast.hardware.devices import Device, devices
from wavecast.hardware.hosts import HostModel, update_rate
from wavecast.parallel.experts import expert_weights
from wavecast.parallel.spreading import backward_end
from wavecast.parallel.strategy import Parallel, option_of
from wavecast.planning.layouts import (
    INTERRUPTED,
    OVERDUE,
    SLOWER,
    TOO_LARGE,
    LayerBounds,
    Layout,
    RankStates,
    RankWork,
    Search,
    candidates,
    losses,
    ranked,
    shards_layers,
    shared_layers,
)
from wavecast.steps.op_times import ClusterPredictor
from wavecast.steps.prediction import checked_step
from wavecast.steps.request import ParallelSteps
from wavecast.traces.recomputed import blocks_of
from wavecast.traces.step import Trace

TraceOf = Callable[[int, str], Trace]
"""The trace of one micro-batch of so many samples, with so much recomputed."""
Progress = Callable[[int, int, Layout | None], None]
"""Takes the number of strategies that are done, that of all, and the best so far."""
BUCKET_SIZES = (25 << 20, 200 << 20, 1600 << 20)
"""The sizes of buckets that are tried beside the framework's own, in bytes."""
_REFINED = 3
"""How many of the best strategies are tried with them."""
_WORTHWHILE = 0.99
"""The share of the time at most that another size of buckets must leave to be named."""
_Key = tuple[int, ...]
"""What strategies have in common whose layers are sharded alike, and their micro-batch."""


def search_layouts(
    search: Search,
    trace_of: TraceOf,
    predictor: ClusterPredictor,
    host: HostModel,
    progress: Progress | None = None,
    part: tuple[int, int] = (0, 1),
    keeps_interrupted: bool = False,
) -> list[Layout]:
    """All strategies for a number of GPUs: those that fit, fastest first, then the others.

    When `Search.within_s` is over, it gives what it has.

    Args:
        search: the number of GPUs and the global batch.
        trace_of: gives the trace of one micro-batch of so many samples.
        predictor: predicts ops on the GPU and its cluster.
        host: the host that issues the ops.
        progress: called when a strategy is done.
        part: which part of the strategies to try, from 0 on, and how many parts there are. Those
            whose layers are sharded alike stay together.
        keeps_interrupted: whether it gives what it has after Ctrl-C, too, instead of passing it on.

    Raises:
        InvalidInput: the global batch cannot be divided among the GPUs.
    """
    ends_s = math.inf if search.within_s is None else time.monotonic() + search.within_s
    smallest = trace_of(min(search.micro_batches), search.recompute[0])
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
    chosen = _part_of(todo, *part)
    running = _Running(search, trace_of, predictor, host, progress, chosen, ends_s)
    stopped = ""
    try:
        running.run()
    except _SearchEnds:
        stopped = OVERDUE
    except KeyboardInterrupt:
        if not keeps_interrupted:
            raise
        stopped = INTERRUPTED
    numbered = enumerate(chosen)
    return ranked(
        [running.done.get(at) or Layout(*strategy, reason=stopped) for at, strategy in numbered]
    )


def _part_of(
    todo: Sequence[tuple[Parallel, int]], at: int, parts: int
) -> list[tuple[Parallel, int]]:
    """One of several parts of the strategies, with those together whose layers are alike."""
    keys = [(*shared_layers(strategy), micro) for strategy, micro in todo]
    order = {key: number for number, key in enumerate(sorted(set(keys)))}
    return [strategy for strategy, key in zip(todo, keys, strict=True) if order[key] % parts == at]


def _has_buckets(strategy: Parallel) -> bool:
    return strategy.axes["data"].size > 1 and strategy.shard < 3


class _SearchEnds(Exception):
    """The time for the search is over, or it has what is wanted."""


def _peak_bytes(steps: ParallelSteps, strategy: Parallel) -> float:
    """The memory of the fullest rank, without what an allocator adds; 0 if it cannot be spread."""
    try:
        return peak_bytes(steps.unplayed(steps.spread(strategy)).fullest.allocations)
    except InvalidInput:
        return 0.0


@dataclass
class _MicroBatch:
    """One micro-batch, and what is known of it before its layers are sharded."""

    steps: ParallelSteps

    @cached_property
    def states(self) -> RankStates:
        """What it keeps."""
        return RankStates.of(self.steps.trace)

    @cached_property
    def alone_s(self) -> float:
        """Its time on one GPU, as if it fitted there."""
        timed = self.steps.alone
        return timed.play(0, backward_end(timed.trace)).seconds

    def guessed_s(self, strategy: Parallel) -> float:
        """About how long a strategy takes: only what is tried first depends on it."""
        shared = strategy.tensor * strategy.context
        passes = strategy.microbatches + (strategy.pipeline - 1) / strategy.virtual
        alone = strategy.tensor > 1 and not strategy.sequence
        slower = 1 + 0.15 * math.log2(shared) + 0.01 * alone + 0.1 * (strategy.offload != "none")
        return self.alone_s * passes / (shared * strategy.pipeline) * slower


@dataclass
class _Running:
    """A search on its way."""

    search: Search
    trace_of: TraceOf
    predictor: ClusterPredictor
    host: HostModel
    progress: Progress | None
    todo: list[tuple[Parallel, int]]
    """The strategies with their micro-batches. Their positions stand for them."""
    ends_s: float
    """When the search must end, by the monotonic clock."""
    done: dict[int, Layout] = field(default_factory=dict)
    best: Layout | None = None
    best_s: list[float] = field(default_factory=list)
    """The times of those that fit, shortest first."""
    least_s: dict[int, float] = field(default_factory=dict)
    """The least time of strategies, as far as it is known."""
    groups: dict[tuple[int, _Key], list[int]] = field(default_factory=dict)
    """The strategies whose layers are sharded alike, by what they recompute."""
    queue: list[tuple[float, int, _Key]] = field(default_factory=list)
    """The groups by the guessed time of their fastest strategy."""
    micro_batches: dict[tuple[int, int], _MicroBatch] = field(default_factory=dict)
    bounds: dict[int, LayerBounds] = field(default_factory=dict)

    def run(self) -> None:
        """Try all strategies; the search ends earlier when its time is over."""
        self._enter(range(len(self.todo)), 0)
        while self.queue:
            _, last, key = heappop(self.queue)
            for way in range(last + 1):  # what is too large with less recomputed joins the others
                if (way, key) in self.groups:
                    self._try(self.groups.pop((way, key)), way, key)
        self._try_buckets()

    def _try_buckets(self) -> None:
        """Try other sizes of buckets with the best, and add those with which they are faster."""
        timed = (layout for layout in ranked(list(self.done.values())) if layout.seconds)
        bucketed = (layout for layout in timed if _has_buckets(layout.strategy))
        for layout in list(islice(bucketed, _REFINED)):
            way = self.search.recompute.index(layout.recompute)
            steps = self._micro_batch(layout.micro_batch, way).steps
            for size in BUCKET_SIZES:
                self._check_time()
                changed = replace(layout.strategy, bucket_bytes=size)
                self.todo.append((changed, layout.micro_batch))
                other = self._played(len(self.todo) - 1, way, steps)
                if other.seconds and other.seconds < _WORTHWHILE * (layout.seconds or 0.0):
                    self._add(len(self.todo) - 1, other)
                else:
                    self.todo.pop()

    def _enter(self, members: Iterable[int], way: int) -> None:
        """Put strategies that may fit with so much recomputed into the queue."""
        groups: dict[_Key, list[int]] = {}
        for at in members:
            strategy, micro = self.todo[at]
            groups.setdefault((*shared_layers(strategy), micro), []).append(at)
        large: list[int] = []
        for key, entering in groups.items():
            self._check_time()
            of = self._micro_batch(key[-1], way)
            left = self._fitting(entering, way, of.states.least_with_activations, large)
            if left:
                guess_s = min(of.guessed_s(self.todo[at][0]) for at in left)
                self.groups.setdefault((way, key), []).extend(left)
                heappush(self.queue, (guess_s, way, key))
        if large:
            self._enter(large, way + 1)

    def _try(self, members: Sequence[int], way: int, key: _Key) -> None:
        """Try strategies with layers sharded alike; those too large come again, recomputing more.

        What fits without is slower with it: the same calls run, and some of them twice.
        """
        large: list[int] = []
        steps = self._micro_batch(key[-1], way).steps
        left = self._bounded(members, way, key, large)
        thriftiest = {at: self._thriftiest(at) for at in left}
        names = {at: option_of(strategy) for at, strategy in thriftiest.items()}
        alike, least_bytes = Counter(names.values()), dict.fromkeys(names.values(), 0.0)
        for at in left:
            if not self._hopeful([at], way, lambda _: 0.0):
                continue
            self._check_time()
            name = names[at]
            if alike[name] > 1 and not least_bytes[name]:
                least_bytes[name] = _peak_bytes(steps, thriftiest[at])
            needed_bytes = least_bytes[name]
            if needed_bytes > self._room_bytes:
                layout = self._too_large(at, way, needed_bytes, "at least ")
            else:
                layout = self._played(at, way, steps)
            self._refuse(at, layout, way, large) if not layout.fits else self._add(at, layout)
        if large:
            self._enter(large, way + 1)

    def _thriftiest(self, at: int) -> Parallel:
        """The strategy with the least memory of those that shard the same among more or less."""
        strategy, _ = self.todo[at]
        can_offload = self.search.offload and update_rate(self.predictor.cluster) is not None
        offloads = can_offload and (strategy.shard > 0 or strategy.data == 1)
        kept = "optimizer" if offloads else strategy.offload
        return replace(strategy, shard_group=None, reshard=True, offload=kept)

    def _bounded(self, members: Sequence[int], way: int, key: _Key, large: list[int]) -> list[int]:
        """The strategies, with layers sharded alike, that may fit and be among the best."""
        bounds = self.bounds.setdefault(way, LayerBounds())
        steps = self._micro_batch(key[-1], way).steps
        left = self._hopeful(members, way, bounds.before(key))
        if not left:
            return []
        self._check_time()
        try:
            timed = steps.rank_trace(self.todo[left[0]][0])
        except InvalidInput as error:
            for at in left:
                self._add(at, self._layout(at, way, str(error)))
            return []
        work = RankWork(timed, backward_end(timed.trace), self.predictor)
        if shards_layers(key):
            bounds.add(key, work)
        left = self._fitting(left, way, work.least_bytes, large)
        return self._hopeful(left, way, work.least_s)

    def _fitting(
        self,
        members: Sequence[int],
        way: int,
        least_bytes: Callable[[Parallel], float],
        large: list[int],
    ) -> list[int]:
        """The strategies that may fit, by the least memory of a rank."""
        left = []
        for at in members:
            needed_bytes = least_bytes(self.todo[at][0])
            if needed_bytes <= self._room_bytes:
                left.append(at)
            else:
                self._refuse(at, self._too_large(at, way, needed_bytes, "at least "), way, large)
        return left

    def _hopeful(
        self, members: Sequence[int], way: int, bound: Callable[[Parallel], float]
    ) -> list[int]:
        """The strategies that may be among the best, those with the lowest bound first."""
        left = []
        for at in members:
            least_s = max(bound(self.todo[at][0]), self.least_s.get(at, 0.0))
            self.least_s[at] = least_s
            if least_s <= self._enough_s:
                left.append(at)
            else:
                self._add(at, replace(self._layout(at, way, SLOWER), least_s=least_s))
        return sorted(left, key=self.least_s.__getitem__)

    def _played(self, at: int, way: int, steps: ParallelSteps) -> Layout:
        """A strategy with its memory and time, as far as they are needed to judge it."""
        try:
            step = steps.unplayed(steps.spread(self.todo[at][0]))
            least_bytes = peak_bytes(step.fullest.allocations)
            if least_bytes > self._room_bytes:
                return self._too_large(at, way, least_bytes, "at least ")
            seconds = checked_step(step).seconds
            if seconds > self._enough_s:
                return replace(self._layout(at, way, SLOWER), least_s=seconds)
            memory = step.memory
            if memory is not None and not (memory.fits and memory.needed_bytes <= self._room_bytes):
                large = self._too_large(at, way, memory.needed_bytes)
                return replace(large, memory=memory)
            layout = self._layout(at, way, losses(step))
            return replace(layout, memory=memory, prediction=step)
        except InvalidInput as error:
            return self._layout(at, way, str(error))

    def _layout(self, at: int, way: int, reason: str) -> Layout:
        return Layout(*self.todo[at], self.search.recompute[way], reason=reason)

    def _too_large(self, at: int, way: int, needed_bytes: float, least: str = "") -> Layout:
        whole_bytes, margin = self.predictor.device.memory_bytes, self.search.memory_margin
        free = f", {margin:.0%} of which stay free" if margin else ""
        sizes = f"{needed_bytes / 2**30:.1f} GiB of {whole_bytes / 2**30:.1f}{free}"
        layout = self._layout(at, way, f"{TOO_LARGE}it needs {least}{sizes}")
        return replace(layout, least_bytes=needed_bytes)

    def _refuse(self, at: int, layout: Layout, way: int, large: list[int]) -> None:
        """Try a strategy that does not fit again with more recomputed, if there is more."""
        if way + 1 < len(self.search.recompute):
            large.append(at)
        else:
            self._add(at, layout)

    def _add(self, at: int, layout: Layout) -> None:
        self.done[at] = layout
        if layout.seconds is not None:
            insort(self.best_s, layout.seconds)
            if layout.seconds == self.best_s[0]:
                self.best = layout
        if self.progress is not None:
            self.progress(len(self.done), len(self.todo), self.best)
        if self.best is not None and self.search.first_fitting:
            raise _SearchEnds

    def _micro_batch(self, micro: int, way: int) -> _MicroBatch:
        if (micro, way) not in self.micro_batches:
            trace = self.trace_of(micro, self.search.recompute[way])
            steps = ParallelSteps(trace, self.predictor, self.host)
            self.micro_batches[micro, way] = _MicroBatch(steps)
        return self.micro_batches[micro, way]

    def _check_time(self) -> None:
        if time.monotonic() > self.ends_s:
            raise _SearchEnds

    @property
    def _room_bytes(self) -> float:
        """The memory of a GPU that a step may fill."""
        return self.predictor.device.memory_bytes * (1 - self.search.memory_margin)

    @property
    def _enough_s(self) -> float:
        """The time above which a strategy is not among the best that are wanted."""
        best = self.search.best
        return math.inf if best is None or len(self.best_s) < best else self.best_s[best - 1]


# What to change where no strategy fits: adapters, GPUs with more memory, or more GPUs.


ADAPTERS = "r=16"
"""The adapters that are tried."""
_MOST_DOUBLINGS = 3
_MOST_SIZES = 4
Fitting = Callable[[Search, Device, bool], Layout | None]
"""Any strategy that fits on so many of some GPU, with or without adapters; None if none does."""


def fitting_changes(
    search: Search, device: Device, fitting: Fitting, *, adaptable: bool
) -> list[str]:
    """What fits instead, in words: the least change of each kind.

    Args:
        search: what was looked for in vain.
        fitting: looks for a strategy that fits.
        adaptable: whether adapters can be trained instead of all weights.
    """
    first = replace(search, first_fitting=True, best=1, within_s=None)
    words = []
    if search.offload and update_rate(usual_cluster(device)) is None:
        words.append(
            "CPU offload (offload=optimizer) was not tried, since the bandwidth of the host's "
            "memory is not known: add node.memory_bytes_per_s to a file of your cluster "
            "(docs/howto/add-a-cluster.md)"
        )
    for changes in (_adapters(first, device, adaptable), _larger(first, device), _more(first)):
        words += _least_change(changes, device, fitting)
    return words or ["nor does it fit with adapters, on larger GPUs, or on more of these"]


_Change = tuple[str, Search, Device | None, bool]
"""A change in words, and what is then looked for: the search, another GPU, adapters."""


def _least_change(changes: Iterator[_Change], device: Device, fitting: Fitting) -> list[str]:
    """The first of some changes with which something fits; none if there is none."""
    for words, search, gpu, has_adapters in changes:
        try:
            layout = fitting(search, gpu or device, has_adapters)
        except InvalidInput:  # a batch or a network that does not go with so many GPUs
            continue
        if layout is not None:
            how = "" if layout.recompute == "none" else f", recomputed: {layout.recompute}"
            option = option_of(layout.strategy) or "one GPU"
            return [f"it fits {words}: {option}, micro-batch {layout.micro_batch}{how}"]
    return []


def _adapters(search: Search, device: Device, adaptable: bool) -> Iterator[_Change]:
    if adaptable:
        yield f"on {search.gpus} x {device.id} with LoRA (--lora {ADAPTERS})", search, None, True


def _larger(search: Search, device: Device) -> Iterator[_Change]:
    """GPUs of the same maker with more memory: of each size the one that is most alike."""
    larger = [gpu for gpu in devices() if gpu.memory_bytes > 1.02 * device.memory_bytes]
    alike = sorted(
        (gpu for gpu in larger if gpu.vendor == device.vendor),
        key=lambda gpu: (gpu.memory_bytes, gpu.architecture != device.architecture, gpu.id),
    )
    sizes: dict[int, Device] = {}
    for gpu in alike:
        sizes.setdefault(round(gpu.memory_bytes / 2**30), gpu)
    for gpu in list(sizes.values())[:_MOST_SIZES]:
        yield f"on {search.gpus} x {gpu.id}", search, gpu, False


def _more(search: Search) -> Iterator[_Change]:
    for doubling in range(1, _MOST_DOUBLINGS + 1):
        gpus = search.gpus * 2**doubling
        yield f"on {gpus} GPUs of this kind", replace(search, gpus=gpus), None, False
