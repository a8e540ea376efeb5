"""The time of a pipeline: stages that pass micro-batches to each other.

Each stage works through its list of passes in order. A pass starts when the stage is free and what
it needs from its neighbour has arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from wavecast.errors import InvalidInput

FORWARD, BACKWARD, WEIGHTS = "forward", "backward", "weights"


class PipelinePass(NamedTuple):
    """One pass of a micro-batch through one part of the model."""

    kind: str
    """`FORWARD`, `BACKWARD`, or `WEIGHTS`: the part of the backward pass nobody waits for."""
    part: int
    """The part of the model, from 0. Stage s has the parts s, s + stages, ..."""
    microbatch: int


@dataclass(frozen=True)
class PartTimes:
    """The times of one micro-batch in one part of the model, in seconds."""

    forward_s: float
    backward_s: float
    weights_s: float = 0.0
    """How much of `backward_s` computes gradients of weights, which nobody waits for."""
    transfer_s: float = 0.0
    """The time to send its activations to the next part, and gradients back."""


@dataclass(frozen=True)
class Played:
    """A played schedule."""

    seconds: float
    """From the first pass to the end of the last one."""
    busy_s: tuple[float, ...]
    """How long each stage worked."""
    ends_s: tuple[float, ...]
    """When each stage has ended its last pass."""


Orders = tuple[tuple[PipelinePass, ...], ...]
"""The passes of each stage, in order."""


@lru_cache(maxsize=8)  # time and memory need the same one, and so do strategies that shard more
def order_of(schedule: str, stages: int, parts: int, microbatches: int) -> Orders:
    """The passes of each stage, in order.

    Args:
        schedule: "gpipe", "1f1b" (interleaved if there are more parts than stages) or
            "zero-bubble" (ZB-H1 of Qi et al., "Zero Bubble Pipeline Parallelism", 2023).
        stages: how many stages there are.
        parts: how many parts the model has: a multiple of `stages`.
        microbatches: how many micro-batches run.
    """
    if parts > stages:
        return tuple(
            tuple(_interleaved(stage, stages, parts, microbatches)) for stage in range(stages)
        )
    if schedule == "gpipe":
        warm = [microbatches] * stages
    else:
        warm = [min(stages - stage, microbatches) for stage in range(stages)]
    orders = []
    for stage in range(stages):
        passes = [PipelinePass(FORWARD, stage, m) for m in range(warm[stage])]
        for m in range(microbatches):
            passes.append(PipelinePass(BACKWARD, stage, m))
            if m + warm[stage] < microbatches:
                passes.append(PipelinePass(FORWARD, stage, m + warm[stage]))
        later = _with_weights(passes, stage) if schedule == "zero-bubble" else passes
        orders.append(tuple(later))
    return tuple(orders)


def in_flight(orders: Sequence[Sequence[PipelinePass]]) -> tuple[int, ...]:
    """The most micro-batches whose activations each stage holds at once, over all its parts."""
    change = dict.fromkeys((FORWARD, BACKWARD, WEIGHTS), 0)
    change |= {FORWARD: 1, WEIGHTS if _splits(orders) else BACKWARD: -1}
    return tuple(max(accumulate(change[item.kind] for item in order)) for order in orders)


def _splits(orders: Sequence[Sequence[PipelinePass]]) -> bool:
    """Whether gradients of weights have passes of their own."""
    return any(item.kind == WEIGHTS for order in orders for item in order)


def _with_weights(passes: list[PipelinePass], stage: int) -> list[PipelinePass]:
    """The passes with gradients of weights computed later, in the gaps at the end.

    As in ZB-H1, stage s puts them off by s passes, so that memory does not grow.
    """
    result: list[PipelinePass] = []
    waiting: list[PipelinePass] = []
    for item in passes:
        result.append(item)
        if item.kind == BACKWARD:
            waiting.append(PipelinePass(WEIGHTS, item.part, item.microbatch))
            if len(waiting) > stage:
                result.append(waiting.pop(0))
    return [*result, *waiting]


def _interleaved(stage: int, stages: int, parts: int, microbatches: int) -> list[PipelinePass]:
    """The interleaved schedule (Narayanan et al., SC 2021, section 2.2), as Megatron orders it."""
    chunks = parts // stages
    total = microbatches * chunks
    if microbatches % stages:
        raise InvalidInput(
            f"the interleaved schedule needs microbatches that are a multiple of the {stages} "
            f"stages, not {microbatches}"
        )

    def at(index: int, forward: bool) -> PipelinePass:
        group, inside = divmod(index, stages * chunks)
        chunk = inside // stages
        if not forward:
            chunk = chunks - 1 - chunk
        microbatch = group * stages + inside % stages
        return PipelinePass(FORWARD if forward else BACKWARD, chunk * stages + stage, microbatch)

    warm = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
    passes = [at(index, True) for index in range(warm)]
    for index in range(total - warm):
        passes.append(at(index + warm, True))
        passes.append(at(index, False))
    passes += [at(index, False) for index in range(total - warm, total)]
    return passes


def play_schedule(orders: Sequence[Sequence[PipelinePass]], times: Sequence[PartTimes]) -> Played:
    """The time of a schedule.

    Args:
        orders: the passes of each stage, in order.
        times: the times of each part of the model.

    Raises:
        InvalidInput: the passes wait for each other in a circle.
    """
    stages, last = len(orders), len(times) - 1
    ready: dict[tuple[str, int, int], float] = {}
    free_s, busy_s, at = [0.0] * stages, [0.0] * stages, [0] * stages
    splits = _splits(orders)
    moving = True
    while moving:
        moving = False
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                item = order[at[stage]]
                needed_s = _needed(item, ready, last, times)
                if needed_s is None:
                    break
                seconds = _seconds(item, times[item.part], splits)
                free_s[stage] = max(free_s[stage], needed_s) + seconds
                busy_s[stage] += seconds
                ready[item] = free_s[stage]
                at[stage] += 1
                moving = True
    if any(at[stage] < len(order) for stage, order in enumerate(orders)):
        raise InvalidInput("the passes of this schedule wait for each other; use another schedule")
    return Played(max(free_s), tuple(busy_s), tuple(free_s))


def _needed(
    item: PipelinePass,
    ready: dict[tuple[str, int, int], float],
    last: int,
    times: Sequence[PartTimes],
) -> float | None:
    """When what a pass needs has arrived; None if it is not known yet."""
    if item.kind == WEIGHTS:
        return ready.get((BACKWARD, item.part, item.microbatch))
    if item.kind == FORWARD:
        if item.part == 0:
            return 0.0
        sent_s = ready.get((FORWARD, item.part - 1, item.microbatch))
        return None if sent_s is None else sent_s + times[item.part - 1].transfer_s
    own_s = ready.get((FORWARD, item.part, item.microbatch))
    if item.part == last or own_s is None:
        return own_s
    sent_s = ready.get((BACKWARD, item.part + 1, item.microbatch))
    return None if sent_s is None else max(own_s, sent_s + times[item.part].transfer_s)


def _seconds(item: PipelinePass, times: PartTimes, splits: bool) -> float:
    if item.kind == FORWARD:
        return times.forward_s
    if item.kind == WEIGHTS:
        return times.weights_s
    return times.backward_s - (times.weights_s if splits else 0.0)
