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

import math
from collections.abc import Iterator
from dataclasses import dataclass

from wavecast.errors import InvalidInput
from wavecast.hardware.cluster import Cluster, RankPlacement
from wavecast.hardware.clusters import usual_cluster, with_device
from wavecast.hardware.device import Device
from wavecast.predictors.base import Estimate
from wavecast.predictors.collectives.constants import LinkConstants, shipped_constants
from wavecast.predictors.collectives.paths import RankPath, path_of
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
            clusters = [usual_cluster(one) for one in (origin, target)]
            given = op.attr("ranks")
            ranks = given if isinstance(given, int) and given > 1 else 0
            ranks = ranks or min(one.gpus_per_node for one in clusters)
            kind = op.name.removeprefix("nccl.")
            kind = kind if kind in _ALGORITHMS else "all_reduce"
            times = [
                self.estimate(
                    kind, message_bytes(op) or _LARGE_BYTES, cluster, one, cluster.placement(ranks)
                )
                for cluster, one in zip(clusters, (origin, target), strict=True)
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
