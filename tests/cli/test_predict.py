"""The command line: what it prints, where, in which form, and with which exit code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from made import step
from shell import check_golden, run, run_in_terminal, run_process

import wavecast
from wavecast.hardware.hosts import REFERENCE_HOST
from wavecast.traces.step import Trace

GPUS = ("--gpu", "a100-sxm-80gb", "--gpu", "l4", "--gpu", "t4")
PHYSICS = ("--predictor", "roofline", "--host-factor", "1e-9")
"""Golden files must not change when shares or host times are fitted again."""
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

NETWORK = """
from torch import nn, randn, optim
from torch.nn.functional import scaled_dot_product_attention as attend

def make_step(batch: int = 4, precision: str = "fp32"):

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).cuda()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    data = randn(batch, 64, device="cuda")

    def step():
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    return step

def make_attention():
    layer = nn.Linear(64, 64, device="cuda")
    heads = randn(2, 4, 16, 64, device="cuda")

    def step():
        query = layer(heads)
        attend(query, query, query).sum().backward()

    return step
"""


@pytest.fixture
def network(tmp_path: Path) -> Path:
    path = tmp_path / "network.py"
    path.write_text(NETWORK)
    return path


def test_predictions_are_a_table_with_footnotes(saved: Path) -> None:
    done = run("predict", saved, *GPUS, *PHYSICS)
    assert (done.code, done.err) == (0, "")
    check_golden("predict.txt", done.out)


def test_a_breakdown_follows_the_table(saved: Path) -> None:
    for by in ("op", "module"):
        done = run("predict", saved, "--gpu", "l4", *PHYSICS, "--by", by)
        check_golden(f"predict-by-{by}.txt", done.out)


def test_json_has_every_number(saved: Path) -> None:
    done = run("predict", saved, *GPUS, *PHYSICS, "--json")
    assert (done.code, done.err) == (0, "")
    check_golden("predict.json", done.out)


def test_json_has_the_documented_keys(saved: Path) -> None:
    # On these two GPUs the op models predict enough of the step for a range.
    gpus = ("--gpu", "a100-sxm-80gb", "--gpu", "t4")
    record = json.loads(run("predict", saved, *gpus, "--json").out)
    assert set(record) == {"schema", "target", "trace", "predictions", "notes"}
    assert set(record["trace"]) == {
        *("calls", "distinct_ops", "kernels", "flops", "executed_flops", "bytes", "by_phase"),
        *("by_kind", "unknown_ops", "samples", "unit", "framework", "capability", "notes"),
        "measurement",
    }
    for prediction in record["predictions"]:
        assert set(prediction) == {
            *("gpu", "seconds", "low_s", "high_s", "gpu_s", "host_s", "bound_by", "unit"),
            *("throughput_per_s", "usd_per_hour", "price", "throughput_per_usd", "host"),
            *("host_source", "covered_hosts"),
            *("peak_bytes", "needed_bytes", "fits", "gpus", "cluster", "strategy", "stages"),
            *("efficiency", "exposed_s", "idle_s", "waiting_s"),
            *("by_phase_s", "by_op", "by_module"),
            *("by_source", "unpredicted", "unpredicted_share", "comparable", "notes"),
        }
        assert prediction["low_s"] <= prediction["seconds"] <= prediction["high_s"]
        assert prediction["unpredicted"] == {"mine.secret.default": 2}


def test_json_and_the_library_agree(saved: Path) -> None:
    [record] = json.loads(run("predict", saved, "--gpu", "t4", "--json").out)["predictions"]
    wanted = wavecast.predict(wavecast.load_trace(saved), "t4")
    assert (record["seconds"], record["low_s"]) == (wanted.seconds, wanted.low_s)
    assert record["throughput_per_s"] == wanted.throughput


def test_a_trace_is_summed_up_by_phase(saved: Path) -> None:
    done = run("trace", saved)
    assert done.code == 0
    check_golden("trace.txt", done.out)
    record = json.loads(run("trace", saved, "--json").out)
    assert record["target"] == "step.json.gz"
    assert record["unknown_ops"] == {"mine.secret.default": 2}


def test_a_device_is_shown_with_the_source_of_each_fact() -> None:
    done = run("devices", "NVIDIA L4")
    assert (done.code, done.err) == (0, "")
    check_golden("device.txt", done.out)


def test_several_devices_are_shown_each_once() -> None:
    done = run("devices", "l4", "t4", "NVIDIA L4", "--json")
    assert [row["id"] for row in json.loads(done.out)] == ["l4", "t4"]


def test_all_devices_are_listed() -> None:
    done = run("devices")
    lines = done.out.splitlines()
    for gpu in wavecast.devices():
        assert any(line.startswith(f"{gpu.id} ") for line in lines)
    assert f"{len(wavecast.devices())} GPUs." in done.out
    assert len(json.loads(run("devices", "--json").out)) == len(wavecast.devices())


def test_a_device_of_ones_own_shows_facts_without_sources(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "Mine"\nvendor = "Me"\narchitecture = "Own"\n[nominal]\n'
        "memory_bytes = 17179869184\nmemory_bytes_per_s = 1e12\nfp32_flops = 2e13\n"
    )
    shown = run("devices", path).out
    assert re.search(r"fp32_flops +20.0 TFLOP/s +not given", shown)
    [record] = json.loads(run("devices", path, "--json").out)
    assert record["nominal"]["fp32_flops"] == {"value": 2e13, "source": None}


def test_all_predicts_every_gpu_the_fastest_first(saved: Path) -> None:
    rows = json.loads(run("predict", saved, "--gpu", "all", "--json").out)["predictions"]
    assert {row["gpu"] for row in rows} == {gpu.id for gpu in wavecast.devices()}
    times = [row["seconds"] for row in rows]
    assert times == sorted(times)


def test_gpus_that_are_too_small_come_last_and_say_so(tmp_path: Path) -> None:
    path = tmp_path / "large.json.gz"
    step(state_bytes=100 << 20).save(path)
    rows = json.loads(run("predict", path, "--gpu", "all", "--json").out)["predictions"]
    fits = [row["fits"] for row in rows]
    assert fits == sorted(fits, reverse=True)
    assert False in fits
    assert all(row["needed_bytes"] >= row["peak_bytes"] >= 103 * (100 << 20) for row in rows)
    shown = run("predict", path, "--gpu", "t4", "--gpu", "l4").out
    assert "20.4 of 16 GiB, does not fit" in shown
    assert "of 24.0 GiB" not in shown
    assert shown.index("\nl4 ") < shown.index("\nt4 "), "named first, but it comes last"


def test_repeated_gpus_are_predicted_once(saved: Path) -> None:
    done = run("predict", saved, "--gpu", "l4", "--gpu", "NVIDIA L4", "--json")
    assert len(json.loads(done.out)["predictions"]) == 1


def test_a_slower_host_makes_a_slower_step(saved: Path) -> None:
    def seconds(*options: str) -> float:
        done = run("predict", saved, "--gpu", "h200-sxm", *options, "--json")
        return float(json.loads(done.out)["predictions"][0]["seconds"])

    assert seconds("--host-factor", "2") == pytest.approx(2 * seconds())
    assert seconds("--host-factor", "0.5") == pytest.approx(seconds() / 2)


def test_a_step_in_a_cuda_graph_waits_for_the_gpu_alone(saved: Path) -> None:
    done = run("predict", saved, "--gpu", "h200-sxm", "--cuda-graph", "--json")
    (record,) = json.loads(done.out)["predictions"]
    assert record["host"] == f"{REFERENCE_HOST.name}, as one CUDA graph"
    assert record["bound_by"] == "gpu"
    shown = run("profile", saved, "--gpu", "h200-sxm", "--cuda-graph").out
    assert f"predicted; host: {REFERENCE_HOST.name}, as one CUDA graph" in shown


def test_hosts_and_graphs_are_for_predictions(saved: Path) -> None:
    for option in (("--host", "reference"), ("--cuda-graph",)):
        done = run("profile", saved, *option)
        assert (done.code, done.out) == (1, "")
        assert "name a GPU (--gpu)" in done.err


def test_a_pipe_gets_whole_lines_without_colour_or_blanks_at_their_ends(saved: Path) -> None:
    notes = ("upper bound: " + "very " * 100 + "long",)
    made = step()
    Trace(made.calls, made.allocations, made.framework, notes=notes).save(saved)
    for arguments in (("predict", saved, *GPUS, "--by", "op"), ("devices",), ("trace", saved)):
        shown = run(*arguments, env={"COLUMNS": "40"}).out
        assert not ESCAPE.search(shown)
        assert not [line for line in shown.splitlines() if line != line.rstrip()]
    assert f"note: {notes[0]}" in run("predict", saved, *GPUS, env={"COLUMNS": "40"}).out


def test_a_narrow_terminal_gets_fewer_columns_not_broken_ones(saved: Path) -> None:
    shown = ESCAPE.sub("", run_in_terminal("predict", saved, *GPUS, COLUMNS="60"))
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 60
    heading = next(line for line in lines if line.startswith("GPU"))
    assert heading.split()[:2] == ["GPU", "step"]
    assert "host busy" not in heading
    assert [line.split()[0] for line in lines if line.startswith(("a100", "l4", "t4"))] == [
        *("a100-sxm-80gb", "l4", "t4"),
    ]


def test_a_terminal_gets_colours_unless_no_color_is_set(saved: Path) -> None:
    colour = re.compile(r"\x1b\[(\d+;)*3[0-7]m")
    assert colour.search(run_in_terminal("predict", saved, "--gpu", "l4"))
    assert not colour.search(run_in_terminal("predict", saved, "--gpu", "l4", NO_COLOR="1"))


def test_an_error_is_one_line_on_stderr_and_exit_code_1(saved: Path) -> None:
    done = run_process("predict", saved, "--gpu", "h1000")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith('error: unknown device "h1000"; did you mean')
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["predict", "resnet50"], id="no gpu"),
        pytest.param(["predict", "--gpu", "l4"], id="no target"),
        pytest.param(["predict", "resnet50", "--gpu", "l4", "--fast"], id="unknown option"),
        pytest.param(["forecast"], id="unknown command"),
        pytest.param([], id="nothing"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert "Usage: wavecast" in done.err + done.out


@pytest.mark.parametrize("command", ["devices", "trace", "predict"])
def test_help_has_examples(command: str) -> None:
    done = run(command, "--help")
    assert done.code == 0
    examples = [line for line in done.out.splitlines() if line.startswith(f"  wavecast {command}")]
    assert len(examples) >= 2


def test_the_version_is_printed() -> None:
    assert run("--version").out == f"wavecast {wavecast.__version__}\n"


def test_python_dash_m_wavecast_is_the_same_program() -> None:
    command = [sys.executable, "-m", "wavecast", "devices", "l4"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == run("devices", "l4").out


def test_a_reader_that_stops_reading_is_no_crash() -> None:
    command = f"{sys.executable} -m wavecast devices --json | head -c 10"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert len(done.stdout) == 10
    assert "Traceback" not in done.stderr


def test_a_step_is_traced_saved_and_predicted_from_either(network: Path, tmp_path: Path) -> None:
    target, out = f"{network}:make_step", tmp_path / "step.json.gz"
    done = run("trace", target, "--batch", "8", "-o", out)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(f"saved as {out}\n")
    assert wavecast.load_trace(out).samples == 8
    direct = json.loads(run("predict", target, "--batch", "8", *GPUS, "--json").out)
    again = json.loads(run("predict", out, *GPUS, "--json").out)
    assert direct["predictions"] == again["predictions"]


def test_attention_is_traced_for_each_family_of_gpus(network: Path, tmp_path: Path) -> None:
    target, out = f"{network}:make_attention", tmp_path / "attention.json.gz"
    gpus = ("--gpu", "h100-sxm-80gb", "--gpu", "k80")
    direct = json.loads(run("predict", target, *gpus, "--json").out)
    ops = [{part["name"] for part in row["by_op"]} for row in direct["predictions"]]
    assert ops[0] != ops[1]
    run("trace", target, "--gpu", "h100-sxm-80gb", "-o", out)
    again = json.loads(run("predict", out, *gpus, "--json").out)
    assert again["predictions"][0] == direct["predictions"][0]
    assert again["notes"] == [f"on k80: {again['predictions'][1]['notes'][0]}"]
    shown = run("predict", out, *gpus).out
    assert "note: on k80: the trace was made for compute capability 9.0" in shown
    needed = json.loads(run("memory", out, *gpus, "--json").out)
    assert [len(row["notes"]) for row in needed] == [0, 1]
    for command in ("memory", "fits", "profile"):
        assert "on k80: the trace was made for" in run(command, out, *gpus).out


def test_progress_is_shown_on_a_terminal_only(
    network: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(network.parent)
    target = f"{network.name}:make_step"
    # FORCE_COLOR is rich's way to be told that it writes to a terminal.
    shown = run("trace", target, "--json", env={"FORCE_COLOR": "1"})
    assert f"tracing {target}" in shown.err
    assert "tracing" not in shown.out
    assert run("trace", target, "--json").err == ""


def test_an_interrupt_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(wavecast, "devices", interrupted)
    assert run("devices").code == 130


def test_what_a_step_prints_stays_out_of_the_json(tmp_path: Path) -> None:
    path = tmp_path / "talkative.py"
    path.write_text(
        "import torch\n"
        "def make_step():\n"
        "    x = torch.ones(8, device='cuda', requires_grad=True)\n"
        "    def step():\n"
        "        print('loss')\n"
        "        x.sum().backward()\n"
        "    return step\n"
    )
    done = run("predict", f"{path}:make_step", "--gpu", "l4", "--json")
    assert json.loads(done.out)["predictions"][0]["gpu"] == "l4"
    assert "loss" in done.err


def test_advice_stands_beside_a_prediction(network: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    asked = ("predict", f"{network}:make_step", "--gpu", "l4", "--advice")
    told = run(*asked, "--html", page)
    assert told.code == 0, told.err
    assert "On l4 the step takes" in told.out
    assert "What does not help here" in page.read_text(encoding="utf-8")
    found = json.loads(run(*asked, "--json").out)
    assert {one["name"] for one in found["advice"]["proposals"]} > {"bf16", "fused_optimizer"}
    assert "compile" not in {one["name"] for one in found["advice"]["proposals"]}


def test_advice_is_of_one_gpu_as_advise_gives_it(saved: Path) -> None:
    several = run("predict", saved, *GPUS, "--advice")
    assert "--advice is for one GPU, and 3 were named" in several.err
    spread = run("predict", saved, "--gpu", "l4", "--advice", "--parallel", "data=2")
    assert "--advice cannot be used with --parallel" in spread.err
