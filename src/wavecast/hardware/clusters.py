"""The known clusters, and the usual machine of each GPU.

One TOML file describes one kind of machine with several GPUs, and the network between such
machines. ``data/clusters/*.toml`` ships with wavecast; the user's files are read from
``~/.config/wavecast/clusters`` and from ``$WAVECAST_CLUSTERS``.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

from wavecast.errors import InvalidInput, UnknownName
from wavecast.files import shipped
from wavecast.hardware.cluster import Cluster
from wavecast.hardware.cluster_files import (
    own_clusters_folder,
    read_cluster,
    read_shipped_cluster,
)
from wavecast.hardware.device import Device
from wavecast.hardware.fact_files import user_files
from wavecast.hardware.links import LinkKind
from wavecast.hardware.names import the_one


def clusters() -> tuple[Cluster, ...]:
    """All known clusters by name, the user's included.

    Files are read once per process and search path.
    """
    return _load(user_files(own_clusters_folder(), "WAVECAST_CLUSTERS"))


def cluster(name: str) -> Cluster:
    """The cluster of a name: an id, a name, an alias, or a path to a .toml file.

    Case and punctuation do not matter. A name that fits several clusters is refused.

    >>> cluster("DGX H100").id
    'dgx-h100'

    Raises:
        UnknownName: the name fits no cluster or several; the message names the candidates.
        InvalidInput: a cluster file is wrong.
    """
    if name.endswith(".toml"):
        path = Path(name).expanduser()
        if not path.is_file():
            raise UnknownName(f'no cluster file "{name}"; give a path to a .toml file that exists')
        return read_cluster(path)
    by_id = next((one for one in clusters() if one.id == name), None)
    return by_id or the_one(name, clusters(), "cluster")


def usual_cluster(device: Device, gpus_per_node: int | None = None) -> Cluster:
    """The machine in which a GPU is usually found.

    For GPUs on boards with NVLink it is the DGX or HGX of their generation. Cards on PCIe are in a
    box of eight, GeForce cards in one of four, with the PCIe of the card.

    Args:
        device: the GPU.
        gpus_per_node: another number of GPUs in the machine.

    Raises:
        InvalidInput: the speed of the GPU's links is unknown, or its usual machine has fewer GPUs.
    """
    usual = next((one for one in clusters() if device.id in one.usual_for), None)
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


_SHIPPED = shipped("clusters")


def _is_geforce(device: Device) -> bool:
    return device.id.startswith(("rtx-", "gtx-", "titan-", "rx-"))


def _lacks_peer_to_peer(device: Device) -> bool:
    """Whether the driver lets no two of these cards read each other's memory over PCIe."""
    words = device.id.split("-")
    consumer = words[0] == "rtx" and len(words) > 1 and words[1].isdigit()
    return (consumer and words[-1] != "ada") or device.id == "titan-rtx"


@functools.lru_cache(maxsize=16)
def _load(user_files: tuple[Path, ...]) -> tuple[Cluster, ...]:
    by_id = {path.stem: read_shipped_cluster(path) for path in _SHIPPED.glob("*.toml")}
    for path in user_files:
        own = read_cluster(path)
        by_id[own.id] = own
    return tuple(sorted(by_id.values(), key=lambda one: one.id))
