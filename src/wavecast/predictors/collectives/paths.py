"""The path of a collective: its links, their latency and their bandwidth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from wavecast.hardware.cluster import Cluster, RankPlacement
from wavecast.hardware.device import Device
from wavecast.hardware.links import LinkKind, NetworkKind, NodeLinks, NodeNetwork
from wavecast.predictors.collectives.constants import LATENCY_S, LinkConstants


@dataclass(frozen=True, slots=True)
class RankPath:
    """The links that the ranks of one group use. Bandwidths are the most that NCCL attains."""

    placement: RankPlacement
    hop_s: float
    """The latency of a short message to the next GPU in the same machine."""
    bytes_per_s: float
    """The bandwidth of one GPU inside its machine."""
    nominal_bytes_per_s: float
    """The same by the data sheet, which no message exceeds."""
    nvls_bytes_per_s: float | None
    """The same when switches reduce (NVLink SHARP). None if they cannot."""
    network_hop_s: float
    """The latency of a short message to another machine; 0 for one machine."""
    network_bytes_per_s: float
    """The bandwidth to other machines of all ranks on one machine. Infinite for one machine."""
    sharp: bool
    """Whether the switches between machines reduce (SHARP)."""
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
    if placement.nodes > 1 and cluster.network is None:
        return None
    way = _inside(cluster, device, placement.per_node, constants)
    speed = way.bytes_per_s
    if placement.per_node == 1 and placement.nodes > 1:
        speed = float("inf")  # nothing is sent inside a machine
    nvls = None
    if cluster.node.nvls and placement.per_node > 2:
        nvls = cluster.node.link_bytes_per_s * constants.of("nvls_efficiency", way.generation)
    outside = (0.0, float("inf"), False)
    if cluster.network is not None and placement.nodes > 1:
        outside = _outside(cluster, cluster.network, device, placement, constants)
    return RankPath(placement, way.hop_s, speed, way.nominal, nvls, *outside, way.generation)


def _outside(
    cluster: Cluster,
    network: NodeNetwork,
    device: Device,
    placement: RankPlacement,
    constants: LinkConstants,
) -> tuple[float, float, bool]:
    """Between machines: latency, bandwidth, and whether switches reduce."""
    latency_s = network.latency_s or LATENCY_S[network.kind]
    nominal, efficiency = network.bytes_per_s, constants.network_efficiency
    if network.kind is NetworkKind.ETHERNET:
        efficiency = constants.ethernet_efficiency
        nominal = min(nominal, network.nics * constants.socket_bytes_per_s / efficiency)
    # All GPUs of a machine use the network at the same time, each for its own group.
    per_gpu = nominal / cluster.gpus_per_node
    per_gpu = min(per_gpu, device.pcie_bytes_per_s or per_gpu)
    speed = per_gpu * placement.per_node * efficiency
    return constants.network_hops * latency_s, speed, network.sharp


class _Way(NamedTuple):
    """The path from GPU to GPU inside a machine."""

    generation: str
    hop_s: float
    bytes_per_s: float
    """What one GPU attains."""
    nominal: float


def _inside(cluster: Cluster, device: Device, ranks: int, constants: LinkConstants) -> _Way:
    node, generation = cluster.node, generation_of(cluster, device)
    direct = _nvlink_bytes_per_s(node, ranks)
    if direct is not None:
        attained = direct * constants.of("nvlink_efficiency", generation)
        return _Way(generation, constants.of("nvlink_hop_s", generation), attained, direct)
    speed = node.link_bytes_per_s if node.link is LinkKind.PCIE else node.pcie_bytes_per_s or 0.0
    crosses = node.sockets > 1 and ranks > -(-node.gpus // node.sockets)
    if node.peer_to_peer and not crosses:
        attained = speed * constants.of("pcie_efficiency", "pcie")
        return _Way("pcie", constants.of("pcie_hop_s", "pcie"), attained, speed)
    # The hops of a ring that pass through the host's memory share it. NCCL sends between cards of
    # two processors that way too: there and back.
    hops = node.sockets if node.peer_to_peer else -(-ranks // node.bridged_gpus)
    shared = node.host_bytes_per_s or constants.host_shared_bytes_per_s
    attained = min(speed * constants.of("host_efficiency", "host"), shared / max(hops, 1))
    return _Way("host", constants.of("host_hop_s", "host"), attained, speed)


def _nvlink_bytes_per_s(node: NodeLinks, ranks: int) -> float | None:
    """The nominal speed of NVLink among so many GPUs. None if the way is over PCIe."""
    if node.link is LinkKind.NVSWITCH:
        return node.link_bytes_per_s
    if node.link is LinkKind.NVLINK:
        neighbour = node.peer_bytes_per_s or node.link_bytes_per_s
        return min(node.link_bytes_per_s, neighbour * max(ranks - 1, 1))
    if node.link is LinkKind.BRIDGES and ranks <= node.bridged_gpus:
        return node.link_bytes_per_s
    return None
