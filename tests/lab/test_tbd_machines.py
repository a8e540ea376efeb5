"""TBD's observation 12, and the shapes of its figure 9, in predictions of its machines."""

from __future__ import annotations

import pytest

from lab.score.tbd_machines import BATCHES, CONFIGURATIONS, configured

every_batch = pytest.mark.parametrize("batch", BATCHES)


@pytest.mark.slow
@every_batch
def test_two_machines_over_slow_ethernet_are_slower_than_one_gpu(batch: int) -> None:
    assert configured("2M1G, Ethernet", batch).throughput < configured("1M1G", batch).throughput


@every_batch
def test_pcie_and_infiniband_scale_well(batch: int) -> None:
    alone = configured("1M1G", batch).throughput
    for name, gpus in (("2M1G, InfiniBand", 2), ("1M2G", 2), ("1M4G", 4)):
        assert configured(name, batch).throughput > 0.85 * gpus * alone
    pair = [configured(name, batch).throughput for name in ("2M1G, InfiniBand", "1M2G")]
    assert pair[0] == pytest.approx(pair[1], rel=0.05)


@every_batch
def test_the_configurations_are_in_the_order_of_the_figure(batch: int) -> None:
    order = ("2M1G, Ethernet", "1M1G", "2M1G, InfiniBand", "1M4G")
    speeds = [configured(name, batch).throughput for name in order]
    assert speeds == sorted(speeds)


def test_larger_batches_are_faster_and_hide_more_of_the_network() -> None:
    for name in CONFIGURATIONS:
        steps = [configured(name, batch) for batch in BATCHES]
        assert sorted(step.throughput for step in steps) == [step.throughput for step in steps]
    slow = [configured("2M1G, Ethernet", batch).efficiency for batch in BATCHES]
    assert slow == sorted(slow)


def test_with_enough_bandwidth_a_gpu_works_and_needs_memory_as_one_alone() -> None:
    alone, many = configured("1M1G", 32), configured("1M4G", 32)
    assert many.efficiency > 0.9
    assert many.memory_bytes < 1.05 * alone.memory_bytes
