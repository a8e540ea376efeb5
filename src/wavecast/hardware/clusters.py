"""The known clusters, and the usual machine of each GPU.

One TOML file describes one kind of machine with several GPUs, and the network between such
machines. ``data/clusters/*.toml`` ships with wavecast; the user's files are read from
``~/.config/wavecast/clusters`` and from ``$WAVECAST_CLUSTERS``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from wavecast.errors import InvalidInput, prefixed
from wavecast.files import read_toml
from wavecast.hardware.devices import Device, FactFiles, names, slug
from wavecast.reading import Quantity, Sources, read_fields, read_record
from wavecast.results import Shown


def clusters() -> tuple[Cluster, ...]:
    """All known clusters by name, the user's included.

    Files are read once per process and search path.
    """
    return CLUSTER_FILES.all()


def cluster(name: str) -> Cluster:
    """The cluster of a name: an id, a name, an alias, or a path to a .toml file.

    Case and punctuation do not matter. A name that fits several clusters is refused.

    >>> cluster("DGX H100").id
    'dgx-h100'

    Raises:
        UnknownName: the name fits no cluster or several; the message names the candidates.
        InvalidInput: a cluster file is wrong.
    """
    return CLUSTER_FILES.of_file(name) if name.endswith(".toml") else CLUSTER_FILES.of_name(name)


def usual_cluster(device: Device, gpus_per_node: int | None = None) -> Cluster:
    """The machine in which a GPU is usually found.

    For GPUs on boards with NVLink it is the DGX or HGX of their generation. Cards on PCIe are in a
    box of eight, GeForce cards in one of four, with the PCIe of the card.

    Args:
        gpus_per_node: another number of GPUs in the machine.

    Raises:
        InvalidInput: the speed of the GPU's links is unknown, or its usual machine has fewer GPUs.
    """
    usual = next((cluster for cluster in clusters() if device.id in cluster.usual_for), None)
    if usual is None:
        cards = gpus_per_node or (4 if _is_geforce(device) else 8)
        usual = cluster("pcie-4" if cards <= 4 else "pcie-8")
    usual = with_device(replace(usual, gpu=None), device)
    return usual if gpus_per_node is None else usual.with_gpus_per_node(gpus_per_node)


def with_device(cluster: Cluster, device: Device) -> Cluster:
    """The cluster with the links of a GPU, where its file does not say which GPU it has.

    Raises:
        InvalidInput: the speed of the GPU's links is unknown.
    """
    if cluster.gpu is not None:
        return cluster
    node, switched = cluster.node, cluster.node.link in (LinkKind.NVSWITCH, LinkKind.NVLINK)
    pcie, nvlink = device.pcie_bytes_per_s, device.nvlink_bytes_per_s
    if node.link is LinkKind.PCIE and pcie is None:
        raise InvalidInput(
            f"neither the usual machine of {device.id} nor its PCIe speed is known; name a cluster "
            '(list them with "wavecast clusters") or write a file for yours'
        )
    if node.link is LinkKind.BRIDGES and nvlink is None:
        raise InvalidInput(
            f"{cluster.id} joins cards by NVLink bridges, and {device.id} is not known to take "
            "one; name a cluster without bridges"
        )
    fast = pcie if node.link is LinkKind.PCIE else nvlink
    node = replace(
        node,
        link_bytes_per_s=fast or node.link_bytes_per_s,
        pcie_bytes_per_s=node.pcie_bytes_per_s if switched else pcie,
        peer_to_peer=switched or (node.peer_to_peer and not _lacks_peer_to_peer(device)),
    )
    sources = dict(cluster.sources)
    if fast:
        key = "pcie_bytes_per_s" if node.link is LinkKind.PCIE else "nvlink_bytes_per_s"
        sources["node.link_bytes_per_s"] = device.sources.get(key, "the file of its GPU")
    if cluster.node.peer_to_peer and not node.peer_to_peer:
        sources["node.peer_to_peer"] = "NVIDIA's driver has none on PCIe for GeForce RTX cards"
    return replace(cluster, gpu=device.id, node=node, sources=sources)


def _is_geforce(device: Device) -> bool:
    return device.id.startswith(("rtx-", "gtx-", "titan-", "rx-"))


def _lacks_peer_to_peer(device: Device) -> bool:
    """Whether the driver lets no two of these cards read each other's memory over PCIe."""
    words = device.id.split("-")
    consumer = words[0] == "rtx" and len(words) > 1 and words[1].isdigit()
    return (consumer and words[-1] != "ada") or device.id == "titan-rtx"


# The facts about machines with several GPUs, and the network that joins such machines.


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """How the ranks of one group are spread over machines."""

    ranks: int
    nodes: int
    """Machines with at least one of the ranks."""
    per_node: int
    """The largest number of ranks on one machine."""


@dataclass(frozen=True, slots=True, repr=False)
class Cluster(Shown):
    """Equal machines with several GPUs each. Units are SI; speeds are for one direction.

    >>> from wavecast.hardware.clusters import cluster
    >>> cluster("dgx-h100").gpus_per_node
    8
    """

    id: str
    name: str
    node: NodeLinks
    network: NodeNetwork | None = None
    """None if it is a single machine, or if its network is unknown."""
    gpu: str | None = None
    """The id of its GPU. None if it takes several kinds."""
    aliases: Annotated[tuple[str, ...], names] = ()
    usual_for: Annotated[tuple[str, ...], names] = ()
    """The GPUs whose usual machine it is."""
    # A dictionary cannot be hashed. Clusters that differ only here are unequal all the same.
    sources: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    """Where each fact is from, by its key in the file: "node.gpus", "network.bytes_per_s"."""

    @property
    def gpus_per_node(self) -> int:
        """The number of GPUs in one machine."""
        return self.node.gpus

    @property
    def domain_gpus(self) -> int:
        """GPUs that reach each other without the network: those of one machine, or of a rack."""
        return self.node.gpus * self.node.domain_nodes

    def with_gpus_per_node(self, gpus: int) -> Cluster:
        """The same cluster with another number of GPUs used in each machine.

        Raises:
            InvalidInput: the machine does not have so many.
        """
        if not 1 <= gpus <= self.node.gpus:
            raise InvalidInput(
                f"{gpus} GPUs per machine are too many or too few; a machine of {self.id} has "
                f"{self.node.gpus}, so 1 to {self.node.gpus} can be used"
            )
        return replace(self, node=replace(self.node, gpus=gpus))

    def placement(self, ranks: int, stride: int = 1) -> RankPlacement:
        """How a group of `ranks` ranks, `stride` apart, is spread over machines.

        An NVLink domain of several machines counts as one, since no message in it uses the network.
        """
        per_node = min(ranks, max(1, -(-self.domain_gpus // stride)))
        return RankPlacement(ranks, -(-ranks // per_node), per_node)

    def __str__(self) -> str:
        return self.name


# The links between GPUs: inside a machine, and between machines.


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


# The slowest link that is believed is 10 Mb/s, so that Gb/s written as a bare number are refused.
_BYTES_PER_S = Quantity("bytes/s", 1e6, 1e14)
_COUNT = Quantity("a count", 1, 1e5, whole=True)


@dataclass(frozen=True, slots=True)
class NodeLinks:
    """The GPUs of one machine and the links between them. Speeds are for one direction."""

    gpus: Annotated[int, _COUNT]
    """GPUs in one machine."""
    link: LinkKind
    link_bytes_per_s: Annotated[float, _BYTES_PER_S]
    """The bandwidth of one GPU over all its links."""
    peer_bytes_per_s: Annotated[float | None, _BYTES_PER_S] = None
    """The bandwidth to one neighbour, where `link` is NVLINK. None if it is all of it."""
    bridged_gpus: Annotated[int, _COUNT] = 1
    """Cards that NVLink bridges join, where `link` is BRIDGES."""
    pcie_bytes_per_s: Annotated[float | None, _BYTES_PER_S] = None
    """The bandwidth of one GPU over PCIe, where it also has NVLink."""
    peer_to_peer: bool = True
    """Whether GPUs on PCIe read each other's memory. If not, data pass through the host's."""
    host_bytes_per_s: Annotated[float | None, _BYTES_PER_S] = None
    """The bandwidth that all GPUs share through the host's memory. None if unknown."""
    processor: str | None = None
    """The processor that issues the work. None if unknown."""
    memory_bytes_per_s: Annotated[float | None, _BYTES_PER_S] = None
    """The bandwidth of the host's memory, all sockets together. None for that of the processor."""
    sockets: Annotated[int, _COUNT] = 1
    """CPU sockets. Data between GPUs of different sockets cross from one to the other."""
    nvls: bool = False
    """Whether the switches reduce in the network (NVLink SHARP)."""
    domain_nodes: Annotated[int, _COUNT] = 1
    """Machines that one NVLink network joins (18 in an NVL72)."""


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """The network between machines."""

    kind: NetworkKind
    bytes_per_s: Annotated[float, _BYTES_PER_S]
    """The bandwidth of one machine over all its adapters."""
    nics: Annotated[int, _COUNT] = 1
    """Adapters in one machine."""
    latency_s: Annotated[float | None, Quantity("s", 1e-8, 1.0)] = None
    """The latency of a short message between machines, without NCCL."""
    sharp: bool = False
    """Whether the switches reduce in the network (InfiniBand SHARP)."""


# Cluster files: one TOML file describes one kind of machine, with a source for each fact.


def read_cluster(path: str | os.PathLike[str]) -> Cluster:
    """The cluster that a TOML file describes; its id is the file's name.

    Raises:
        InvalidInput: the file cannot be read or is not a cluster file; says which key and why.
    """
    return _read(Path(path), False)


def _read(path: Path, need_sources: bool) -> Cluster:
    with prefixed(f"{path}: "):
        table = read_toml(path)
        facts = Sources(need_sources, {})
        node = read_record(NodeLinks, table.get("node", {}), _WHAT, "node.", facts=facts)
        _check_node(node)
        network = None
        if "network" in table:
            network = read_record(NodeNetwork, table["network"], _WHAT, "network.", facts=facts)
        rest = read_fields(
            *(Cluster, table, _WHAT),
            left_out=("id", "sources", "node", "network"),
            besides=("node", "network"),
        )
        id = slug(path.stem, "cluster")
        return Cluster(id=id, node=node, network=network, sources=facts.by_key, **rest)


_WHAT = "a cluster"
CLUSTER_FILES = FactFiles("cluster", _read, lambda cluster: cluster.id)


def _check_node(node: NodeLinks) -> None:
    if node.link is LinkKind.BRIDGES and (node.bridged_gpus < 2 or node.pcie_bytes_per_s is None):
        raise InvalidInput(
            "node.link is bridges, so node.bridged_gpus (2 for pairs) and node.pcie_bytes_per_s "
            "are needed too"
        )
    if node.link is not LinkKind.BRIDGES and node.bridged_gpus != 1:
        raise InvalidInput(f"node.bridged_gpus is only for bridges, not for {node.link}")
    if node.nvls and node.link is not LinkKind.NVSWITCH:
        raise InvalidInput("node.nvls is true, but only NVSwitches can reduce (NVLink SHARP)")
