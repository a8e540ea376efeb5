"""Does TBD's observation 12 hold in predictions of its machines (Zhu et al., IISWC 2018)?

    python -m lab score tbd_machines

Writes the table of docs/parallel.md: ResNet-50 on the configurations of TBD's figure about several
GPUs and machines, with Quadro P4000. "2M1G" are two machines with one GPU each. TBD's figures were
not published as data, so the shapes are compared: which configuration is faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import wavecast
from lab.pages import heading
from lab.places import DOCS
from lab.scores import ScoreTable
from wavecast.suite import benchmark
from wavecast.traces.step import Trace

PAGE = DOCS / "parallel.md"
MARK = "begin: python -m lab score tbd_machines"
GPU = "quadro-p4000"
BATCHES = (8, 16, 32)
"""The mini-batches of one GPU."""
CONFIGURATIONS = {
    "1M1G": wavecast.Parallel(cluster="tbd-ethernet"),
    "2M1G, Ethernet": wavecast.Parallel(data=2, nodes=2, cluster="tbd-ethernet"),
    "2M1G, InfiniBand": wavecast.Parallel(data=2, nodes=2, cluster="tbd-infiniband"),
    "1M2G": wavecast.Parallel(data=2, cluster="tbd-infiniband"),
    "1M4G": wavecast.Parallel(data=4, cluster="tbd-infiniband"),
}


@dataclass(frozen=True)
class ConfiguredStep:
    """A predicted step of one configuration."""

    throughput: float
    """Images per second of all GPUs."""
    efficiency: float
    """The speed per GPU, divided by that of one GPU alone."""
    memory_bytes: int
    """What one GPU needs."""


@cache
def _trace(batch: int) -> Trace:
    make_step = benchmark("resnet50").make_step
    return wavecast.trace(lambda: make_step(batch, "fp32"), gpu=GPU, samples=batch)


@cache
def configured(name: str, batch: int) -> ConfiguredStep:
    """The prediction of a configuration with so many images on each GPU."""
    trace, strategy = _trace(batch), CONFIGURATIONS[name]
    step = wavecast.predict(trace, GPU, parallel=strategy)
    memory = wavecast.memory(trace, GPU, parallel=strategy)
    assert step.throughput is not None
    return ConfiguredStep(step.throughput, step.efficiency, memory.peak_bytes)


def table() -> str:
    """Throughput by configuration and batch, and what each GPU needs."""
    speeds = " | ".join(f"images/s, batch {batch}" for batch in BATCHES)
    share = f"of so many single GPUs, batch {BATCHES[-1]}"
    lines = [*heading(f"configuration | {speeds} | {share} | memory of a GPU")]
    for name in CONFIGURATIONS:
        steps = [configured(name, batch) for batch in BATCHES]
        last = steps[-1]
        lines.append(
            f"| {name} | {' | '.join(f'{step.throughput:.0f}' for step in steps)} "
            f"| {last.efficiency:.0%} | {last.memory_bytes / 2**30:.2f} GiB |"
        )
    return "\n".join(lines)


def tables() -> Iterator[ScoreTable]:
    """The table of the page."""
    yield ScoreTable(table(), PAGE, MARK)
