"""The commands for measured steps: measure, import, predict, extrapolate, collect, calibrate."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch
from made import mm, relu, step, tensor
from shell import Outcome, run, run_in_terminal

import wavecast
from wavecast.campaigns.layer_times import read_rows
from wavecast.errors import InvalidInput
from wavecast.frameworks import ncu
from wavecast.frameworks.pytorch.measurement import calibration, iteration, whole_runs
from wavecast.hardware import devices, kept_hosts
from wavecast.hardware.devices import Fact, device
from wavecast.hardware.hosts import REFERENCE_HOST, RecordedHost
from wavecast.hardware.kept_hosts import find_host, reference_times
from wavecast.targets.targets import resolve
from wavecast.traces.joining import Counted, KernelKey
from wavecast.traces.step import Call, Kernel, Measurement, Op, Phase, Trace

ALL_REDUCE = Op("nccl.all_reduce", (tensor(8),), (tensor(8),))
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
LAUNCH: dict[str, Any] = {"grid": (4096, 1, 1), "block": (256, 1, 1), "registers": 32}


@pytest.fixture(autouse=True)
def _a_user_of_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("WAVECAST_DEVICES", raising=False)


def ran(op: Op, at: float, took: float, name: str = "k", **more: Any) -> Call:
    kernel = Kernel(name, took, start_s=at, shared_bytes=0, **LAUNCH)
    return Call(op, Phase.FORWARD, kernels=(kernel,), host_s=1e-4, **more)


def measured(samples: int | None = 8, gpu: str = "Tesla T4", slower: float = 1.0) -> Trace:
    """A product and an activation that took 8 ms on the GPU, of a step of 10 ms."""
    calls = (
        ran(mm(2048, 2048, 2048), 0.0, 6e-3 * slower, "sgemm", module="net.0"),
        ran(relu(1 << 20), 8e-3, 2e-3 * slower, "relu_kernel", module="net.1"),
    )
    whole = Measurement(
        gpu,
        seconds=10e-3 * slower,
        gpu_s=8e-3 * slower,
        host_s=2e-4,
        recorded_s=25e-3,
        repeats=10,
        software="CUDA 13.0",
    )
    return Trace(calls, framework="torch 2.13.0", samples=samples, measurement=whole)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "measured.json.gz"
    measured().save(path)
    return path


def profile(path: Path, gpu: str = "Tesla T4", shapes: bool = True) -> Path:
    """What torch.profiler would write of a product and an activation: 300 and 100 us."""
    events: list[dict[str, Any]] = []

    def add(category: str, name: str, ts: float, dur: float, **args: Any) -> None:
        event = {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur}
        events.append(event | {"pid": 1, "tid": 1, "args": args})

    ops = [("aten::mm", 2, "sgemm", 1100.0, 300.0), ("aten::relu", 1, "relu_kernel", 1400.0, 100.0)]
    for number, (name, operands, kernel, begin, took) in enumerate(ops, start=1):
        known = {"Input Dims": [[64, 64]] * operands, "Input type": ["float"] * operands}
        at = 1000.0 + 30 * number
        add("cpu_op", name, at, 20.0, **{"External id": number}, **(known if shapes else {}))
        add("cuda_runtime", "cudaLaunchKernel", at + 5, 4.0, correlation=number)
        launch = {"grid": [1024, 1, 1], "block": [256, 1, 1], "registers per thread": 32}
        add("kernel", kernel, begin, took, device=0, stream=7, correlation=number, **launch)
    properties = [{"id": 0, "name": gpu, "computeMajor": 7, "computeMinor": 5}]
    text = json.dumps({"schemaVersion": 1, "deviceProperties": properties, "traceEvents": events})
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def cells(shown: str) -> list[str]:
    """The lines of a table, one blank between words."""
    return [" ".join(line.split()) for line in shown.splitlines()]


def refused(done: Outcome) -> str:
    """The one line in which a command says why it did nothing."""
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    return done.err


def prediction(*arguments: object) -> dict[str, Any]:
    done = run("predict", *arguments, "--json")
    assert (done.code, done.err) == (0, "")
    [record] = json.loads(done.out)["predictions"]
    assert isinstance(record, dict)
    return record


# Without a GPU.


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["measure", "resnet50"], id="measure"),
        pytest.param(["measure", "resnet50", "--counters", "--json"], id="measure --counters"),
        pytest.param(["iterate", "resnet50"], id="iterate"),
        pytest.param(["collect", "bmm", "-o", "rows.csv"], id="collect"),
    ],
)
def test_what_needs_a_gpu_says_so(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "needs a GPU, and torch sees none here" in refused(run(*arguments))
    assert not (tmp_path / "rows.csv").exists()


def test_a_trace_cannot_be_measured(saved: Path) -> None:
    assert "is a trace; measure the step itself" in refused(run("measure", saved))
    assert "is a trace; it cannot run" in refused(run("iterate", saved))


def test_a_place_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    out = tmp_path / "step.pt"
    assert "saved as FILE.json.gz" in refused(run("measure", "resnet50", "-o", out))
    assert "saved as FILE.json.gz" in refused(run("import", tmp_path / "none.json", "-o", out))


# Measure, on a GPU that only says so.


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A machine on which everything takes what `measured` says; gives a target to measure."""
    path = tmp_path / "train.py"
    path.write_text(
        "def make_step(batch=4, precision='fp32'):\n    print('made')\n    return lambda: batch\n"
    )

    def fake(run_step: Callable[[], int], samples: int | None, **options: Any) -> Trace:
        return measured(samples=None if samples is None else run_step())

    monkeypatch.setattr(iteration, "require_gpu", lambda: None)
    monkeypatch.setattr(iteration, "has_gpu", lambda: True)
    monkeypatch.setattr(wavecast, "measure", fake)
    return f"{path}:make_step"


def test_a_measurement_is_summed_up_and_saved(a_gpu: str, tmp_path: Path) -> None:
    out = tmp_path / "step.json.gz"
    done = run("measure", a_gpu, "--batch", "16", "-o", out)
    assert done.code == 0
    assert {
        "iteration 10.0 ms steady state",
        "GPU busy 8.00 ms 80% of the iteration",
        "host busy 200 us time to issue the step, waiting not counted",
        "iteration while recorded 25.0 ms 2.5 times as long",
        "Tesla T4; torch 2.13.0; CUDA 13.0",
        "2 kernels in 2 calls; times are the median of 10 iterations",
        "aten.mm 1 6.00 ms 75.0%",
        f"saved as {out}",
    } <= set(cells(done.out))
    assert any(line.startswith("sum of the kernels 8.00 ms") for line in cells(done.out))
    assert wavecast.load_trace(out) == measured(samples=16)


def test_a_measurement_as_json_is_all_that_is_printed(a_gpu: str) -> None:
    done = run("measure", a_gpu, "--json")
    record = json.loads(done.out)
    assert record["measurement"]["gpu"] == "Tesla T4"
    assert record["measurement"]["seconds"] == 10e-3
    assert (record["calls"], record["samples"]) == (2, None)
    assert "made" in done.err


def test_communication_is_told_with_what_of_it_nothing_hid(
    a_gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = (ran(mm(), 0.0, 4e-3), ran(ALL_REDUCE, 3e-3, 3e-3))
    trace = Trace(calls, measurement=Measurement(""))
    monkeypatch.setattr(wavecast, "measure", lambda step, **options: trace)
    shown = run("measure", a_gpu).out
    assert "communication: 3.00 ms, 2.00 ms of it while nothing else ran" in shown
    assert "GPU unknown; framework unknown; software unknown" in shown
    assert "2 kernels in 2 calls; one iteration" in shown


def test_long_kernels_are_counted_once_for_each_gpu(
    a_gpu: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[list[str], Sequence[str]]] = []

    def fake(kernels: Sequence[Kernel], command: Sequence[str]) -> dict[KernelKey, Counted]:
        asked.append(([kernel.name for kernel in kernels], command[1:]))
        return {("relu_kernel", 4096, 256): Counted(7.0, 9.0)}

    monkeypatch.setattr(ncu, "count", fake)
    out = tmp_path / "counted.json.gz"
    for _ in range(2):
        run("measure", a_gpu, "--counters", "-b", "16", "-p", "bf16", "-o", out)
        assert [call.kernels[0].flops for call in wavecast.load_trace(out)] == [None, 7.0]
    iterate = ["-m", "wavecast", "iterate", a_gpu, "--batch", "16", "--precision", "bf16"]
    assert asked == [(["relu_kernel"], iterate)]
    monkeypatch.setattr(wavecast, "measure", lambda step, **options: measured(gpu="NVIDIA L4"))
    run("measure", a_gpu, "--counters")
    assert asked[1] == (["relu_kernel"], iterate[:4])


# Calibrate, with a GPU and without.


@pytest.fixture
def a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that takes twice as long as the reference."""

    def time_host(device: str = "cpu") -> dict[str, float]:
        return {name: 2 * seconds for name, seconds in reference_times()[device].items()}

    monkeypatch.setattr(calibration, "time_host", time_host)
    monkeypatch.setattr(calibration, "processor", lambda: "a processor")
    monkeypatch.setattr(kept_hosts, "machine_name", lambda: "node-7")
    busy(monkeypatch, 0.01, 0.02)


def busy(monkeypatch: pytest.MonkeyPatch, before: float | None, during: float | None) -> None:
    """A machine whose other programs use these shares of its CPU."""
    monkeypatch.setattr(whole_runs, "share_in", lambda seconds: before)
    monkeypatch.setattr(whole_runs, "others_share", lambda begin, end: during)


@pytest.fixture
def a_known_gpu(a_gpu: str, a_host: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Fact]:
    """A machine with a T4 that attains these facts."""
    facts = {"memory_bytes_per_s": Fact(2.4e11, "me"), "tf32_tensor_flops": Fact(1e13, "me")}
    direct = {"launch_s": 3e-6, "sync_s": 4e-6, "graph_s": 5e-6, "node_s": 6e-8}
    monkeypatch.setattr(calibration, "calibrate", lambda seconds: ("Tesla T4", facts))
    monkeypatch.setattr(calibration, "time_gpu", lambda: direct)
    monkeypatch.setattr(calibration, "gpu_name", lambda: "Tesla T4")
    return facts


def test_without_a_gpu_the_host_is_calibrated_and_kept(a_host: None, tmp_path: Path) -> None:
    done = run("calibrate")
    shown = cells(done.out)
    assert (done.code, shown[0]) == (0, "node-7 (a processor)")
    assert "entering a module 1.10 us 2.20 us 2.00" in shown
    assert "delay until the host sees the GPU's end 7.30 us 7.30 us 1.00" in shown
    assert any("without a GPU" in line for line in shown)
    kept = tmp_path / "config" / "wavecast" / "hosts" / "node-7.toml"
    assert f"saved as {kept}; predictions use it with --host node-7 (or --host mine" in done.out
    assert "other programs used 1% of the CPU before the measurement and 2% during it" in shown
    assert "busy" not in done.out
    assert "this machine has no GPU: only the host was measured" in shown
    assert find_host("mine").module_s == pytest.approx(2 * REFERENCE_HOST.module_s)


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    path = tmp_path / "traced.json.gz"
    step().save(path)
    return path


def test_a_calibrated_host_issues_to_its_own_gpu_and_to_others_when_asked(
    a_known_gpu: dict[str, Fact], traced: Path
) -> None:
    done = run("calibrate", "--name", "my-workstation")
    assert "predictions for Tesla T4 use it, others with --host my-workstation" in done.out
    mine = "my-workstation, calibrated"
    gpus = ("--gpu", "l4", "--gpu", "t4", "--gpu", "h100-sxm-80gb")
    day = date.today().isoformat()
    hosts = f"host: {REFERENCE_HOST.name}; on t4: {mine} {day}"
    assert hosts in run("predict", traced, *gpus).out
    assert f"predicted; {hosts}" in run("profile", traced, *gpus).out
    assert prediction(traced, "--gpu", "t4", "--host", "reference")["host"] == REFERENCE_HOST.name
    for name in ("mine", "my-workstation"):
        assert prediction(traced, "--gpu", "l4", "--host", name)["host"].startswith(mine)


def test_a_busy_machine_is_warned_of_with_numbers(
    a_host: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(monkeypatch, 0.02, 0.34)
    said = cells(run("calibrate").out)
    assert "other programs used 2% of the CPU before the measurement and 34% during it" in said
    assert any("the machine was busy: other programs used up to 34%" in line for line in said)
    record = json.loads(run("calibrate", "--json").out)["host"]
    assert (record["busy_before"], record["busy_during"]) == (0.02, 0.34)
    busy(monkeypatch, None, None)
    assert "used an unknown share of the CPU" in run("calibrate").out


def test_kept_hosts_are_listed(a_host: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 'no host was calibrated yet: run "wavecast calibrate"' in run("calibrate", "--list").out
    assert json.loads(run("calibrate", "--list", "--json").out) == []
    run("calibrate")
    busy(monkeypatch, 0.5, 0.6)
    run("calibrate", "--name", "loaded")
    shown = cells(run("calibrate", "--list").out)
    today = date.today().isoformat()
    assert f"loaded none {today} 2.00 60% node-7 a processor" in shown
    assert f"node-7 none {today} 2.00 2% node-7 a processor" in shown
    listed = json.loads(run("calibrate", "--list", "--json").out)
    assert [host["name"] for host in listed] == ["loaded", "node-7"]
    assert [host["machine"] for host in listed] == ["node-7", "node-7"]
    assert listed[0]["file"].endswith("loaded.toml")


def test_options_of_calibrate_that_contradict_are_refused(a_host: None) -> None:
    assert "--list measures nothing" in refused(run("calibrate", "--list", "--name", "me"))
    assert 'cannot be named "mine"' in refused(run("calibrate", "--name", "mine"))


def test_a_host_may_be_kept_elsewhere_and_asked_for(
    a_host: None, traced: Path, tmp_path: Path
) -> None:
    path = tmp_path / "server.toml"
    record = json.loads(run("calibrate", "--host-out", path, "--json").out)
    assert (record["gpu"], record["host"]["file"]) == (None, str(path))
    assert record["host"]["costs"]["module_s"] == pytest.approx(2 * REFERENCE_HOST.module_s)
    assert prediction(traced, "--gpu", "l4")["host"] == REFERENCE_HOST.name
    assert prediction(traced, "--gpu", "l4", "--host", path)["host"].startswith("node-7, calib")


def test_an_unknown_host_is_refused(traced: Path) -> None:
    said = refused(run("predict", traced, "--gpu", "l4", "--host", "yours"))
    assert 'unknown host "yours"' in said
    said = refused(run("predict", traced, "--gpu", "l4", "--host", "mine"))
    assert 'run "wavecast calibrate"' in said


def test_a_calibration_is_shown_and_kept_as_facts_of_ones_own(
    a_known_gpu: dict[str, Fact],
) -> None:
    shown = cells(run("calibrate").out)
    assert f"{device('t4').name} (t4)" in shown
    assert "memory_bytes_per_s 320 GB/s 240 GB/s 75%" in shown
    assert "tf32_tensor_flops ? 10.0 TFLOP/s" in shown
    assert device("t4").measured["memory_bytes_per_s"] == a_known_gpu["memory_bytes_per_s"]
    assert device("t4").memory_bytes_per_s == 320e9


def test_with_a_gpu_launches_and_waits_are_measured_too(a_known_gpu: dict[str, Fact]) -> None:
    assert any("with Tesla T4" in line for line in cells(run("calibrate").out))
    mine = find_host("mine")
    assert (mine.launch_s, mine.sync_s, mine.graph_s, mine.node_s) == (3e-6, 4e-6, 5e-6, 6e-8)


def test_a_calibration_as_json_says_where_it_is(
    a_known_gpu: dict[str, Fact], tmp_path: Path
) -> None:
    record = json.loads(run("calibrate", "-o", tmp_path / "mine", "--json").out)
    assert record["gpu"] == "t4"
    assert record["file"] == str(tmp_path / "mine" / "t4.toml")
    assert record["measured"]["tf32_tensor_flops"] == {"value": 1e13, "source": "me"}
    wanted = devices.with_measured(device("t4"), a_known_gpu)
    assert wavecast.device(record["file"]) == wanted


# Import.


@pytest.mark.parametrize("name", ["rank0.json", "rank0.pt.trace.json.gz"])
def test_a_profiler_file_becomes_a_measured_trace(tmp_path: Path, name: str) -> None:
    out = tmp_path / "trace.json.gz"
    done = run("import", profile(tmp_path / name), "--batch", "4", "-o", out)
    assert (done.code, done.err) == (0, "")
    assert "Tesla T4; torch (profiler file); software unknown" in done.out
    assert "aten.mm 1 300 us 75.0%" in cells(done.out)
    assert done.out.endswith(f"saved as {out}\n")
    trace = wavecast.load_trace(out)
    assert [call.op.base for call in trace] == ["aten.mm", "aten.relu"]
    assert trace.samples == 4
    assert trace.measurement is not None
    assert trace.measurement.gpu_s == pytest.approx(400e-6)


def test_an_import_as_json(tmp_path: Path) -> None:
    record = json.loads(run("import", profile(tmp_path / "rank0.json"), "--json").out)
    assert record["target"] == "rank0.json"
    assert record["measurement"]["gpu"] == "Tesla T4"
    assert record["by_kind"]["matmul"]["flops"] == 2 * 64**3


def test_a_file_without_shapes_is_imported_all_the_same(tmp_path: Path) -> None:
    path = profile(tmp_path / "rank0.json", shapes=False)
    assert "the file has no shapes" in run("import", path).out
    assert set(json.loads(run("import", path, "--json").out)["unknown_ops"]) == {
        *("aten.mm", "aten.relu")
    }
    assert prediction(path, "--gpu", "l4")["gpu_s"] > 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(None, "there is no profiler file", id="missing"),
        pytest.param("{}", "no traceEvents", id="no profile"),
        pytest.param("loss 0.5", "not a valid JSON", id="no JSON"),
    ],
)
def test_what_is_no_profiler_file_is_refused(
    tmp_path: Path, content: str | None, said: str
) -> None:
    path = tmp_path / "rank0.json"
    if content is not None:
        path.write_text(content)
    assert said in refused(run("import", path))


def test_a_step_or_batch_that_there_is_not_is_refused(tmp_path: Path) -> None:
    path = profile(tmp_path / "rank0.json")
    assert "step" in refused(run("import", path, "--step", "7"))
    assert "the batch must be at least 1, not 0" in refused(run("import", path, "--batch", "0"))


# Targets.


def test_a_profiler_file_is_told_from_a_saved_trace_by_what_is_in_it(
    tmp_path: Path, saved: Path
) -> None:
    plain, packed = (profile(tmp_path / name) for name in ("a.json", "b.json.gz"))
    for path in (plain, packed):
        trace = resolve(str(path)).trace
        assert trace is not None
        assert [call.op.base for call in trace] == ["aten.mm", "aten.relu"]
    assert resolve(str(saved)).trace == measured()


def test_a_file_that_is_neither_is_refused_as_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "step.json.gz"
    path.write_bytes(gzip.compress(b'{"loss": 0.5}'))
    with pytest.raises(InvalidInput, match="it is not a wavecast trace"):
        resolve(str(path))
    path.write_bytes(b"loss 0.5")
    with pytest.raises(InvalidInput, match="cannot be read as gzip"):
        resolve(str(path))


def test_only_a_measured_trace_can_change_its_precision(tmp_path: Path, saved: Path) -> None:
    traced = tmp_path / "traced.json.gz"
    step().save(traced)
    with pytest.raises(InvalidInput, match="whose precision is fixed"):
        resolve(str(traced), precision="bf16")
    assert resolve(str(saved), precision="bf16").trace == measured()


# Predict.


def test_a_measured_trace_is_scaled_to_other_gpus(saved: Path) -> None:
    record = prediction(saved, "--gpu", "a100-sxm-80gb")
    wanted = wavecast.predict(measured(), "a100-sxm-80gb")
    assert record["seconds"] == wanted.seconds < 10e-3
    assert record["host"] == RecordedHost().name
    assert {part["name"] for part in record["by_source"]} == {"ratio of learned", "wave scaling"}
    assert record["throughput_per_s"] == 8 / wanted.seconds


def test_on_its_own_gpu_a_measured_trace_takes_the_measured_time(saved: Path) -> None:
    record = prediction(saved, "--gpu", "t4")
    assert record["seconds"] == pytest.approx(10e-3)
    assert [part["name"] for part in record["by_source"]] == ["measured"]
    shown = run("predict", saved, "--gpu", "t4").out
    assert "op times: measured\n" in shown
    assert f"host: {RecordedHost().name}\n" in shown


def test_a_profiler_file_is_predicted_as_it_is(tmp_path: Path) -> None:
    path, out = profile(tmp_path / "rank0.json"), tmp_path / "trace.json.gz"
    run("import", path, "-o", out)
    assert prediction(path, "--gpu", "l4") == prediction(out, "--gpu", "l4")


def test_the_origin_is_asked_for_where_the_trace_does_not_say_it(tmp_path: Path) -> None:
    path = tmp_path / "measured.json.gz"
    measured(gpu="Tesla V100").save(path)
    assert '"Tesla V100"' in refused(run("predict", path, "--gpu", "l4"))
    record = prediction(path, "--gpu", "v100-pcie-16gb", "--origin", "v100-pcie-16gb")
    assert record["seconds"] == pytest.approx(10e-3)
    other = prediction(path, "--gpu", "v100-pcie-16gb", "--origin", "t4")
    assert other["seconds"] < record["seconds"]
    assert 'unknown device "v9000"' in refused(
        run("predict", path, "--gpu", "l4", "--origin", "v9000")
    )


@pytest.mark.parametrize(
    ("predictor", "sources"),
    [
        ("wave", {"wave scaling"}),
        ("attainable", {"attainable"}),
        ("roofline", {"roofline"}),
    ],
)
def test_who_predicts_can_be_said(saved: Path, predictor: str, sources: set[str]) -> None:
    record = prediction(saved, "--gpu", "l4", "--predictor", predictor)
    assert {part["name"] for part in record["by_source"]} == sources
    scales = predictor == "wave"
    assert record["host"] == (RecordedHost().name if scales else REFERENCE_HOST.name)


def test_habitats_own_networks_scale_what_they_know(saved: Path) -> None:
    record = prediction(saved, "--gpu", "l4", "--predictor", "habitat")
    assert {part["name"] for part in record["by_source"]} <= {"ratio of mlp", "wave scaling"}
    assert record["gpu_s"] > 0


@pytest.mark.parametrize("predictor", ["wave", "habitat"])
def test_a_traced_step_cannot_be_scaled(tmp_path: Path, predictor: str) -> None:
    path = tmp_path / "traced.json.gz"
    step().save(path)
    error = refused(run("predict", path, "--gpu", "l4", "--predictor", predictor))
    assert "was not measured, so there is nothing to scale" in error


def test_a_predictor_from_nothing_takes_no_origin(saved: Path) -> None:
    wrong = ("--predictor", "attainable", "--origin", "t4")
    assert "leave the origin out" in refused(run("predict", saved, "--gpu", "l4", *wrong))


def test_a_measurement_is_taken_to_half_precision(saved: Path) -> None:
    full = prediction(saved, "--gpu", "a100-sxm-80gb")
    half = prediction(saved, "--gpu", "a100-sxm-80gb", "--precision", "bf16")
    assert half["gpu_s"] < full["gpu_s"]
    assert [part["name"] for part in half["by_source"]] == ["bf16 by its op"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--precision", "tf32", "--predictor", "daydream"], "takes a step to bf16 or fp16"),
        (["--precision", "bf16", "--predictor", "wave"], "has its own predictor"),
        (["--precision", "fp9"], "unknown precision 'fp9'"),
        (["--batch", "4"], "whose batch is fixed"),
    ],
)
def test_what_a_measurement_cannot_become_is_refused(
    saved: Path, options: list[str], said: str
) -> None:
    assert said in refused(run("predict", saved, "--gpu", "l4", *options))


def test_a_slower_host_slows_a_step_that_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "hosted.json.gz"
    calls = (Call(mm(), Phase.FORWARD, kernels=(Kernel("k", 1e-4, **LAUNCH),), host_s=5e-3),)
    Trace(calls, measurement=Measurement("Tesla T4", 6e-3, host_s=5e-3)).save(path)
    assert prediction(path, "--gpu", "l4")["seconds"] == pytest.approx(6e-3)
    slow = prediction(path, "--gpu", "l4", "--host-factor", "3")
    assert slow["seconds"] == pytest.approx(18e-3)
    assert slow["host"] == f"{RecordedHost().name} x3"


# Extrapolate.


@pytest.fixture
def batches(tmp_path: Path) -> list[Path]:
    """Steps at 8, 16 and 32 samples, which take 10 ms for every eight."""
    paths = []
    for size in (8, 16, 32):
        paths.append(tmp_path / f"b{size}.json.gz")
        measured(samples=size, slower=size / 8).save(paths[-1])
    return paths


def test_three_batches_are_extrapolated_exactly(batches: list[Path]) -> None:
    done = run("extrapolate", *batches, "--batch", "256", "--gpu", "t4", "--gpu", "l4", "--json")
    first, second = json.loads(done.out)
    assert (first["gpu"], first["batch"]) == ("t4", 256)
    assert first["seconds"] == pytest.approx(0.32)
    assert first["throughput_per_s"] == pytest.approx(800)
    assert first["per_sample_s"] == pytest.approx(10e-3 / 8)
    assert first["fixed_s"] == pytest.approx(0, abs=1e-9)
    assert first["points"] == {
        "8": pytest.approx(0.01),
        "16": pytest.approx(0.02),
        "32": pytest.approx(0.04),
    }
    assert second["gpu"] == "l4"
    assert second["low_s"] <= second["seconds"] <= second["high_s"]


def test_a_larger_batch_is_shown_as_a_table(batches: list[Path]) -> None:
    shown = run("extrapolate", *batches, "--batch", "256", "--gpu", "t4").out
    assert shown.startswith("a batch of 256 samples, extrapolated from batches of 8, 16, 32\n")
    [row] = [line for line in shown.splitlines() if line.startswith("t4 ")]
    assert row.split()[1:3] == ["320", "ms"]
    narrow = run_in_terminal("extrapolate", *batches, "--batch", "256", "--gpu", "t4", COLUMNS="30")
    heading = next(line for line in cells(ESCAPE.sub("", narrow)) if line.startswith("GPU"))
    assert heading == "GPU step samples/s"


def test_every_gpu_can_be_asked_for(batches: list[Path]) -> None:
    done = run("extrapolate", *batches, "--batch", "64", "--gpu", "all", "--json")
    assert {row["gpu"] for row in json.loads(done.out)} == {gpu.id for gpu in wavecast.devices()}


def test_the_origin_is_that_of_all_batches(batches: list[Path]) -> None:
    options = ("--batch", "64", "--gpu", "t4", "--origin")
    assert 'unknown device "t44"' in refused(run("extrapolate", *batches, *options, "t44"))
    [record] = json.loads(run("extrapolate", *batches, *options, "l4", "--json").out)
    assert record["seconds"] != pytest.approx(0.08)


def test_two_batches_are_refused(batches: list[Path]) -> None:
    error = refused(run("extrapolate", *batches[:2], "--batch", "256", "--gpu", "t4"))
    assert "2 batch sizes are too few for a line" in error


def test_batches_that_are_the_same_or_unknown_are_refused(
    batches: list[Path], tmp_path: Path
) -> None:
    options = ("--batch", "256", "--gpu", "t4")
    again = refused(run("extrapolate", *batches, batches[0], *options))
    assert "two of these traces take 8 samples a step" in again
    unknown = tmp_path / "unknown.json.gz"
    measured(samples=None).save(unknown)
    error = refused(run("extrapolate", *batches, unknown, *options))
    assert "does not say how many samples a step takes" in error


# Collect.


def test_a_collection_goes_on_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "bmm.csv"
    done = run("collect", "bmm", "--count", "2", "--device", "cpu", "-o", out)
    assert (done.code, done.out) == (0, f"{out} has 2 of 2 bmm layers\n")
    assert "measuring bmm layers: 2 of 2" in done.err
    before = out.read_bytes()
    record = json.loads(
        run("collect", "bmm", "-n", "3", "--device", "cpu", "-o", out, "--json").out
    )
    assert record == {"schema": "wavecast/collect/1", "kind": "bmm", "file": str(out), "rows": 3}
    assert out.read_bytes().startswith(before)
    assert [(row.index, row.gpu, row.seed) for row in read_rows(out)] == [
        (0, "cpu", "0, small layers"),
        (1, "cpu", "0, small layers"),
        (2, "cpu", "0, small layers"),
    ]


@pytest.mark.parametrize("kind", ["conv2d", "lstm", "bmm", "linear"])
def test_a_trial_on_a_cpu_takes_few_and_small_layers(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from wavecast.frameworks.pytorch.measurement import layers
    from wavecast.predictors.mlp import Layer, Lstm, PassTimes

    flops: list[int] = []

    def count(layer: Layer, device: str) -> PassTimes:
        assert device == "cpu"
        if isinstance(layer, Lstm):  # torch counts no FLOPs of an LSTM
            per_row = 8 * layer.hidden * (layer.inputs + layer.hidden)
            flops.append(layer.batch * layer.sequence * per_row)
        else:
            with FlopCounterMode(display=False) as counter:
                layers._runnable(layer, {"device": "cpu"}).forward()
            flops.append(counter.get_total_flops())
        return PassTimes(1e-3, 2e-3)

    monkeypatch.setattr(layers, "time_layer", count)
    out = tmp_path / "trial.csv"
    done = run("collect", kind, "--device", "cpu", "-o", out)
    assert done.out == f"{out} has 20 of 20 {kind} layers\n"
    assert len(flops) == 20
    assert max(flops) <= 2e7


def test_a_collection_that_is_done_measures_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wavecast.frameworks.pytorch.measurement import layers

    arguments = ("collect", "bmm", "-n", "2", "--device", "cpu", "-o", tmp_path / "bmm.csv")
    run(*arguments)

    def fail(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(layers, "time_layer", fail)
    assert run(*arguments).out.endswith("has 2 of 2 bmm layers\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gru", "--device", "cpu"], "gru"),
        (["bmm", "--device", "tpu"], 'is "cuda" or "cpu", not "tpu"'),
    ],
)
def test_what_cannot_be_collected_is_refused(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    out = tmp_path / "rows.csv"
    assert said in refused(run("collect", *arguments, "-n", "1", "-o", out))
    assert not out.exists() or not out.read_bytes()


def test_a_collection_of_no_layers_is_wrong_usage(tmp_path: Path) -> None:
    done = run("collect", "bmm", "-n", "0", "--device", "cpu", "-o", tmp_path / "rows.csv")
    assert done.code == 2


@pytest.mark.parametrize("command", ["measure", "import", "extrapolate", "collect"])
def test_help_has_an_example(command: str) -> None:
    done = run(command, "--help")
    assert done.code == 0
    assert [line for line in done.out.splitlines() if line.startswith(f"  wavecast {command} ")]


def test_a_trace_may_be_called_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "measured.trace"
    measured().save(path)
    done = run("predict", path, "--gpu", "l4")
    assert done.code == 0
    assert "measured.trace" in done.out
