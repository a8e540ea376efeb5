"""The search for the best way to spread a training step over a number of GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from wavecast.errors import InvalidInput
from wavecast.footprint.kinds import peak_bytes
from wavecast.footprint.memory import Memory
from wavecast.hardware.device import Device
from wavecast.hardware.hosts import HostModel
from wavecast.parallel.mixtures import expert_weights
from wavecast.parallel.strategy import Parallel
from wavecast.showing import Shown
from wavecast.steps.op_times import ClusterPredictor
from wavecast.steps.parallel_steps import ParallelSteps
from wavecast.steps.prediction import Prediction
from wavecast.traces.blocks import blocks_of
from wavecast.traces.step import Role, Trace


@dataclass(frozen=True)
class Layout(Shown):
    """One way to spread the step, and what became of it."""

    strategy: Parallel
    micro_batch: int
    """Samples of one micro-batch on one replica."""
    memory: Memory | None = None
    """The memory of the fullest rank. None when it was clear before that it cannot fit."""
    prediction: Prediction | None = None
    """None when it does not fit or cannot be done."""
    reason: str = ""
    """Why it cannot be used, or what it loses time with."""

    @property
    def seconds(self) -> float | None:
        """The time of one optimizer step; None when it cannot be used."""
        return None if self.prediction is None else self.prediction.seconds


@dataclass(frozen=True)
class Search:
    """What is looked for."""

    gpus: int
    global_batch: int
    micro_batches: tuple[int, ...] = (1, 2, 4, 8, 16)
    most_tensor: int | None = None
    """The largest tensor size to try. None for the GPUs that are linked without a network."""
    tensor_plan: Mapping[str, str] | None = None
    """How modules are split among tensor ranks. None to find it."""


def candidates(
    search: Search, domain_gpus: int, blocks: int, experts: int = 1
) -> Iterator[tuple[Parallel, int]]:
    """The strategies to try, each with its micro-batch."""
    most_tensor = search.most_tensor or domain_gpus
    for tensor in _powers(search.gpus, most_tensor):
        for pipeline in _powers(search.gpus // tensor, max(blocks, 1)):
            data = search.gpus // (tensor * pipeline)
            if search.global_batch % data:
                continue
            for micro in search.micro_batches:
                count, rest = divmod(search.global_batch // data, micro)
                if rest or not count:
                    continue
                for strategy in _variants(data, tensor, pipeline, count, blocks):
                    chosen = search.tensor_plan if tensor > 1 else None
                    for expert in _powers(math.gcd(experts, data * tensor), experts):
                        yield replace(strategy, tensor_plan=chosen, expert=expert), micro


def _variants(data: int, tensor: int, pipeline: int, count: int, blocks: int) -> Iterator[Parallel]:
    shards = (0, 1, 3) if data > 1 and pipeline == 1 else (0, 1) if data > 1 else (0,)
    depths = [1]
    if pipeline > 1 and count % pipeline == 0 and blocks >= 2 * pipeline:
        depths.append(2)
    for shard in shards:
        for virtual in depths:
            yield Parallel(
                data=data,
                tensor=tensor,
                sequence=tensor > 1,
                pipeline=pipeline,
                virtual=virtual,
                shard=shard,
                microbatches=count,
            )


def _powers(total: int, most: int) -> list[int]:
    """The powers of two that divide a number, up to the largest allowed."""
    powers = [1]
    while total % (2 * powers[-1]) == 0 and 2 * powers[-1] <= most:
        powers.append(2 * powers[-1])
    return powers


def search_layouts(
    search: Search,
    trace_of: Callable[[int], Trace],
    predictor: ClusterPredictor,
    host: HostModel,
    progress: Callable[[int, int], None] | None = None,
) -> list[Layout]:
    """All strategies for a number of GPUs: those that fit, fastest first, then the others.

    Args:
        search: the number of GPUs and the global batch.
        trace_of: gives the trace of one micro-batch of so many samples.
        predictor: predicts ops on the GPU and its cluster.
        host: the host that issues the ops.
        progress: called with the number of strategies that were tried, and of all.

    Raises:
        InvalidInput: the global batch cannot be divided among the GPUs.
    """
    smallest = trace_of(min(search.micro_batches))
    blocks = len({block for block in blocks_of(smallest) if block})
    experts = math.gcd(*expert_weights(smallest).values()) or 1
    todo = list(candidates(search, predictor.cluster.domain_gpus, blocks, experts))
    if not todo:
        raise InvalidInput(
            f"a global batch of {search.global_batch} cannot be divided among {search.gpus} GPUs; "
            "use a multiple of the number of GPUs, or fewer GPUs"
        )
    tried: dict[int, Layout] = {}
    steps: ParallelSteps | None = None
    # Strategies that share most of the work come after each other.
    for index in sorted(range(len(todo)), key=lambda i: _shared_work(*todo[i])):
        strategy, micro = todo[index]
        if steps is None or steps.trace is not trace_of(micro):
            steps = ParallelSteps(trace_of(micro), predictor, host)
        tried[index] = _tried(strategy, micro, steps, predictor.device)
        if progress is not None:
            progress(len(tried), len(todo))
    return ranked([tried[index] for index in range(len(todo))])


def _shared_work(strategy: Parallel, micro: int) -> tuple[int, ...]:
    """The order of a search: the trace first, then its division, then the parts of the model."""
    parts = strategy.pipeline * strategy.virtual
    return micro, strategy.tensor, strategy.expert, parts, strategy.pipeline


def ranked(layouts: Sequence[Layout]) -> list[Layout]:
    """Layouts that work, fastest first, then the others."""
    working = [layout for layout in layouts if layout.seconds is not None]
    failed = [layout for layout in layouts if layout.seconds is None]
    return [*sorted(working, key=lambda layout: layout.seconds or 0.0), *failed]


def _tried(strategy: Parallel, micro: int, steps: ParallelSteps, device: Device) -> Layout:
    least = _least_bytes(steps.trace, strategy)
    if least > device.memory_bytes:
        needed = f"weights, gradients and optimizer alone need {least / 1e9:.0f} GB"
        return Layout(strategy, micro, reason=f"does not fit: {needed}")
    try:
        step = steps.predict(steps.spread(strategy))
        least = peak_bytes(step.fullest.allocations)
        if least > device.memory_bytes:
            needed = f"it needs at least {least / 1e9:.0f} GB"
            return Layout(strategy, micro, reason=f"does not fit: {needed}")
        if step.memory is not None and not step.memory.fits:
            needed = f"it needs {step.memory.needed_bytes / 1e9:.0f} GB"
            return Layout(strategy, micro, step.memory, reason=f"does not fit: {needed}")
        return Layout(strategy, micro, step.memory, step, _losses(step))
    except InvalidInput as error:
        return Layout(strategy, micro, reason=str(error))


def _least_bytes(trace: Trace, strategy: Parallel) -> float:
    """The memory of weights, gradients and optimizer states of one rank."""
    experts = {name.rpartition(".")[0] for name in expert_weights(trace)}
    axes = strategy.axes
    # With sequence parallelism each tensor rank has whole experts.
    whole = strategy.expert if strategy.sequence else strategy.tensor * strategy.expert
    ways = {False: (strategy.tensor, strategy.shards), True: (whole, axes["expert_replica"].size)}
    least = 0.0
    for allocation in trace.allocations:
        split, shards = ways[allocation.module in experts]
        if allocation.role is Role.OPTIMIZER_STATE:
            least += allocation.nbytes / split / (shards if strategy.shard >= 1 else 1)
        elif allocation.role is Role.PARAMETER:  # and as many bytes of gradients
            sharded = (strategy.shard >= 2, strategy.shard >= 3)
            least += sum(allocation.nbytes / split / (shards if s else 1) for s in sharded)
    return least / strategy.pipeline


def _losses(prediction: Prediction) -> str:
    """What a strategy loses time with."""
    parts = {
        "waiting for other stages": prediction.idle_s,
        "exposed communication": prediction.exposed_s,
    }
    shares = [
        f"{name} {seconds / prediction.seconds:.0%}"
        for name, seconds in parts.items()
        if seconds > 0.005 * prediction.seconds
    ]
    return ", ".join(shares)
