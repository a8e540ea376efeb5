"""What network a training needs: its best strategies on faster and slower networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from wavecast.hardware.hosts import HostModel
from wavecast.parallel.strategy import Parallel
from wavecast.planning.layouts import Layout
from wavecast.steps.op_times import ClusterPredictor
from wavecast.steps.parallel_steps import ParallelSteps

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""The speeds that are tried, relative to the network of the cluster."""


@dataclass(frozen=True)
class NetworkPoint:
    """One speed of the network, and the best strategy with it."""

    factor: float
    """The speed, relative to the network of the cluster."""
    bytes_per_s: float
    """The speed of all adapters of one machine together, in one direction."""
    strategy: Parallel
    seconds: float
    """One optimizer step."""
    relative: float
    """The speed of the training, relative to the network of the cluster."""


def network_points(
    layouts: Sequence[Layout], predictor: ClusterPredictor, host: HostModel
) -> list[NetworkPoint]:
    """The fastest of some layouts on slower and faster networks.

    Empty if the GPUs are in one machine, or the network is not known. Layouts that are not given
    are not tried again, so the table says what the network costs these.
    """
    cluster = predictor.cluster
    steps = [(one.strategy, one.prediction) for one in layouts if one.prediction is not None]
    if cluster.network is None or not steps or steps[0][0].gpus <= cluster.domain_gpus:
        return []
    points: list[NetworkPoint] = []
    usual_s = steps[0][1].seconds
    for factor in FACTORS:
        speed = cluster.network.bytes_per_s * factor
        other = predictor.on(replace(cluster, network=replace(cluster.network, bytes_per_s=speed)))
        timed = [
            (ParallelSteps(step.trace, other, host).predict(step.spread).seconds, strategy)
            for strategy, step in steps
            if step.spread is not None
        ]
        seconds, strategy = min(timed, key=lambda pair: pair[0])
        points.append(NetworkPoint(factor, speed, strategy, seconds, usual_s / seconds))
    return points
