"""The fitted constants of collectives: latencies, efficiencies and protocols."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from wavecast.files import shipped_toml


@dataclass(frozen=True, slots=True)
class LinkConstants:
    """Constants of NCCL on links. Efficiencies are shares of a link's nominal bandwidth."""

    launch_s: float = 6e-6
    """The time to start and end a collective on all its GPUs."""
    nvlink_hop_s: float = 1.0e-6
    """The latency of a short message to the next GPU over NVLink."""
    pcie_hop_s: float = 1.4e-6
    """The same over PCIe, from GPU to GPU."""
    host_hop_s: float = 4e-6
    """The same over PCIe through the host's memory."""
    network_hops: float = 4.0
    """How many times the network's latency one message of NCCL between machines takes."""
    network_step: float = 1.0
    """The latency of a ring's step to the next machine, compared with such a message."""
    nvlink_efficiency: float = 0.8
    pcie_efficiency: float = 0.75
    host_efficiency: float = 0.44
    """The share of the PCIe bandwidth through the host's memory. It is half of that with
    peer-to-peer access: a chunk is first written there, then read."""
    host_shared_bytes_per_s: float = 1.6e10
    """The total bandwidth of all transfers through the host's memory. Eight L40S attain 12 GB/s
    together and four 21 GB/s (aiconfigurator, 512 MiB)."""
    network_efficiency: float = 0.85
    ethernet_efficiency: float = 0.94
    """The payload of Ethernet: 1,448 of the 1,538 bytes of a full frame are data."""
    socket_bytes_per_s: float = 3e9
    """The most that TCP attains over one adapter: one processor core copies the data. A round
    figure, not a measurement."""
    nvls_efficiency: float = 0.62
    """The share of the NVLink bandwidth when switches reduce."""
    nvls_hops: float = 12.0
    """The latency of an all-reduce in the switches, in hops."""
    own_share: float = 0.43
    """The time to copy a rank's own part, relative to sending as many bytes."""
    fill_s: float = 1e-5
    """How long the pipeline of chunks takes to fill inside a machine."""
    network_fill_s: float = 1e-4
    """The same between machines."""
    ll_share: float = 0.25
    """The share of the bandwidth that the protocol LL attains, which uses few channels."""
    ll128_share: float = 0.55
    """The same for LL128."""
    ll128_extra: float = 0.2
    """How much longer a hop takes with LL128 than with LL, as a share."""
    simple_extra: float = 0.3
    """How much longer a hop takes with the simple protocol than with LL128, in the same unit."""
    exchange_hop: float = 0.3
    """The latency of each further peer of an all-to-all, in hops."""
    exchange_efficiency: float = 1.0
    """The speed of an all-to-all, compared with a ring."""
    exchange_fill_s: float = 1e-5
    """How long the pipeline of an all-to-all takes to fill."""
    exchange_start_s: float = 5e-6
    """How much longer the simple protocol takes to start an all-to-all than LL."""
    message_efficiency: float = 1.1
    """The speed of a single message, compared with a ring."""
    generations: Mapping[str, Mapping[str, float]] = field(default_factory=dict, hash=False)
    """Factors on constants by link ("nvlink4"), where its GPUs were measured."""
    node_range: float = 1.6
    """Nine in ten measured times are within this factor, on one machine of a measured kind."""
    unseen_range: float = 2.0
    """The same for links of which no GPU was measured."""
    pcie_range: float = 2.0
    """The same for PCIe between cards that reach each other: an assumption, since one box was
    measured."""
    host_range: float = 3.0
    """The same through the host's memory: an assumption. Equal boxes of Lambda's differ by 2.2."""
    network_range: float = 2.5
    """The same for several machines."""

    def of(self, name: str, generation: str) -> float:
        """A constant, for the GPUs of one generation of links."""
        value: float = getattr(self, name)
        return value * self.generations.get(generation, {}).get(name, 1.0)


LATENCY_S: Mapping[str, float] = {
    "infiniband": 2e-6,
    "omnipath": 2e-6,
    "roce": 2e-6,
    "efa": 1.5e-5,
    "tcpx": 2e-5,
    "ethernet": 3e-5,
}
"""The usual time of a short message between two machines by kind of network, where the cluster's
file has none. These are round figures, not measurements."""


@functools.cache
def shipped_constants() -> LinkConstants:
    """The constants that were fitted to measured collectives."""
    table = shipped_toml("models/collectives.toml")
    return LinkConstants(**table["constants"], generations=table.get("generations", {}))
