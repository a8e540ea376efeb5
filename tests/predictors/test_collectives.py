"""Collectives: laws that hold for all of them, and measured times."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from over_all import over

from wavecast.errors import InvalidInput
from wavecast.hardware.clusters import Cluster, cluster, clusters, usual_cluster
from wavecast.hardware.devices import device, devices
from wavecast.predictors.base import Estimate
from wavecast.predictors.collectives import Collectives, message_bytes
from wavecast.traces.step import Op, TensorSpec

MODEL = Collectives.shipped()
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send", "recv")
SIZES = [0, 1, *(4**power for power in range(1, 18))]
RANKS = (2, 3, 4, 8, 16, 64, 1024)
H100 = device("h100-sxm-80gb")
every_kind = over("kind", KINDS)
every_cluster = over("name", [place.id for place in clusters()])


def op_of(kind: str, size: int, ranks: int, stride: int = 1) -> Op:
    """A collective whose whole buffer has `size` bytes, as one rank calls it."""
    whole = TensorSpec((size,), "uint8")
    part = TensorSpec((size // ranks,), "uint8")
    source = part if kind == "all_gather" else whole
    result = part if kind == "reduce_scatter" else whole
    attrs = (("ranks", ranks), ("stride", stride))
    return Op(f"nccl.{kind}", (source,), (result,), attrs)


def predicted(
    kind: str, size: int, ranks: int, place: Cluster, gpu: str = "h100-sxm-80gb", **more: int
) -> Estimate:
    answer = MODEL.predict(op_of(kind, size, ranks, **more), place, device(gpu))
    assert answer is not None
    return answer


@every_kind
@every_cluster
def test_times_are_positive_in_their_range_and_grow_with_the_message(kind: str, name: str) -> None:
    place = cluster(name)
    gpu = device(place.gpu or "rtx-a6000")
    for ranks in RANKS:
        answers = [MODEL.predict(op_of(kind, size, ranks), place, gpu) for size in SIZES]
        if place.network is None and ranks > place.domain_gpus:
            assert answers == [None] * len(SIZES)
            continue
        for answer in answers:
            assert answer is not None
            assert 0 < answer.low_s <= answer.seconds <= answer.high_s < math.inf
        seconds = [answer.seconds for answer in answers if answer is not None]
        assert seconds == sorted(seconds)


def test_faster_links_are_faster_and_a_network_is_slower_than_a_machine() -> None:
    size = 1 << 28
    times = {
        name: predicted("all_reduce", size, 8, cluster(name), gpu).seconds
        for name, gpu in (
            ("dgx-b200", "b200-sxm"),
            ("dgx-h100", "h100-sxm-80gb"),
            ("dgx-a100", "a100-sxm-80gb"),
            ("dgx-1v", "v100-sxm-32gb"),
            ("pcie-8", "a100-pcie-80gb"),
        )
    }
    assert list(times.values()) == sorted(times.values())
    place = cluster("aws-p4d")
    machine, two = (predicted("all_reduce", size, n, place, "a100-sxm-40gb") for n in (8, 16))
    assert two.seconds > 3 * machine.seconds


def test_bridges_are_told_apart_from_pcie_and_the_host_from_peers() -> None:
    size = 1 << 26
    bridged, plain = cluster("lambda-bridges"), cluster("lambda-pcie")
    pair = [predicted("all_reduce", size, 2, place, "rtx-a6000") for place in (bridged, plain)]
    assert pair[1].seconds > 1.3 * pair[0].seconds
    four = [predicted("all_reduce", size, 4, place, "rtx-a6000") for place in (bridged, plain)]
    assert four[0].seconds == four[1].seconds
    peers = predicted("all_reduce", size, 2, usual_cluster(device("rtx-6000-ada")), "rtx-6000-ada")
    host = predicted("all_reduce", size, 2, usual_cluster(device("rtx-4090")), "rtx-4090")
    assert host.seconds > 2 * peers.seconds


def attained(place: Cluster, gpu: str, ranks: int) -> float:
    """The bytes per second of one hop of a ring, for a long message."""
    size = 1 << 30
    seconds = predicted("all_reduce", size, ranks, place, gpu).seconds
    return 2 * (ranks - 1) / ranks * size / seconds


def test_each_generation_of_pcie_is_twice_as_fast() -> None:
    cards = ("gtx-1080-ti", "a100-pcie-80gb", "h100-pcie-80gb")
    nominal = [device(card).pcie_bytes_per_s or 0.0 for card in cards]
    assert nominal == [1.6e10, 3.2e10, 6.4e10]
    box = replace(cluster("pcie-8"), node=replace(cluster("pcie-8").node, sockets=1))
    speeds = [attained(box, card, 4) for card in cards]
    assert speeds[1] / speeds[0] == pytest.approx(2, rel=0.05)
    assert speeds[2] / speeds[1] == pytest.approx(2, rel=0.05)
    assert all(0.5 < speed / fast < 0.9 for speed, fast in zip(speeds, nominal, strict=True))


def test_hops_through_the_hosts_memory_share_it() -> None:
    machine = cluster("pcie-vm")
    speeds = [attained(machine, "a100-pcie-80gb", ranks) for ranks in (2, 4, 8)]
    assert speeds[0] > 1.5 * speeds[1] > 2 * speeds[2]
    # A bridge takes every second hop of a ring of four off the host.
    bridged = replace(
        cluster("lambda-bridges"), node=replace(cluster("lambda-bridges").node, peer_to_peer=False)
    )
    ways = [attained(place, "rtx-a6000", 4) for place in (machine, bridged)]
    assert ways[1] > 1.5 * ways[0]
    wide = replace(machine, node=replace(machine.node, host_bytes_per_s=1e12))
    assert attained(wide, "a100-pcie-80gb", 8) > 3 * speeds[2]


def test_a_ring_across_two_processors_is_slower_than_one_on_a_single_processor() -> None:
    two = cluster("pcie-8")
    single = replace(two, node=replace(two.node, sockets=1))
    assert attained(two, "l40s", 4) == attained(single, "l40s", 4)
    assert attained(two, "l40s", 8) < 0.6 * attained(single, "l40s", 8)
    assert attained(two, "l40s", 8) > attained(cluster("pcie-vm"), "l40s", 8)


def test_ethernet_is_limited_by_frames_and_then_by_the_processor() -> None:
    box = cluster("tbd-ethernet")
    assert box.network is not None
    speeds = {}
    for gigabits in (1, 10, 25, 100):
        network = replace(box.network, bytes_per_s=gigabits * 1.25e8)
        place = replace(box.with_gpus_per_node(1), network=network)
        speeds[gigabits] = attained(place, "quadro-p4000", 2) / (gigabits * 1.25e8)
    assert 0.85 < speeds[1] <= 0.94
    assert list(speeds.values()) == sorted(speeds.values(), reverse=True)
    assert speeds[100] < 0.3


def test_ranges_are_widest_where_nobody_measured() -> None:
    def factor(place: Cluster, gpu: str) -> float:
        answer = predicted("all_reduce", 1 << 24, 2, place, gpu)
        return answer.high_s / answer.seconds

    boards = factor(cluster("dgx-h100"), "h100-sxm-80gb")
    peers, host = factor(cluster("pcie-8"), "l40s"), factor(cluster("pcie-vm"), "l40s")
    assert 1 < boards < peers < host


def test_switches_that_add_up_serve_all_reduces_only() -> None:
    place = cluster("dgx-h100")
    without = replace(place, node=replace(place.node, nvls=False))
    for kind, helps in (("all_reduce", True), ("all_gather", False)):
        times = [predicted(kind, 1 << 30, 8, switched).seconds for switched in (place, without)]
        assert (times[0] < times[1]) is helps
    assert "switches" in predicted("all_reduce", 1 << 30, 8, place).source


def test_groups_that_lie_across_machines_share_the_network() -> None:
    place = cluster("dgx-h100")
    across = predicted("all_reduce", 1 << 28, 2, place, stride=8).seconds
    inside = predicted("all_reduce", 1 << 28, 2, place, stride=1).seconds
    assert across > 3 * inside
    # One GPU alone has its own adapter; with one adapter for all, eight groups share it.
    assert place.network is not None
    single = replace(place, network=replace(place.network, bytes_per_s=5e10, nics=1))
    assert predicted("all_reduce", 1 << 28, 2, single, stride=8).seconds > 6 * across


def test_a_rack_with_one_nvlink_network_needs_no_other() -> None:
    rack = cluster("gb200-nvl72")
    inside = predicted("send", 1 << 30, 2, rack, "gb200", stride=4).seconds
    outside = predicted("send", 1 << 30, 2, rack, "gb200", stride=72).seconds
    assert outside > 5 * inside


def test_the_number_of_machines_can_be_given() -> None:
    place = cluster("dgx-h100")
    op = op_of("all_reduce", 1 << 26, 8)
    single, two = (MODEL.predict(op, place, H100, nodes=nodes) for nodes in (1, 2))
    assert single is not None
    assert two is not None
    assert two.seconds > single.seconds
    with pytest.raises(InvalidInput, match="16 ranks, 1 apart, do not fit on 1 machines"):
        MODEL.predict(op_of("all_reduce", 1 << 26, 16), place, H100, nodes=1)


def test_what_is_no_collective_has_no_answer() -> None:
    place, tensor = cluster("dgx-h100"), TensorSpec((8,), "float32")
    attrs = (("ranks", 8), ("stride", 1))
    assert MODEL.predict(Op("aten.mm", (tensor,), (tensor,), attrs), place, H100) is None
    assert MODEL.predict(Op("nccl.gossip", (tensor,), (tensor,), attrs), place, H100) is None
    assert MODEL.predict(Op("nccl.all_reduce", (), (), attrs), place, H100) is None
    assert MODEL.predict(Op("nccl.all_reduce", (tensor,), (tensor,)), place, H100) is None
    alone = replace(place, network=None)
    assert MODEL.predict(op_of("all_reduce", 1 << 20, 16), alone, H100) is None


def test_the_size_is_that_of_the_whole_buffer() -> None:
    for kind in KINDS:
        assert message_bytes(op_of(kind, 4096, 8)) == 4096


def test_no_message_is_faster_than_its_link() -> None:
    size = 1 << 34
    for place in clusters():
        gpu = device(place.gpu or "rtx-a6000")
        answer = MODEL.predict(op_of("send", size, 2), place, gpu)
        assert answer is not None
        assert size / answer.seconds <= usual_speed(place)


def usual_speed(place: Cluster) -> float:
    """The nominal speed between two neighbours of a cluster."""
    return min(place.node.peer_bytes_per_s or math.inf, place.node.link_bytes_per_s)


def test_one_rank_sends_nothing() -> None:
    place = cluster("dgx-h100")
    times = {predicted("all_reduce", size, 1, place).seconds for size in (1 << 10, 1 << 30)}
    assert len(times) == 1


MEASURED_US = [
    # NCCL 2.27 and 2.29, nccl-tests, fp16: ai-dynamo/aiconfigurator, commit 095f58a5.
    ("dgx-a100", "a100-sxm-80gb", "all_reduce", 8, 512, 22.6),
    ("dgx-a100", "a100-sxm-80gb", "all_reduce", 8, 1 << 29, 4225.9),
    ("dgx-a100", "a100-sxm-80gb", "all_gather", 2, 1 << 29, 1789.8),
    ("dgx-h100", "h100-sxm-80gb", "all_reduce", 8, 1 << 29, 2111.1),
    ("dgx-h100", "h100-sxm-80gb", "all_to_all", 4, 1 << 29, 1397.0),
    ("dgx-h100", "h100-sxm-80gb", "reduce_scatter", 4, 1 << 16, 8.2),
    ("dgx-b200", "b200-sxm", "all_reduce", 8, 1 << 29, 1334.6),
    # Two machines: aws-samples/awsome-distributed-training and oracle-quickstart/oci-hpc-oke.
    ("aws-p4de", "a100-sxm-80gb", "all_reduce", 16, 1024, 165.0),
    ("aws-p4de", "a100-sxm-80gb", "all_reduce", 16, 1 << 30, 26217.0),
    ("oci-gpu4-8", "a100-sxm-40gb", "all_reduce", 16, 1 << 33, 67689.0),
    # A rack of 72: coreweave/nccl-tests.
    ("gb200-nvl72", "gb200", "all_reduce", 72, 1 << 33, 20299.0),
]


@pytest.mark.parametrize(("name", "gpu", "kind", "ranks", "size", "measured"), MEASURED_US)
def test_measured_collectives_are_met(
    name: str, gpu: str, kind: str, ranks: int, size: int, measured: float
) -> None:
    seconds = predicted(kind, size, ranks, cluster(name), gpu).seconds
    assert seconds == pytest.approx(measured * 1e-6, rel=0.25)


def test_every_gpu_with_known_links_gets_an_answer() -> None:
    for gpu, kind in itertools.product(devices(), ("all_reduce", "all_to_all")):
        try:
            place = usual_cluster(gpu)
        except InvalidInput:
            continue
        for ranks in (2, 8, 64):
            answer = MODEL.predict(op_of(kind, 1 << 26, ranks), place, gpu)
            assert answer is not None
            assert 1e-6 < answer.seconds < 60
