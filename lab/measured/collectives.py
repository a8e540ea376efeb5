"""Measured collectives of public tables, each with the cluster that it was measured on.

These rows are left out:

- aiconfigurator's L40S with four and eight GPUs: its bus bandwidth falls from 20 to 5 and 1 GB/s,
  which is that host's and not the GPU's (the README of the data);
- ml-engineering's rows, which state neither the GPU nor the network;
- the figures of one report that calls them slow;
- vidur's rows of A40 cards, whose links are not stated and do not fit a bridge, and its single
  messages between A100 cards, which are faster than the bridge: the source ships the same file for
  another GPU.

Vidur does not state the network between its machines. The bandwidth that is assumed here, 100 Gb/s
for its DGX, is read from its own longest messages, so these rows say little about bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from lab.measured.tables import KERNELS, read_frame
from wavecast.hardware.clusters import (
    Cluster,
    LinkKind,
    NetworkKind,
    NodeLinks,
    NodeNetwork,
    RankPlacement,
    cluster,
    usual_cluster,
)
from wavecast.hardware.devices import Device, device

PER_OCTAVE = 4
"""Vidur has thousands of sizes; this many are kept for each factor of two."""


@dataclass(frozen=True)
class MeasuredCollective:
    """One measured collective."""

    source: str
    """The set of measurements: "aiconfigurator", "vidur", "aws p4de", ..."""
    kind: str
    """The op without its prefix: "all_reduce"."""
    size: float
    """The bytes of the whole buffer of one rank."""
    device: Device
    cluster: Cluster
    placement: RankPlacement
    seconds: float


def measured_collectives(folder: Path) -> list[MeasuredCollective]:
    """All rows that are used."""
    return [*_aiconfigurator(folder), *_vidur(folder), *_published(folder)]


def _aiconfigurator(folder: Path) -> Iterator[MeasuredCollective]:
    table = read_frame(folder / "kernels" / "collectives.parquet")
    for row in table.itertuples():
        gpu, ranks = device(KERNELS[row.gpu]), int(row.n_gpu)
        if gpu.id == "l40s" and ranks > 2:
            continue
        machine, placement = usual_cluster(gpu), RankPlacement(ranks, 1, ranks)
        size, seconds = float(row.message_bytes), row.latency_ms * 1e-3
        yield MeasuredCollective("aiconfigurator", row.op, size, gpu, machine, placement, seconds)


_PAIRS = NodeLinks(4, LinkKind.BRIDGES, 3e11, bridged_gpus=2, pcie_bytes_per_s=3.2e10)


def _vidur(folder: Path) -> Iterator[MeasuredCollective]:
    """Vidur's A100: DGX machines, and machines of four cards joined in pairs."""
    table = read_frame(folder / "kernels" / "vidur_collectives.parquet")
    table = table[table.gpu == "a100"]
    sxm, card = device("a100-sxm-80gb"), device("a100-pcie-80gb")
    slow = NodeNetwork(NetworkKind.INFINIBAND, 100e9 / 8)
    dgx = replace(usual_cluster(sxm), id="vidur-dgx", network=slow)
    pairs = Cluster("vidur-pairs", "four A100 in pairs", _PAIRS, gpu=card.id)
    kinds = {"send_recv": "send", "all_reduce": "all_reduce"}
    table = table.assign(place=(table.message_bytes.map(math.log2) * PER_OCTAVE).round())
    keys = ["topology", "op", "n_gpu", "devices_per_node", "place"]
    for (topology, op, ranks, per_node, _), rows in table.groupby(keys):
        nodes = int(ranks // per_node)
        is_dgx = topology == "a100_dgx"
        if not is_dgx and op == "send_recv":
            continue
        machine = dgx if is_dgx else pairs
        if nodes > 1:  # nothing else used the network meanwhile
            machine = machine.with_gpus_per_node(int(per_node))
        yield MeasuredCollective(
            "vidur" if nodes == 1 else "vidur, two machines",
            kinds[op],
            float(rows.message_bytes.median()),
            sxm if is_dgx else card,
            machine,
            RankPlacement(int(ranks), nodes, int(per_node)),
            float(rows.latency_ms.median()) * 1e-3,
        )


_PLACES = {
    "EFA 400 Gb/s per node (p4de)": ("aws p4de", "aws-p4de"),
    "EFA 3200 Gb/s per node (p5)": ("aws p5", "aws-p5"),
    "EFA 3200 Gb/s per node": ("nanotron p5", "aws-p5"),
    "RoCE 16x100 Gb/s per node (BM.GPU4.8)": ("oracle", "oci-gpu4-8"),
    "InfiniBand NDR 8x400 Gb/s per node with SHARP": ("coreweave", "dgx-h100"),
    "none (one rack)": ("coreweave nvl72", "gb200-nvl72"),
    "Omni-Path 4x100 Gb/s per node": ("jean zay", "jean-zay-v100"),
}
_ALONE = {
    "aws-samples/awsome-distributed-training": "aws p5",
    "vinjn/nanotron-ultrascale-playbook": "nanotron p5",
}
"""The sources of rows of one machine."""
_LEFT_OUT = ("gpu_not_stated", "reported_as_slow")


def _published(folder: Path) -> Iterator[MeasuredCollective]:
    """Figures of cloud providers and others, mostly of several machines."""
    table = read_frame(folder / "distributed" / "collectives.csv")
    for row in table.itertuples():
        if isinstance(row.qc, str) and row.qc.startswith(_LEFT_OUT):
            continue
        gpu = device(str(row.gpu).replace("SXM2", "SXM"))
        source, place = _PLACES.get(row.interconnect_inter, (_ALONE.get(row.source, ""), ""))
        machine = cluster(place) if place else usual_cluster(gpu)
        if gpu.id.startswith("v100"):
            source, machine = "jean zay", cluster("jean-zay-v100")
        if source == "coreweave" and machine.network is not None:
            machine = replace(machine, network=replace(machine.network, sharp=True))
        placement = machine.placement(int(row.n_gpu))
        size, seconds = float(row.message_bytes), row.time_us * 1e-6
        yield MeasuredCollective(source, row.op, size, gpu, machine, placement, seconds)
