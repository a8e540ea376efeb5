"""Hosts: found by name, read from a file, and calibrated from benchmark times."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import call, mm, relu, trace

import wavecast
from wavecast import Host, ops, predict
from wavecast.errors import InvalidInput, UnknownName
from wavecast.hardware import kept_hosts as host_files
from wavecast.hardware import kept_hosts as kept
from wavecast.hardware.clusters import cluster, clusters
from wavecast.hardware.devices import device
from wavecast.hardware.hosts import (
    COMPILED,
    COSTS,
    MEASURED_BLOCKS,
    RECOMPUTED,
    REFERENCE_HOST,
    demands,
    host_of,
    processors,
    reference_processor,
    usual_hosts,
)
from wavecast.hardware.kept_hosts import (
    HostFile,
    calibrated,
    factor_of,
    find_host,
    kept_hosts,
    path_of,
    read_host,
    reference_times,
    save,
)
from wavecast.steps.ranges import host_factors
from wavecast.traces.step import Call, Op, Phase, TensorSpec

DIRECT = {"launch_s": 4e-6, "sync_s": 5e-6, "graph_s": 9e-6, "node_s": 1e-7}
MEASURED_ON_CPU = set(reference_times()["cpu"])


def made(
    times: Mapping[str, Mapping[str, float]], direct: Mapping[str, float] | None = None
) -> HostFile:
    return calibrated("my machine", times, direct or {}, software="torch 1", source="a test")


def scaled(sort: str, factor: float) -> dict[str, float]:
    return {name: seconds * factor for name, seconds in reference_times()[sort].items()}


def costs_of(host: Host) -> dict[str, float]:
    return {cost: getattr(host, cost) for cost in COSTS}


@pytest.mark.parametrize("benchmark", ["cpu", "cuda"])
def test_the_reference_machine_has_the_costs_of_the_reference_host(benchmark: str) -> None:
    host_file = made({benchmark: reference_times()[benchmark]})
    assert host_file.costs == pytest.approx(costs_of(REFERENCE_HOST))
    assert host_file.factor == pytest.approx(1)


@given(st.floats(0.1, 10))
def test_a_machine_that_takes_twice_as_long_for_everything_issues_twice_as_long(
    factor: float,
) -> None:
    host_file = made({"cpu": scaled("cpu", factor)})
    ops = [call(mm()), call(relu(4))]
    wanted = REFERENCE_HOST.issue_times(ops) * factor
    assert host_file.host.issue_times(ops) == pytest.approx(wanted)
    assert host_file.factor == pytest.approx(factor)


def test_a_disturbed_pattern_counts_for_little() -> None:
    """Two patterns take ten times as long, as when another process disturbs them."""
    times = {benchmark: dict(seconds) for benchmark, seconds in reference_times().items()}
    for name in ("step_s", "kernel_s"):
        times["cuda"][name] *= 10
    assert made(times).factor == pytest.approx(1.0, rel=0.01)


def test_patterns_of_python_alone_do_not_count() -> None:
    python = ("view_s", "module_s")
    times = {
        name: seconds * (100 if name in python else 1.5)
        for name, seconds in reference_times()["cuda"].items()
    }
    assert factor_of(times, reference_times()["cuda"]) == pytest.approx(1.5)
    with pytest.raises(InvalidInput, match="not times of the host benchmark"):
        factor_of({name: times[name] for name in python}, reference_times()["cuda"])


def test_what_only_a_gpu_shows_is_left_as_it_is_without_one() -> None:
    costs = made({"cpu": scaled("cpu", 3.0)}).costs
    for cost in DIRECT:
        assert costs[cost] == getattr(REFERENCE_HOST, cost)


def test_with_a_gpu_its_own_times_count_and_not_those_of_the_cpu() -> None:
    host_file = made({"cpu": scaled("cpu", 9.0), "cuda": scaled("cuda", 2.0)}, DIRECT)
    assert host_file.costs["convolution_s"] == pytest.approx(2 * REFERENCE_HOST.convolution_s)
    assert {cost: host_file.costs[cost] for cost in DIRECT} == DIRECT


def test_times_that_are_none_are_refused() -> None:
    for times in ({}, {"forward_s": 0.0}):
        with pytest.raises(InvalidInput, match="not times of the host benchmark"):
            made({"cpu": times})


def test_the_reference_has_a_time_for_each_cost_that_is_not_measured_directly() -> None:
    assert set(reference_times()["cuda"]) == set(COSTS) - set(DIRECT)
    assert set(COSTS) - MEASURED_ON_CPU == {*DIRECT, "convolution_s", "kernel_s"}


# Files.


def test_a_host_survives_its_file(tmp_path: Path) -> None:
    host_file = made({"cpu": scaled("cpu", 1.25)})
    path = tmp_path / "new" / "host.toml"
    save(host_file, path)
    again = read_host(path)
    assert again.host.name == f"my machine, calibrated {date.today().isoformat()}"
    assert again.host.known
    assert again.costs == pytest.approx(host_file.costs, rel=1e-3)
    assert again.times["cpu"] == pytest.approx(host_file.times["cpu"], rel=1e-3)
    assert (again.software, again.source) == ("torch 1", "a test")
    assert [file.name for file in path.parent.iterdir()] == ["host.toml"]


def test_a_host_that_could_not_be_read_again_is_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "host.toml"
    save(made({"cpu": scaled("cpu", 1.0)}), path)
    before = path.read_text()
    with pytest.raises(InvalidInput, match="outside 0 to 1"):
        save(made({"cpu": scaled("cpu", 1e9)}), path)
    assert path.read_text() == before
    assert [file.name for file in tmp_path.iterdir()] == ["host.toml"]


@pytest.mark.parametrize(
    ("line", "instead", "why"),
    [
        ("forward_s", "", "costs has no forward_s"),
        ("forward_s", "forward_s = 9.0", r"costs\.forward_s = 9\.0 is outside 0 to 1: .* seconds"),
        ("forward_s", 'forward_s = "9 us"', "costs.forward_s must be a number, not '9 us'"),
        ("forward_s", "forward_s = nan", "is outside 0 to 1"),
        ("forward_s", "forwards_s = 9e-6", "costs.forwards_s is not a cost; known are forward_s"),
        ("name", "", "name is missing"),
        ("date", 'date = "today"', "date must be a date"),
        ("date", "day = 2026-01-01", "day is not a key of a host"),
        ("[costs]", "[cost]", "cost is not a key of a host"),
        ("software", "software = ", "is not TOML"),
    ],
)
def test_a_file_that_is_no_host_is_refused(
    tmp_path: Path, line: str, instead: str, why: str
) -> None:
    lines = host_files.to_toml(made({"cpu": scaled("cpu", 1.0)})).splitlines()
    first = next(i for i, text in enumerate(lines) if text.startswith(line))
    path = tmp_path / "host.toml"
    path.write_text("\n".join([*lines[:first], instead, *lines[first + 1 :]]))
    with pytest.raises(InvalidInput, match=f"host.toml: .*{why}"):
        read_host(path)


# Names.


HERE = "this-machine"
T4, L4 = wavecast.device("t4"), wavecast.device("l4")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(kept, "machine_name", lambda: HERE)


def keep(name: str, factor: float = 2.0, **fields: Any) -> Path:
    """Keep a host under a name, calibrated on this machine with a T4."""
    where = {"gpu": "Tesla T4", "machine": HERE} | fields
    path = path_of(name)
    save(replace(made({"cpu": scaled("cpu", factor)}), name=name, **where), path)
    return path


@pytest.fixture
def mine() -> Path:
    return keep("my-machine")


def test_without_a_calibration_the_reference_host_issues() -> None:
    assert find_host(None, T4) is REFERENCE_HOST
    with pytest.raises(UnknownName, match='not calibrated yet: run "wavecast calibrate"'):
        find_host("mine")


def test_a_calibrated_host_issues_to_its_own_gpu_and_to_others_when_asked(mine: Path) -> None:
    own = find_host(None, T4)
    assert own.name.startswith("my-machine, calibrated ")
    assert own == find_host("mine") == find_host("my-machine") == find_host(str(mine))
    assert find_host(None, L4) is find_host(None) is REFERENCE_HOST
    assert find_host("mine", L4) == find_host("my-machine", L4) == own
    assert find_host("reference", T4) is REFERENCE_HOST


def test_a_host_without_a_gpu_issues_only_when_asked() -> None:
    keep("laptop", gpu="")
    assert find_host(None, T4) is REFERENCE_HOST
    assert find_host("laptop", T4) == find_host("mine", T4) != REFERENCE_HOST


def test_a_gpu_that_is_not_known_does_not_disturb() -> None:
    keep("strange", gpu="ZX 81")
    assert find_host(None, T4) is REFERENCE_HOST
    assert find_host("strange").name.startswith("strange")


def test_of_several_hosts_with_a_gpu_this_machines_is_taken_and_then_the_last() -> None:
    keep("older", machine="away", factor=2.0)
    path = path_of("older")
    path.write_text(re.sub("date = .*", "date = 2025-01-01", path.read_text()))
    keep("newer", machine="away", factor=3.0)
    assert find_host(None, T4).name.startswith("newer")
    keep("here", factor=4.0)
    path = path_of("here")
    path.write_text(re.sub("date = .*", "date = 2024-01-01", path.read_text()))
    assert find_host(None, T4).name.startswith("here")
    assert find_host("mine").name.startswith("here")
    assert find_host("older").name.startswith("older")
    assert [host.name for host in kept_hosts()] == ["here", "newer", "older"]


def test_hosts_of_other_machines_are_not_mine() -> None:
    keep("server", machine="away")
    with pytest.raises(UnknownName, match="calibrate --list"):
        find_host("mine")


def test_the_file_of_an_earlier_version_is_still_mine() -> None:
    source = "wavecast calibrate, with Tesla T4"
    save(replace(made({"cpu": scaled("cpu", 2.0)}), source=source), kept.user_file())
    assert read_host(kept.user_file()).gpu == "Tesla T4"
    assert find_host(None, T4) == find_host("mine") != REFERENCE_HOST
    assert find_host(None, L4) is REFERENCE_HOST
    assert [host.name for host in kept_hosts()] == ["mine"]
    keep("new", factor=3.0)
    assert find_host("mine").name.startswith("new")
    assert find_host(None, T4).name.startswith("new")


def test_the_environment_may_name_the_host(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAVECAST_HOST", "reference")
    assert find_host(None, T4) is REFERENCE_HOST
    assert find_host("mine") != REFERENCE_HOST
    monkeypatch.setenv("WAVECAST_HOST", "my-machine")
    assert find_host(None, L4) == find_host("mine")
    monkeypatch.setenv("WAVECAST_HOST", "yours")
    with pytest.raises(UnknownName, match=r'unknown host "yours".* "my-machine" and files'):
        find_host(None, T4)
    monkeypatch.setenv("WAVECAST_HOST", "")
    assert find_host(None, T4) == find_host("mine")


def test_a_new_calibration_is_seen_at_once(mine: Path) -> None:
    before = find_host(None, T4)
    keep("my-machine", 4.0)
    os.utime(mine, ns=(0, 1))
    assert find_host(None, T4).forward_s == pytest.approx(2 * before.forward_s)


@pytest.mark.parametrize("name", ["mine", "reference", "a.toml", "../up", "two words", ""])
def test_a_host_needs_a_name_of_its_own(name: str) -> None:
    with pytest.raises(InvalidInput, match="a host cannot be named"):
        path_of(name)


@pytest.mark.parametrize(
    ("machine", "name"),
    [("node-7.cluster", "node-7.cluster"), ("Ann's PC", "Ann-s-PC"), ("mine", "mine-host")],
)
def test_a_host_goes_by_the_name_of_its_machine(
    machine: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "machine_name", lambda: machine)
    assert kept.default_name() == name
    assert path_of(name).name == f"{name}.toml"


def test_a_file_says_how_busy_the_machine_was() -> None:
    path = keep("busy", busy_before=0.02, busy_during=0.345, processor="a processor")
    again = read_host(path)
    assert (again.busy_before, again.busy_during) == (0.02, 0.345)
    assert again.is_busy
    assert (again.processor, again.machine, again.gpu) == ("a processor", HERE, "Tesla T4")
    assert not read_host(keep("quiet", busy_before=0.02, busy_during=0.05)).is_busy
    assert not read_host(keep("unknown")).is_busy
    path.write_text(path.read_text().replace("busy_during = 0.345", "busy_during = 34"))
    with pytest.raises(InvalidInput, match="busy_during must be a number from 0 to 1, not 34"):
        read_host(path)


@pytest.mark.parametrize("name", ["yours", "0.5", ""])
def test_an_unknown_host_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UnknownName, match=r'"reference", "mine", .* and files.*--host-factor'):
        find_host(name)


def test_predictions_take_the_calibrated_host_of_their_gpu_and_say_so(mine: Path) -> None:
    step = trace(*[call(relu(8)) for _ in range(100)])
    own, reference = predict(step, "t4"), predict(step, "t4", host="reference")
    assert own.host.name.startswith("my-machine")
    assert predict(step, "l4").host is REFERENCE_HOST
    assert predict(step, "l4", host="my-machine").host == own.host
    assert own.host_s == pytest.approx(2 * reference.host_s, rel=1e-3)


def test_a_measured_host_needs_a_narrower_range(mine: Path) -> None:
    step = trace(*[call(relu(8)) for _ in range(100)])
    own, reference = predict(step, "t4"), predict(step, "t4", host="reference")
    assert own.bound_by == reference.bound_by == "host"
    known, unknown = (host_factors(known=known) for known in (True, False))
    assert known is not None
    assert unknown is not None
    for prediction, factors in ((own, known), (reference, unknown)):
        wanted = [prediction.seconds * factors.low, prediction.seconds * factors.high]
        assert [prediction.low_s, prediction.high_s] == pytest.approx(wanted)
    assert unknown.low <= known.low < 1 < known.high < unknown.high


def test_compiled_code_issues_kernels_cheaply() -> None:
    specs = (TensorSpec((1024, 1024), "float32"),)
    eager = Call(Op("aten.mm", specs * 2, specs), Phase.FORWARD)
    kernel = Op("inductor.pointwise", specs, specs, (("points", 1 << 20),))
    graph = Call(Op("inductor.call", (), ()), Phase.FORWARD, graph=0)
    backward = Call(Op("aten.mm", specs * 2, specs), Phase.BACKWARD)
    calls = [
        Call(Op("dynamo.guards", (), ()), Phase.FORWARD),
        graph,
        Call(kernel, Phase.FORWARD, graph=0),
        replace(eager, graph=0),
        eager,
        backward,
    ]
    asked = demands(calls)
    autograd, forward = (asked[:, COSTS.index(name)] for name in ("autograd_s", "forward_s"))
    # The product outside of the graph is issued by Python, and recorded for the backward pass.
    assert list(autograd[1:5]) == [0, 0, 0, 1]
    assert forward[2] == forward[3] == COMPILED["launch"]
    assert forward[4] == 1
    assert asked[5, COSTS.index("backward_s")] == 1


def test_library_calls_of_compiled_code_cost_what_lies_in_the_library() -> None:
    tokens, rows = TensorSpec((4096,), "int64"), TensorSpec((4096, 16), "float32")
    table = TensorSpec((50_000, 16), "float32")
    heads = TensorSpec((4, 16, 1024, 64), "bfloat16")
    image, filters = TensorSpec((8, 64, 56, 56), "float32"), TensorSpec((64, 64, 3, 3), "float32")
    called = [
        Op("aten._embedding_bag_backward", (rows, tokens, tokens), (table,)),
        Op("aten._scaled_dot_product_cudnn_attention_backward", (heads,) * 4, (heads,) * 3),
        Op("aten.convolution_backward", (image, image, filters), (image, filters)),
    ]
    graph = Op("inductor.call", (), ())
    asked = demands([Call(op, Phase.BACKWARD, graph=0) for op in (graph, *called)])[1:]
    forward, more, searches = (
        list(asked[:, COSTS.index(name)]) for name in ("forward_s", "kernel_s", "convolution_s")
    )
    assert forward == [COMPILED["launch"], COMPILED["attention"], COMPILED["launch"]]
    assert more == [ops.kernels(called[0]) - 1, 0, 0]
    assert more[0] > 20
    assert searches == [0, 0, 2]


def test_calls_cost_more_with_more_inputs() -> None:
    few, many = (
        demands([Call(Op("inductor.call", (), (), (("inputs", n),)), Phase.FORWARD)])
        for n in (10, 110)
    )
    difference = (many - few)[0]
    assert difference[COSTS.index("forward_s")] == pytest.approx(100 * COMPILED["input"])
    assert np.count_nonzero(difference) == 1


def test_weights_that_are_trained_are_counted_by_the_optimizer() -> None:
    graph = Op("inductor.call", (), (), (("inputs", 50),))
    phases = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
    asked = demands([Call(graph, phase) for phase in phases])
    call = COMPILED["inductor.call"]
    assert list(asked[:, COSTS.index("forward_s")]) == [call, call, call + 50 * COMPILED["input"]]


def test_a_cuda_graph_costs_its_launch() -> None:
    specs = (TensorSpec((1024, 1024), "float32"),)
    attrs = (("points", 1 << 20),)
    kernel = Call(Op("inductor.pointwise", specs, specs, attrs), Phase.FORWARD, graph=0)
    launch = Call(Op("cuda.graph_launch", (), ()), Phase.FORWARD, graph=0)
    times = REFERENCE_HOST.issue_times([launch, kernel, kernel])
    assert times[0] == pytest.approx(REFERENCE_HOST.graph_s + 2 * REFERENCE_HOST.node_s)
    assert list(times[1:]) == [0, 0]


def test_checkpointing_without_hooks_costs_the_host_less() -> None:
    spec = TensorSpec((64, 64), "float32")

    def block(phase: Phase) -> list[Call]:
        return [Call(Op(f"aten.{name}", (spec,), (spec,)), phase, "a") for name in ("mm", "gelu")]

    gradient = Call(Op("aten.gelu_backward", (spec,), (spec,)), Phase.BACKWARD, "a")
    calls = [*block(Phase.FORWARD), *block(Phase.BACKWARD), gradient]
    plain = replace(REFERENCE_HOST, hooks=0.0)
    hooks_s = REFERENCE_HOST.issue_times(calls) - plain.issue_times(calls)
    once_s = RECOMPUTED * REFERENCE_HOST.forward_s
    share = 2 / MEASURED_BLOCKS[0]  # a block of two calls
    assert list(hooks_s) == pytest.approx([0, 0, share * once_s, 0, 0])


# Hosts of clusters: which processor, how fast, and when it counts.


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
