"""The links between GPUs: inside a machine, and between machines."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LinkKind(StrEnum):
    """How the GPUs of one machine are joined."""

    NVSWITCH = "nvswitch"
    """NVLink to switches: each GPU reaches each other one at the speed of all its links."""
    NVLINK = "nvlink"
    """NVLink (on AMD: Infinity Fabric) from GPU to GPU, without a switch."""
    BRIDGES = "bridges"
    """NVLink bridges between a few neighbouring cards; the others are reached over PCIe."""
    PCIE = "pcie"
    """PCIe only."""


class NetworkKind(StrEnum):
    """How machines are joined."""

    INFINIBAND = "infiniband"
    OMNIPATH = "omnipath"
    ROCE = "roce"
    """RDMA over Ethernet."""
    EFA = "efa"
    """Amazon's Elastic Fabric Adapter."""
    TCPX = "tcpx"
    """Google's GPUDirect-TCPX and TCPXO."""
    ETHERNET = "ethernet"
    """TCP sockets."""


@dataclass(frozen=True, slots=True)
class NodeLinks:
    """The GPUs of one machine and the links between them. Speeds are for one direction."""

    gpus: int
    """GPUs in one machine."""
    link: LinkKind
    link_bytes_per_s: float
    """The bandwidth of one GPU over all its links."""
    peer_bytes_per_s: float | None = None
    """The bandwidth to one neighbour, where `link` is NVLINK. None if it is all of it."""
    bridged_gpus: int = 1
    """Cards that NVLink bridges join, where `link` is BRIDGES."""
    pcie_bytes_per_s: float | None = None
    """The bandwidth of one GPU over PCIe, where it also has NVLink."""
    peer_to_peer: bool = True
    """Whether GPUs on PCIe read each other's memory. If not, data pass through the host's."""
    host_bytes_per_s: float | None = None
    """The bandwidth that all GPUs share through the host's memory. None if unknown."""
    processor: str | None = None
    """The processor that issues the work. None if unknown."""
    memory_bytes_per_s: float | None = None
    """The bandwidth of the host's memory, all sockets together. None for that of the processor."""
    sockets: int = 1
    """CPU sockets. Data between GPUs of different sockets cross from one to the other."""
    nvls: bool = False
    """Whether the switches reduce in the network (NVLink SHARP)."""
    domain_nodes: int = 1
    """Machines that one NVLink network joins (18 in an NVL72)."""


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """The network between machines."""

    kind: NetworkKind
    bytes_per_s: float
    """The bandwidth of one machine over all its adapters."""
    nics: int = 1
    """Adapters in one machine."""
    latency_s: float | None = None
    """The latency of a short message between machines, without NCCL."""
    sharp: bool = False
    """Whether the switches reduce in the network (InfiniBand SHARP)."""
