"""Clusters: the shipped files, the user's, names, usual machines and placements of ranks."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from wavecast.cli import app
from wavecast.errors import InvalidInput, UnknownName
from wavecast.files import shipped
from wavecast.hardware.clusters import (
    CLUSTER_FILES,
    Cluster,
    LinkKind,
    cluster,
    clusters,
    read_cluster,
    usual_cluster,
    with_device,
)
from wavecast.hardware.devices import device, devices

FILES = sorted(shipped("clusters").glob("*.toml"))
every_cluster = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)

MINIMAL = """
name = "Box"
[node]
gpus = 4
link = "pcie"
link_bytes_per_s = 3.2e10
[network]
kind = "ethernet"
bytes_per_s = 1.25e9
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's own clusters."""
    monkeypatch.setenv("WAVECAST_CLUSTERS", str(tmp_path))
    return tmp_path


@every_cluster
def test_a_shipped_cluster_has_sources_and_believable_links(path: Path) -> None:
    one = CLUSTER_FILES.shipped(path)
    assert one.id == path.stem
    assert cluster(one.id) == one
    assert cluster(one.name) == one
    assert 1 < one.gpus_per_node <= 16
    assert one.sources["node.gpus"]
    node = one.node
    if node.link in (LinkKind.NVSWITCH, LinkKind.NVLINK):
        assert one.gpu is not None
        assert node.link_bytes_per_s == device(one.gpu).nvlink_bytes_per_s or one.gpu == "mi355x"
    if one.gpu is not None and node.link is LinkKind.PCIE:
        assert node.link_bytes_per_s == device(one.gpu).pcie_bytes_per_s
    if one.network is not None:
        assert one.network.bytes_per_s <= one.gpus_per_node * 1.0e11 + 1
        assert one.network.nics >= 1
    assert not node.nvls or node.link_bytes_per_s >= 4.5e11


def test_each_gpu_has_one_usual_machine_and_each_name_one_cluster() -> None:
    usual = Counter(gpu for cluster in clusters() for gpu in cluster.usual_for)
    assert set(usual.values()) == {1}
    assert set(usual) <= {gpu.id for gpu in devices()}
    for one in clusters():
        assert [cluster(alias).id for alias in one.aliases] == [one.id] * len(one.aliases)


def test_the_clusters_that_the_documents_promise_are_there() -> None:
    wanted = (
        *("dgx-1v", "dgx-2", "dgx-a100", "dgx-h100", "dgx-b200", "hgx-h200", "pcie-4", "pcie-8"),
        *("gb200-nvl72", "aws-p4d", "aws-p5", "aws-p6-b200", "azure-nd-a100-v4"),
        *("azure-nd-h100-v5", "gcp-a3-high", "lambda-pcie", "lambda-bridges"),
        *("tbd-ethernet", "tbd-infiniband"),
    )
    assert set(wanted) <= {cluster.id for cluster in clusters()}


@pytest.mark.parametrize(
    ("gpu", "name", "speed", "peer_to_peer"),
    [
        ("h100-sxm-80gb", "dgx-h100", 4.5e11, True),
        ("h800-sxm-80gb", "dgx-h100", 2e11, True),
        ("a100-sxm-40gb", "dgx-a100", 3e11, True),
        ("a100-pcie-40gb", "pcie-8", 3.2e10, True),
        ("l40s", "pcie-8", 3.2e10, True),
        ("rtx-4090", "pcie-4", 3.2e10, False),
        ("rtx-a6000", "pcie-4", 3.2e10, True),
        ("rtx-6000-ada", "pcie-4", 3.2e10, True),
        ("gtx-1080-ti", "pcie-4", 1.6e10, True),
        ("gb200", "gb200-nvl72", 9e11, True),
    ],
)
def test_the_usual_machine_of_a_gpu(gpu: str, name: str, speed: float, peer_to_peer: bool) -> None:
    usual = usual_cluster(device(gpu))
    assert (usual.id, usual.gpu) == (name, gpu)
    assert usual.node.link_bytes_per_s == speed
    assert usual.node.peer_to_peer is peer_to_peer


def test_every_gpu_has_a_usual_machine_or_an_error_that_says_what_to_do() -> None:
    for gpu in devices():
        if gpu.pcie_bytes_per_s is None and all(
            gpu.id not in cluster.usual_for for cluster in clusters()
        ):
            with pytest.raises(InvalidInput, match='list them with "wavecast clusters"'):
                usual_cluster(gpu)
        else:
            assert usual_cluster(gpu).gpu == gpu.id


def test_another_number_of_cards_in_the_usual_machine() -> None:
    assert usual_cluster(device("rtx-4090"), 2).gpus_per_node == 2
    assert usual_cluster(device("rtx-4090"), 8).id == "pcie-8"
    with pytest.raises(InvalidInput, match="dgx-h100 has 8, so 1 to 8 can be used"):
        usual_cluster(device("h100-sxm-80gb"), 9)


def test_a_box_for_any_card_takes_the_links_of_its_card() -> None:
    bridges = with_device(cluster("lambda-bridges"), device("quadro-rtx-8000"))
    assert (bridges.node.link_bytes_per_s, bridges.node.pcie_bytes_per_s) == (5e10, 1.6e10)
    with pytest.raises(InvalidInput, match="l40s is not known to take"):
        with_device(cluster("lambda-bridges"), device("l40s"))
    named = cluster("dgx-h100")
    assert with_device(named, device("l40s")) is named


def test_cards_reach_each_other_only_if_box_and_driver_allow_it() -> None:
    def reach(box: str, card: str) -> bool:
        return with_device(cluster(box), device(card)).node.peer_to_peer

    assert reach("pcie-8", "l40s")
    assert not reach("pcie-8", "rtx-4090")
    assert not reach("pcie-vm", "l40s")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dgx-h10", 'unknown cluster "dgx-h10"; did you mean "dgx-h100"'),
        ("none.toml", "give a path to a .toml file that exists"),
    ],
)
def test_an_unknown_name_gets_the_nearest(name: str, message: str) -> None:
    with pytest.raises(UnknownName, match=message.replace("(", "\\(")):
        cluster(name)


@pytest.mark.parametrize(
    ("ranks", "stride", "nodes", "per_node"),
    [
        *((8, 1, 1, 8), (16, 1, 2, 8), (2, 1, 1, 2), (4, 2, 1, 4), (8, 2, 2, 4), (4, 8, 4, 1)),
        *((3, 16, 3, 1), (1, 1, 1, 1), (12, 1, 2, 8)),
    ],
)
def test_on_how_many_machines_a_group_lies(
    ranks: int, stride: int, nodes: int, per_node: int
) -> None:
    placement = cluster("dgx-h100").placement(ranks, stride)
    assert (placement.nodes, placement.per_node) == (nodes, per_node)


def test_a_rack_with_one_nvlink_network_counts_as_one_machine() -> None:
    rack = cluster("nvl72")
    assert rack.placement(72).nodes == 1
    assert rack.placement(144).nodes == 2


def test_the_users_files_come_first(folder: Path) -> None:
    (folder / "my-box.toml").write_text(MINIMAL)
    (folder / "dgx-h100.toml").write_text(MINIMAL.replace("Box", "Other"))
    assert cluster("my-box").gpus_per_node == 4
    assert cluster("dgx-h100").name == "Other"
    assert cluster(str(folder / "my-box.toml")).id == "my-box"
    assert "my-box" in {cluster.id for cluster in clusters()}


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("gpus = 4", "gpu = 4", 'node.gpu is not a key of a cluster; did you mean "gpus"'),
        ("gpus = 4", "", "node.gpus is missing"),
        ('"pcie"', '"token ring"', "it is one of nvswitch, nvlink, bridges, pcie"),
        ("3.2e10", "256", "the unit is bytes/s"),
        ('"pcie"', '"bridges"', "node.bridged_gpus .2 for pairs. and node.pcie_bytes_per_s"),
        ("gpus = 4", "gpus = 4\nnvls = true", "only NVSwitches can reduce"),
        ("gpus = 4", "gpus = 4\nbridged_gpus = 2", "only for bridges"),
        ("bytes_per_s = 1.25e9", "", "network.bytes_per_s is missing"),
        ('name = "Box"', "", "name is missing"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    path = tmp_path / "box.toml"
    path.write_text(MINIMAL.replace(before, after, 1))
    with pytest.raises(InvalidInput, match=message):
        read_cluster(path)


def test_clusters_that_differ_in_a_link_are_unequal_and_can_be_hashed() -> None:
    one = cluster("dgx-h100")
    other = replace(one, node=replace(one.node, gpus=4))
    assert len({one, other}) == 2
    assert isinstance(one, Cluster)
    assert str(one) == one.name


def test_the_command_lists_clusters_and_shows_facts() -> None:
    run = CliRunner().invoke(app, ["clusters"])
    assert run.exit_code == 0
    assert "aws-p5" in run.output
    assert "Speeds are for one direction" in run.output
    run = CliRunner().invoke(app, ["clusters", "p5"])
    assert "AWS EC2 P5 instances page" in run.output
    run = CliRunner().invoke(app, ["clusters", "p5", "tbd-ethernet", "--json"])
    first, second = json.loads(run.output)
    assert first["network"]["bytes_per_s"]["value"] == 4e11
    assert second["node"]["link"]["value"] == "pcie"
    assert CliRunner().invoke(app, ["clusters", "nowhere"]).exit_code == 1
