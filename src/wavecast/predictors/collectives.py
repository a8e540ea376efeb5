"""The time of collectives: NCCL's algorithms and protocols on the links of a cluster.

A collective over `n` ranks sends bytes over links in steps. NCCL has several algorithms (rings,
trees, reduction in switches) and three protocols (LL, LL128 and simple) that trade latency for
bandwidth. The time of each pair is

    launch + steps x hop + transfer + 2 sqrt(fill x transfer)

where the last term is the time to fill the pipeline of chunks when their size is the best one for
the message. The shortest time is the answer, as NCCL chooses the pair that it believes to be the
fastest.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from wavecast.errors import InvalidInput
from wavecast.files import shipped_toml
from wavecast.hardware.clusters import (
    Cluster,
    LinkKind,
    NetworkKind,
    NodeLinks,
    NodeNetwork,
    RankPlacement,
    usual_cluster,
    with_device,
)
from wavecast.hardware.devices import Device
from wavecast.predictors.base import Estimate
from wavecast.traces.step import Op

_LARGE_BYTES = float(64 << 20)
"""A message at which links run at full speed."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm: its latency, and the time of its transfers at full bandwidth."""

    name: str
    latency_s: float
    transfer_s: float
    fill_s: float
    pairs: bool = False
    """Whether ranks send in pairs. NCCL has no LL128 for these."""
    start_s: float = 0.0
    """How much longer the simple protocol takes to start than LL."""


@dataclass(frozen=True, slots=True)
class Collectives:
    """The predictor of collectives.

    >>> from wavecast.hardware.clusters import cluster
    >>> from wavecast.hardware.devices import device
    >>> from wavecast.traces.step import Op, TensorSpec
    >>> gradients = TensorSpec((2**24,), "float32")
    >>> op = Op("nccl.all_reduce", (gradients,), (gradients,), (("ranks", 8), ("stride", 1)))
    >>> h100 = device("h100-sxm-80gb")
    >>> 2e-4 < Collectives.shipped().predict(op, cluster("dgx-h100"), h100).seconds < 5e-4
    True
    """

    constants: LinkConstants

    @classmethod
    def shipped(cls) -> Collectives:
        """The predictor with the constants that were fitted to measured collectives."""
        return cls(shipped_constants())

    def predict(
        self, op: Op, cluster: Cluster, device: Device, nodes: int | None = None
    ) -> Estimate | None:
        """The time of one collective. None if it is not one, or if a fact is unknown.

        All groups of ranks are taken to do the same at the same time, so that they share the
        network of their machines.

        Args:
            op: the collective, "nccl.all_reduce" for example, as one rank calls it. Its attributes
                `ranks` and `stride` say which ranks take part.
            cluster: the machines.
            device: the GPU.
            nodes: on how many machines the ranks of this collective are. None for as few as the
                cluster allows.

        Raises:
            InvalidInput: the ranks do not fit on so few machines.
        """
        kind = op.name.removeprefix("nccl.")
        size = message_bytes(op)
        if kind == op.name or size is None:
            return None
        ranks, stride = op.attr("ranks"), op.attr("stride")
        if not isinstance(ranks, int) or ranks < 1:
            return None
        cluster = with_device(cluster, device)
        placement = _placement(cluster, ranks, stride if isinstance(stride, int) else 1, nodes)
        return self.estimate(kind, size, cluster, device, placement)

    def estimate(
        self, kind: str, size: float, cluster: Cluster, device: Device, placement: RankPlacement
    ) -> Estimate | None:
        """The time of a collective ("all_reduce") of `size` bytes among ranks placed like this."""
        path = path_of(cluster, device, placement, self.constants)
        if path is None or kind not in _ALGORITHMS:
            return None
        seconds, name = self.fastest(kind, size, path)
        factor = self._range(path)
        return Estimate(seconds, seconds / factor, seconds * factor, f"collectives: {name}")

    def ratio(self, op: Op, origin: Device, target: Device) -> float | None:
        """How much longer a collective takes among GPUs of another kind; None if it is unknown.

        Each is in its usual machine. A profile may lack the size of the message and the number of
        ranks; then the links are compared by a large message among the GPUs of one machine.
        """
        try:
            clusters = [usual_cluster(gpu) for gpu in (origin, target)]
            given = op.attr("ranks")
            ranks = given if isinstance(given, int) and given > 1 else 0
            ranks = ranks or min(gpu.gpus_per_node for gpu in clusters)
            kind = op.name.removeprefix("nccl.")
            kind = kind if kind in _ALGORITHMS else "all_reduce"
            times = [
                self.estimate(
                    kind, message_bytes(op) or _LARGE_BYTES, cluster, gpu, cluster.placement(ranks)
                )
                for cluster, gpu in zip(clusters, (origin, target), strict=True)
            ]
        except InvalidInput:
            return None
        before, after = times
        return None if before is None or after is None else after.seconds / before.seconds

    def _range(self, path: RankPath) -> float:
        """The factor within which about nine in ten real times lie."""
        if path.placement.nodes > 1:
            return self.constants.network_range
        if path.generation == "pcie":
            return self.constants.pcie_range
        if path.generation == "host":
            return self.constants.host_range
        seen = path.generation in self.constants.generations
        return self.constants.node_range if seen else self.constants.unseen_range

    def fastest(self, kind: str, size: float, path: RankPath) -> tuple[float, str]:
        """The seconds of the fastest algorithm and protocol, and their names."""
        constants = self.constants
        launch_s = constants.of("launch_s", path.generation)
        if path.placement.ranks == 1:  # NCCL copies the data, or does nothing in place
            return launch_s, "one rank"
        times = [
            time
            for algorithm in _ALGORITHMS[kind](kind, size, path, constants)
            for time in _times(algorithm, constants)
        ]
        seconds, name = min(times)
        return launch_s + seconds, name


def message_bytes(op: Op) -> float | None:
    """The size of a collective as nccl-tests count it: the whole buffer of one rank.

    It is the larger one of input and output: of an all-gather the output, of a reduce-scatter the
    input. None if the op has no tensors.
    """
    sizes = [
        sum(tensor.nbytes for tensor in tensors) for tensors in (op.inputs, op.outputs) if tensors
    ]
    return float(max(sizes)) if sizes else None


def _placement(cluster: Cluster, ranks: int, stride: int, nodes: int | None) -> RankPlacement:
    placement = cluster.placement(ranks, stride)
    if nodes is None or nodes == placement.nodes:
        return placement
    if nodes < placement.nodes or nodes > ranks:
        raise InvalidInput(
            f"{ranks} ranks, {stride} apart, do not fit on {nodes} machines of {cluster.id}; "
            f"{placement.nodes} to {ranks} are possible"
        )
    return RankPlacement(ranks, nodes, -(-ranks // nodes))


def _times(algorithm: Algorithm, constants: LinkConstants) -> Iterator[tuple[float, str]]:
    """The time with each protocol of an algorithm, without the launch."""
    latency_s, transfer_s = algorithm.latency_s, algorithm.transfer_s
    if algorithm.name != "switches":
        yield latency_s + transfer_s / constants.ll_share, f"{algorithm.name}, LL"
        if not algorithm.pairs:
            slower_s = (1 + constants.ll128_extra) * latency_s
            yield slower_s + transfer_s / constants.ll128_share, f"{algorithm.name}, LL128"
    filling_s = 2 * math.sqrt(algorithm.fill_s * transfer_s) + algorithm.start_s
    slowest_s = (1 + constants.ll128_extra + constants.simple_extra) * latency_s
    yield slowest_s + transfer_s + filling_s, f"{algorithm.name}, simple"


def _fill_s(path: RankPath, constants: LinkConstants) -> float:
    if path.placement.nodes > 1:
        return constants.network_fill_s
    return constants.of("fill_s", path.generation)


def _slower(path: RankPath, inside_bytes: float, outside_bytes: float) -> float:
    """The time of a transfer whose parts inside and between machines run at the same time."""
    return max(inside_bytes / path.bytes_per_s, outside_bytes / path.network_bytes_per_s)


def _rings(kind: str, size: float, path: RankPath, constants: LinkConstants) -> Iterator[Algorithm]:
    """A ring: the bytes of all ranks go round once, in an all-reduce twice."""
    ranks = path.placement.ranks
    rounds = 2 if kind == "all_reduce" else 1
    sent = rounds * size * (ranks - 1) / ranks
    own = constants.own_share * size / ranks
    latency_s = rounds * _round_s(path, constants)
    yield Algorithm("ring", latency_s, _slower(path, sent + own, sent), _fill_s(path, constants))


def _round_s(path: RankPath, constants: LinkConstants) -> float:
    """The time of a short message that goes from rank to rank until all have it."""
    ranks, nodes = path.placement.ranks, path.placement.nodes
    step_s = constants.network_step * path.network_hop_s
    return (ranks - nodes) * path.hop_s + (nodes - 1) * step_s


def _reductions(
    kind: str, size: float, path: RankPath, constants: LinkConstants
) -> Iterator[Algorithm]:
    """An all-reduce: rings, trees between machines, and reduction in the switches."""
    yield from _rings(kind, size, path, constants)
    placement = path.placement
    # Between two machines, each of the two trees sends half of the bytes there and back.
    outside = (
        0.0 if placement.nodes == 1 else size if path.sharp or placement.nodes == 2 else 2 * size
    )
    climb_s = 2 * math.ceil(math.log2(placement.nodes)) * path.network_hop_s
    fill_s = _fill_s(path, constants)
    inside = 2 * size * (placement.per_node - 1) / placement.per_node
    inside += constants.own_share * size / placement.per_node
    if placement.nodes > 1:
        chain_s = 2 * (placement.per_node - 1) * path.hop_s
        yield Algorithm("tree", chain_s + climb_s, _slower(path, inside, outside), fill_s)
    if path.nvls_bytes_per_s is not None:
        added_s = size * (1 + 1 / placement.per_node) / path.nvls_bytes_per_s
        transfer_s = max(added_s, outside / path.network_bytes_per_s)
        latency_s = constants.nvls_hops * path.hop_s + climb_s
        yield Algorithm("switches", latency_s, transfer_s, fill_s)


def _exchanges(
    kind: str, size: float, path: RankPath, constants: LinkConstants
) -> Iterator[Algorithm]:
    """An all-to-all: each rank sends a part to every other rank."""
    placement = path.placement
    part = size / placement.ranks
    inside = part * (placement.per_node - 1) + constants.own_share * part
    # The network's speed is that of all ranks of the machine, and each of them sends.
    outside = part * (placement.ranks - placement.per_node) * placement.per_node
    transfer_s = _slower(path, inside, outside) / constants.exchange_efficiency
    peers_s = constants.exchange_hop * (placement.ranks - 2) * path.hop_s
    latency_s = max(path.hop_s, path.network_hop_s) + peers_s
    fill_s = constants.network_fill_s if placement.nodes > 1 else constants.exchange_fill_s
    start_s = constants.exchange_start_s
    yield Algorithm("all pairs", latency_s, transfer_s, fill_s, True, start_s)


def _messages(
    kind: str, size: float, path: RankPath, constants: LinkConstants
) -> Iterator[Algorithm]:
    """One message from one rank to the next."""
    several = path.placement.nodes > 1
    hop_s = path.network_hop_s if several else path.hop_s
    speed = path.network_bytes_per_s if several else path.bytes_per_s
    speed *= constants.message_efficiency
    transfer_s = size / (speed if several else min(speed, path.nominal_bytes_per_s))
    yield Algorithm("one pair", hop_s, transfer_s, 0.0, True, constants.exchange_start_s)


def _broadcasts(
    kind: str, size: float, path: RankPath, constants: LinkConstants
) -> Iterator[Algorithm]:
    """The bytes of one rank go along a chain."""
    latency_s = _round_s(path, constants)
    yield Algorithm("ring", latency_s, _slower(path, size, size), _fill_s(path, constants))


_ALGORITHMS = {
    "all_reduce": _reductions,
    "all_gather": _rings,
    "reduce_scatter": _rings,
    "all_to_all": _exchanges,
    "broadcast": _broadcasts,
    "reduce": _broadcasts,
    "send": _messages,
    "recv": _messages,
}


# The fitted constants of collectives: latencies, efficiencies and protocols.


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


# The path of a collective: its links, their latency and their bandwidth.


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
