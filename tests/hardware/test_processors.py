"""Hosts of clusters: which processor, how fast, and when it counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from wavecast.errors import UnknownName
from wavecast.hardware.clusters import cluster, clusters
from wavecast.hardware.devices import device
from wavecast.hardware.hosts import (
    REFERENCE_HOST,
    host_of,
    processors,
    reference_processor,
    usual_hosts,
)
from wavecast.hardware.kept_hosts import find_host


@pytest.fixture(autouse=True)
def no_own_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("WAVECAST_HOST", raising=False)


def test_the_processor_of_every_shipped_cluster_is_known() -> None:
    stated = [cluster.node.processor for cluster in clusters() if cluster.node.processor]
    assert len(stated) >= 10
    assert set(stated) <= set(processors())


def test_an_older_processor_issues_more_slowly() -> None:
    first = host_of(cluster("dgx-1v"))
    second = host_of(cluster("dgx-a100"))
    newest = host_of(cluster("dgx-b200"))
    assert first.forward_s > second.forward_s > newest.forward_s == REFERENCE_HOST.forward_s


def test_all_costs_are_scaled_by_clock_times_work_per_clock() -> None:
    rome, own = processors()["AMD EPYC 7742"], reference_processor()
    factor = own.boost_hz * own.work_per_clock / (rome.boost_hz * rome.work_per_clock)
    host = host_of(cluster("dgx-a100"))
    assert host.step_s == pytest.approx(factor * REFERENCE_HOST.step_s)
    assert "AMD EPYC 7742" in host.name
    assert f"x{factor:.2f}" in host.name


@pytest.mark.parametrize("processor", [None, "a processor that nobody knows"])
def test_without_a_known_processor_it_is_the_reference_host(processor: str | None) -> None:
    box = cluster("dgx-a100")
    assert host_of(replace(box, node=replace(box.node, processor=processor))) is REFERENCE_HOST


def test_a_host_that_was_asked_for_is_not_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    a100, box = device("a100-sxm-80gb"), cluster("dgx-a100")
    assert find_host(None, a100, box) == host_of(box)
    assert find_host("reference", a100, box) is REFERENCE_HOST
    assert find_host(REFERENCE_HOST, a100, box) is REFERENCE_HOST
    monkeypatch.setenv("WAVECAST_HOST", "reference")
    assert find_host(None, a100, box) is REFERENCE_HOST


def test_usual_hosts_are_found_by_name_and_scaled_by_the_speed_of_a_thread() -> None:
    hosts = usual_hosts()
    assert list(hosts.values()) == sorted(hosts.values(), key=lambda usual: usual.factor)
    assert hosts["cloud-vm"].factor == pytest.approx(1)
    assert hosts["desktop"].factor < hosts["dgx-h100"].factor < hosts["dgx-a100"].factor
    found = find_host("dgx-a100")
    assert found.forward_s == pytest.approx(REFERENCE_HOST.forward_s * hosts["dgx-a100"].factor)
    assert "EPYC 7742" in found.name
    assert not found.known
    assert "scaled to the speed of one thread; it keeps 100% of its highest clock" in found.source
    assert "(assumed" in find_host("desktop").source
    with pytest.raises(UnknownName, match="workstation"):
        find_host("no-such-host")
