"""Processors, and how fast they issue work, relative to the reference host.

The reference host was measured on one processor. The speed of one thread on another processor
follows from its clock and its generation (`data/processors.toml`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from wavecast.files import shipped_toml
from wavecast.hardware.cluster import Cluster
from wavecast.hardware.hosts import REFERENCE_HOST, Host


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor, as far as the speed of one thread depends on it."""

    name: str
    core: str
    """Its generation."""
    boost_hz: float
    """The highest clock of one core."""
    work_per_clock: float
    """What one core of this generation does in a clock, relative to Intel's Skylake."""
    memory_bytes_per_s: float | None = None
    """The bandwidth of the memory of one socket, all channels together. None if unknown."""

    @property
    def speed(self) -> float:
        """The speed of one thread; only ratios have a meaning."""
        return self.boost_hz * self.work_per_clock


@functools.cache
def processors() -> dict[str, Processor]:
    """The known processors by name."""
    table = shipped_toml("processors.toml")
    work = {core: fact["value"] for core, fact in table["work_per_clock"].items()}
    return {
        name: Processor(
            name,
            facts["core"],
            facts["boost_hz"]["value"],
            work[facts["core"]],
            facts.get("memory_bytes_per_s", {}).get("value"),
        )
        for name, facts in table["processors"].items()
    }


def reference_processor() -> Processor:
    """The processor of the reference host."""
    return processors()[shipped_toml("processors.toml")["reference"]["value"]]


_SCALED = "those of the reference host, scaled to the speed of one thread"


@dataclass(frozen=True, slots=True)
class UsualHost:
    """A host of a usual kind, which stands for machines that nobody has calibrated."""

    name: str
    about: str
    processor: Processor
    sustained: float
    """The share of the highest clock that a thread keeps."""
    source: str
    """Where that share is from."""

    @property
    def factor(self) -> float:
        """The time that it takes, relative to the reference host."""
        return reference_processor().speed / (self.processor.speed * self.sustained)

    @property
    def host(self) -> Host:
        """The host, for predictions."""
        name = f"{self.name} (as {self.processor.name}: reference x{self.factor:.2f})"
        kept = f"it keeps {self.sustained:.0%} of its highest clock ({self.source})"
        source = f"{_SCALED}; {kept}"
        return replace(REFERENCE_HOST.scaled(self.factor), name=name, source=source)


@functools.cache
def usual_hosts() -> dict[str, UsualHost]:
    """Hosts of usual kinds by name, the fastest first.

    >>> list(usual_hosts())[:3]
    ['desktop', 'workstation', 'laptop']
    """
    hosts = [
        UsualHost(
            name=name,
            about=facts["about"],
            processor=processors()[facts["processor"]],
            sustained=facts["sustained"]["value"],
            source=facts["sustained"]["source"],
        )
        for name, facts in shipped_toml("usual_hosts.toml").items()
    ]
    return {host.name: host for host in sorted(hosts, key=lambda host: host.factor)}


def host_of(cluster: Cluster) -> Host:
    """The reference host, scaled to the processor of a cluster.

    It is not scaled if the cluster names no processor, or an unknown one.

    >>> from wavecast.hardware.clusters import cluster
    >>> host_of(cluster("dgx-a100")).name
    'reference, scaled to AMD EPYC 7742 (x1.54)'
    """
    processor = processors().get(cluster.node.processor or "")
    if processor is None:
        return REFERENCE_HOST
    factor = reference_processor().speed / processor.speed
    name = f"reference, scaled to {processor.name} (x{factor:.2f})"
    return replace(REFERENCE_HOST.scaled(factor), name=name, source=_SCALED)


def update_rate(cluster: Cluster) -> float | None:
    """The bytes per second that an optimizer moves in the memory of a machine's host.

    All ranks of the machine share it. None if the bandwidth of that memory is unknown.

    >>> from wavecast.hardware.clusters import cluster
    >>> f"{update_rate(cluster('dgx-2')):.3g}"
    '1.09e+11'
    """
    node = cluster.node
    bandwidth = node.memory_bytes_per_s
    processor = processors().get(node.processor or "")
    if bandwidth is None and processor is not None and processor.memory_bytes_per_s is not None:
        bandwidth = processor.memory_bytes_per_s * node.sockets
    if bandwidth is None:
        return None
    attained: float = shipped_toml("processors.toml")["attained_by_optimizers"]["value"]
    return bandwidth * attained
