"""The strategies that a search may choose from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from wavecast.errors import InvalidInput
from wavecast.parallel.strategy import Parallel

MEMORY_MARGIN = 0.08
"""The share of a GPU's memory that a strategy leaves free unless asked: fragments, other sequences,
and what a library allocates that nobody traced."""


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
    recompute: tuple[str, ...] = ("none",)
    """What the backward pass may recompute, the least first: none, selective, full."""
    offload: bool = True
    """Whether optimizer states may be kept in the host's memory."""
    best: int | None = None
    """How many of the best are wanted. None for all, of which none is left out by its bound."""
    memory_margin: float = MEMORY_MARGIN
    """The share of a GPU's memory that must stay free."""
    within_s: float | None = None
    """When the search ends with what it has. None when all strategies were tried."""
    first_fitting: bool = False
    """Whether it ends as soon as one strategy fits."""

    def __post_init__(self) -> None:
        if not 0 <= self.memory_margin < 1:
            raise InvalidInput(
                f"the memory margin is {self.memory_margin:g}; it is the share of a GPU's memory "
                "that stays free, at least 0 and below 1, such as 0.08"
            )
        if self.within_s is not None and not self.within_s > 0:
            raise InvalidInput(f"a search takes more than {self.within_s:g} seconds")


def candidates(
    search: Search, domain_gpus: int, blocks: int, experts: int = 1
) -> Iterator[tuple[Parallel, int]]:
    """The strategies to try, each with its micro-batch."""
    for tensor, context, pipeline in _axes(search, domain_gpus, blocks):
        data = search.gpus // (tensor * context * pipeline)
        if search.global_batch % data:
            continue
        plan = search.tensor_plan if tensor > 1 else None
        axes = Parallel(
            data=data, tensor=tensor, context=context, pipeline=pipeline, tensor_plan=plan
        )
        for micro in search.micro_batches:
            count, rest = divmod(search.global_batch // data, micro)
            if rest or not count:
                continue
            for strategy in _variants(replace(axes, microbatches=count), blocks):
                for expert in _powers(math.gcd(experts, data * tensor), experts):
                    chosen = replace(strategy, expert=expert)
                    yield chosen, micro
                    if search.offload and (chosen.shard or data == 1):
                        yield replace(chosen, offload="optimizer"), micro


def _axes(search: Search, domain_gpus: int, blocks: int) -> Iterator[tuple[int, int, int]]:
    """The sizes of tensor, context and pipeline."""
    most_tensor = search.most_tensor or domain_gpus
    for tensor in _powers(search.gpus, most_tensor):
        for context in _powers(search.gpus // tensor, max(domain_gpus // tensor, 1)):
            for pipeline in _powers(search.gpus // (tensor * context), max(blocks, 1)):
                yield tensor, context, pipeline


def _variants(axes: Parallel, blocks: int) -> Iterator[Parallel]:
    """The schedules of a pipeline, and what is sharded among which ranks."""
    for sequence in (True, False) if axes.tensor > 1 else (False,):
        for scheduled in _schedules(replace(axes, sequence=sequence), blocks):
            yield scheduled
            for group in dict.fromkeys((*_powers(axes.data, axes.data), axes.data)):
                if group == 1:
                    continue
                chosen = None if group == axes.data else group
                for shard in (1, 2, 3):
                    sharded = replace(scheduled, shard=shard, shard_group=chosen)
                    yield sharded
                    if shard == 3:
                        yield replace(sharded, reshard=False)


def _schedules(axes: Parallel, blocks: int) -> Iterator[Parallel]:
    yield axes
    if axes.pipeline == 1:
        return
    yield replace(axes, schedule="zero-bubble")
    for virtual in _powers(blocks, blocks)[1:]:
        fits = blocks >= virtual * axes.pipeline and axes.microbatches % axes.pipeline == 0
        if fits and virtual <= _MOST_VIRTUAL:
            yield replace(axes, virtual=virtual)


_MOST_VIRTUAL = 4
"""The most parts that a stage has. More of them send more, and hide hardly more of the bubble."""


def shared_layers(strategy: Parallel) -> tuple[int, ...]:
    """What strategies have in common whose layers are sharded alike."""
    tokens = strategy.data * strategy.context if strategy.expert > 1 else 0
    return strategy.tensor, strategy.context, strategy.expert, tokens, not strategy.sequence


def shards_layers(shared: tuple[int, ...]) -> bool:
    """Whether layers are sharded, from what such strategies have in common."""
    return max(shared[:3]) > 1


def _powers(total: int, most: int) -> list[int]:
    """The powers of two that divide a number, up to the largest allowed."""
    powers = [1]
    while total % (2 * powers[-1]) == 0 and 2 * powers[-1] <= most:
        powers.append(2 * powers[-1])
    return powers
