"""How the speed of a training grows with the number of GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from wavecast.errors import InvalidInput
from wavecast.hardware.hosts import HostModel
from wavecast.parallel.strategy import Parallel
from wavecast.results import Shown
from wavecast.steps.op_times import ClusterPredictor
from wavecast.steps.prediction import Prediction
from wavecast.steps.request import predict_parallel
from wavecast.traces.step import Trace

KNEE = 0.8
"""Below this efficiency, relative to the fewest GPUs, more GPUs are said not to pay."""


@dataclass(frozen=True)
class ScalePoint:
    """One number of GPUs."""

    gpus: int
    prediction: Prediction
    relative: float
    """The speed per GPU, divided by that of the fewest GPUs."""


@dataclass(frozen=True, repr=False)
class Scaling(Shown):
    """The speed of a training over the number of GPUs."""

    points: tuple[ScalePoint, ...]
    is_strong: bool
    """Whether the samples of one optimizer step stay the same (strong), or grow (weak)."""

    @property
    def knee(self) -> int | None:
        """The most GPUs that still have `KNEE` of the speed of the fewest. None if all have."""
        good = [point.gpus for point in self.points if point.relative >= KNEE]
        return None if len(good) == len(self.points) else max(good, default=None)


def scale(
    trace: Trace,
    strategy: Parallel,
    counts: Sequence[int],
    predictor: ClusterPredictor,
    host: HostModel,
    *,
    strong: bool = False,
) -> Scaling:
    """The predicted speed for several numbers of GPUs.

    The data axis grows, the other axes stay. Weak scaling keeps the work of each GPU. Strong
    scaling keeps the samples of one optimizer step, so that each GPU runs fewer micro-batches.
    """
    inner = strategy.gpus // strategy.data
    whole = strategy.microbatches * strategy.data
    points: list[ScalePoint] = []
    for gpus in counts:
        data, rest = divmod(gpus, inner)
        if rest or not data:
            raise InvalidInput(
                f"{gpus} GPUs cannot hold replicas of {inner} GPUs each; use a multiple of {inner}"
            )
        microbatches = strategy.microbatches
        if strong:
            microbatches, rest = divmod(whole, data)
            if rest or not microbatches:
                continue
        chosen = replace(strategy, data=data, microbatches=microbatches, shard_group=None)
        prediction = predict_parallel(trace, chosen, predictor, host)
        points.append(ScalePoint(gpus, prediction, 1.0))
    if not points:
        raise InvalidInput(
            f"none of the numbers of GPUs divides the {whole} micro-batches of a step; "
            "use weak scaling, or more micro-batches"
        )
    return Scaling(tuple(_relative(points)), strong)


def doubled_counts(strategy: Parallel, up_to: int) -> list[int]:
    """The numbers of GPUs to try: the smallest possible one, then twice as many each time.

    The smallest holds one replica, or all replicas that share the experts.
    """
    sharing = strategy.expert // math.gcd(strategy.expert, strategy.tensor * strategy.sequence or 1)
    smallest = strategy.gpus // strategy.data * sharing
    if up_to < smallest:
        who = "the replicas that share the experts, which have" if sharing > 1 else ""
        raise InvalidInput(
            f"--up-to {up_to} is less than {who or 'one replica, which has'} {smallest} GPUs"
        )
    return list(doubles(smallest, up_to))


def doubles(first: int, up_to: int) -> Iterator[int]:
    """A number and its doubles, up to the largest."""
    while first <= up_to:
        yield first
        first *= 2


def _relative(points: Sequence[ScalePoint]) -> list[ScalePoint]:
    def speed(point: ScalePoint) -> float:
        step = point.prediction
        replicas = 1 if step.parallel is None else step.parallel.data
        return step.microbatches * replicas / step.seconds / point.gpus

    first = speed(points[0])
    return [replace(point, relative=speed(point) / first) for point in points]
