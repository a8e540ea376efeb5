"""The way of a collective's bytes: over which links, in how many steps, how many of them."""

from __future__ import annotations

from dataclasses import dataclass

from wavecast.hardware.cluster import Cluster, RankPlacement
from wavecast.hardware.device import Device
from wavecast.hardware.links import LinkKind
from wavecast.predictors.collectives.constants import LATENCY_S, LinkConstants


@dataclass(frozen=True, slots=True)
class RankPath:
    """The links that the ranks of one group use. Speeds are what NCCL attains at most."""

    placement: RankPlacement
    hop_s: float
    """A short message to the next GPU in the same machine."""
    bytes_per_s: float
    """What one GPU sends inside its machine."""
    nominal_bytes_per_s: float
    """The same according to the data sheet: no message is faster."""
    nvls_bytes_per_s: float | None
    """The same when switches add up. None if they cannot."""
    network_hop_s: float
    """A short message to another machine; 0 if the group has one machine only."""
    network_bytes_per_s: float
    """What the group's ranks on one machine send to others together. Infinite for one machine."""
    sharp: bool
    """Whether the switches between the machines add up."""
    generation: str
    """The kind of link inside the machine, with the generation of NVLink: "nvlink4"."""


_NVLINK = {"Pascal": 1, "Volta": 2, "Turing": 2, "Ampere": 3, "Hopper": 4, "Blackwell": 5}


def generation_of(cluster: Cluster, device: Device) -> str:
    """The kind of link inside a machine: "nvlink4", "pcie" or "host"."""
    if cluster.node.link in (LinkKind.NVSWITCH, LinkKind.NVLINK, LinkKind.BRIDGES):
        number = _NVLINK.get(device.architecture.removesuffix(" Ultra"))
        return f"nvlink{number}" if number else "fabric"
    return "pcie" if cluster.node.peer_to_peer else "host"


def path_of(
    cluster: Cluster, device: Device, placement: RankPlacement, constants: LinkConstants
) -> RankPath | None:
    """The links of a group of ranks. None if it needs a network and the cluster has none."""
    network = cluster.network
    if placement.nodes > 1 and network is None:
        return None
    generation = generation_of(cluster, device)
    hop, share, speed = _inside(cluster, placement.per_node)
    if placement.per_node == 1 and placement.nodes > 1:
        speed = float("inf")  # nothing is sent inside a machine
    if hop != "nvlink":
        generation = hop
    hop_s = constants.of(f"{hop}_hop_s", generation)
    efficiency = constants.of(f"{share}_efficiency", generation)
    nvls = None
    if cluster.node.nvls and placement.per_node > 2:
        nvls = cluster.node.link_bytes_per_s * constants.of("nvls_efficiency", generation)
    if network is None or placement.nodes == 1:
        outside = (0.0, float("inf"), False)
    else:
        latency_s = network.latency_s or LATENCY_S[network.kind]
        # All GPUs of a machine use the network at the same time, each for its own group.
        per_gpu = network.bytes_per_s / cluster.gpus_per_node
        per_gpu = min(per_gpu, device.pcie_bytes_per_s or per_gpu)
        speed_out = per_gpu * placement.per_node * constants.network_efficiency
        outside = (constants.network_hops * latency_s, speed_out, network.sharp)
    return RankPath(placement, hop_s, speed * efficiency, speed, nvls, *outside, generation)


def _inside(cluster: Cluster, ranks: int) -> tuple[str, str, float]:
    """Inside a machine: the kind of hop, the kind of efficiency, and the nominal speed."""
    node = cluster.node
    if node.link is LinkKind.NVSWITCH:
        return "nvlink", "nvlink", node.link_bytes_per_s
    if node.link is LinkKind.NVLINK:
        neighbour = node.peer_bytes_per_s or node.link_bytes_per_s
        speed = min(node.link_bytes_per_s, neighbour * max(ranks - 1, 1))
        return "nvlink", "nvlink", speed
    if node.link is LinkKind.BRIDGES and ranks <= node.bridged_gpus:
        return "nvlink", "nvlink", node.link_bytes_per_s
    speed = node.link_bytes_per_s if node.link is LinkKind.PCIE else node.pcie_bytes_per_s or 0.0
    if not node.peer_to_peer:
        return "host", "host", speed
    crosses = node.sockets > 1 and ranks > -(-node.gpus // node.sockets)
    return "pcie", "socket" if crosses else "pcie", speed
