"""Commands that print JSON, at least one of each, with the files that they need."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hostile.commands import write_files
from kineto_file import File
from made import call, mm, relu, step

import wavecast
from wavecast.traces.step import Kernel, Measurement, Trace

SAMPLES = Path(__file__).parents[1] / "samples" / "version-0.1"
ROOT = Path(__file__).parents[2]

GPT = "gpt --layers 2 --hidden 64 --heads 4 --vocab 64 --seq 16"
COMMANDS: dict[str, tuple[str, ...]] = {
    "check": ("--update", "", "--target mine"),
    "clusters": ("", "dgx-h100"),
    "campaign run": ("small.toml --store campaigns.sqlite --processes 1",),
    "campaign resume": ("small --store campaigns.sqlite --processes 1",),
    "campaign status": ("--store campaigns.sqlite",),
    "campaign export": ("small -o exported --store campaigns.sqlite",),
    "capacity": ("rates.toml --draws 1 --weeks 1 --buy l4=2500",),
    "plan": ("planned.toml --time-limit 1s --workers 1",),
    "simulate": ("planned.toml --policy fifo --policy ours",),
    "parallelize": (f"{GPT} --gpu h100-sxm-80gb --gpus 2 --global-batch 4 --show 2",),
    "advise": ("b8.json.gz --gpu l4",),
    "choose": (
        "b8.json.gz --gpu l4 --gpu t4 --gpu h100-sxm-80gb --samples 1e6",
        "b8.json.gz --gpu l4 --gpu k80 --iterations 1000 --budget 5 --deadline 1h",
    ),
    "prices": ("", "--gpu l4 --spot"),
    "scale": (f"{GPT} --gpu h100-sxm-80gb --up-to 2",),
    "predict": (
        "good.json.gz --gpu l4 --gpu mi300x",
        "good.json.gz --gpu l4 --by op",
        "good.json.gz --gpu l4 --advice",
        "measured.json.gz --gpu l4",
        f"{GPT} --gpu h100-sxm-80gb --parallel data=2",
        "nothing_known.json.gz --gpu l4",
    ),
    "extrapolate": ("b8.json.gz b16.json.gz b32.json.gz --batch 64 --gpu l4",),
    "compare": ("good.json.gz b8.json.gz --gpu l4 --gpu t4", "measured.json.gz b8.json.gz -g l4"),
    "evaluate": ("measured.json.gz", "net=measured.json.gz net=dcgan-b32.json.gz"),
    "devices": ("", "l4 mi300x k80"),
    "calibrate": ("--name here", "--list", "--step measured.json.gz"),
    "design": (
        "--batches 8,16,32 --iterations 100,200,500 --budget 100 --startup 5 --iteration 0.005 "
        "--sample 0.0007",
    ),
    "collect": ("linear --device cpu --count 2 -o rows.csv",),
    "fit": ("--runs runs.csv --split 16,1000", "linear.csv -o net.npz --epochs 1 --width 4"),
    "memory": (
        "good.json.gz",
        "good.json.gz --gpu l4 --gpu mi300x",
        "steps.py:fine -g l4 --advice",
    ),
    "fits": ("good.json.gz --gpu l4 --gpu mi300x",),
    "max-batch": ("large.py:make_step --gpu l4",),
    "profile": ("measured.json.gz", "good.json.gz --gpu l4"),
    "run": ("--gpu l4 script.py", "--gpu l4 --memory script.py"),
    "trace": ("steps.py:fine",),
    "measure": ("idle.py:make_step",),
    "import": ("profile.json.gz",),
    "runs add": ("runs.csv --store store.sqlite", "no_runs.csv --store store.sqlite"),
    "runs campaign": (
        "-o grid.csv --device cpu -m a3c --batches 1,2,3 --iterations 1,2,3 --split 2,3",
    ),
    "runs list": ("--store store.sqlite",),
    "runs export": ("out.csv --store store.sqlite",),
    "runs predict": (
        "made --from runs.csv --batch 64 --iterations 1000",
        "made --from runs.csv --batch 64 --iterations 1000 --law",
    ),
    "layers fit": ("dcgan-b32.json.gz dcgan-b128.json.gz -o lines.json",),
    "layers predict": ("dcgan-b128.json.gz --from lines.json",),
    "suite list": ("",),
    "suite predict": ("--gpu l4 --model dcgan --scale 0.25 --precision fp32",),
    "suite run": ("-o suite-run.csv --model dcgan --scale 0.25 --precision fp32",),
    "suite observe": ("suite.csv",),
    "suite show": ("suite.csv",),
    "suite train": ("", "--to-quality --domain 'reinforcement learning' --price 1"),
    "doctor": ("",),
}
"""The arguments of each command, in the order in which they run."""

LARGE = """
import torch
def make_step(batch=8):
    model = torch.nn.Linear(1024, 1024).cuda()
    data = torch.randn(batch * 65536, 1024, device="cuda")
    return lambda: model(data).sum().backward()
"""
SCRIPT = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(20):
    optimizer.zero_grad()
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
"""
IDLE = "def make_step():\n    return lambda: None\n"
PLANNED = """
[[jobs]]
name = "traced"
target = "b8.json.gz"
iterations = 1e6
[[jobs]]
name = "measured"
hours = { "l4" = 10, "t4" = 20 }
deadline = "24h"
[cluster]
[[cluster.pools]]
gpu = "l4"
gpus = 8
[[cluster.pools]]
gpu = "t4"
gpus = 4
"""
RATES = PLANNED.replace("[[jobs]]", "[[jobs]]\nruns_per_week = 3").replace("deadline", "due_in")
CAMPAIGN = '[[predict]]\ntargets = ["good.json.gz"]\ngpus = ["l4", "t4"]\n'
CHECKS = 'gpus = ["l4", "t4"]\n[targets.mine]\ntarget = "good.json.gz"\n'


def write_sample_files(folder: Path) -> None:
    """Write the files that the commands name."""
    from lab.measured import campaigns

    write_files(folder)
    texts = {"large.py": LARGE, "script.py": SCRIPT, "idle.py": IDLE, "wavecast.toml": CHECKS}
    texts |= {"planned.toml": PLANNED, "rates.toml": RATES, "small.toml": CAMPAIGN}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    shutil.copy(SAMPLES / "suite.csv", folder)
    shutil.copy(ROOT / "measurements/h200/layers/h200-sxm-linear-0.csv", folder / "linear.csv")
    traces = campaigns.traces("suite")
    for batch in (32, 128):
        traces[f"dcgan-b{batch}-fp32"].save(folder / f"dcgan-b{batch}.json.gz")
    odd = tuple(each for each in step() if "mine" in each.op.name)
    Trace(odd).save(folder / "nothing_known.json.gz")
    profile = File()
    with profile.annotation("ProfilerStep#1"):
        shapes: dict[str, Any] = {"Input Dims": [[8]], "Input type": ["float"]}
        profile.op("aten::relu", "relu_kernel", **shapes)
    record = profile.fields | {"traceEvents": profile.events}
    (folder / "profile.json.gz").write_bytes(gzip.compress(json.dumps(record).encode()))


def measured() -> Trace:
    """A product and an activation that took 8 ms on a T4."""
    kernels = (Kernel("sgemm", 6e-3, start_s=0.0),), (Kernel("relu", 2e-3, start_s=6e-3),)
    calls = call(mm(2048, 2048, 2048)), call(relu(1 << 20))
    ran = tuple(replace(one, kernels=own) for one, own in zip(calls, kernels, strict=True))
    return Trace(ran, measurement=Measurement("Tesla T4", seconds=1e-2, gpu_s=8e-3, host_s=1e-3))


def pretend_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make commands fast and possible that measure a GPU, a host, or train for minutes."""
    from wavecast.campaigns import suite_runs
    from wavecast.frameworks.pytorch.measurement import calibration, iteration, layers, whole_runs
    from wavecast.hardware.kept_hosts import reference_times
    from wavecast.runs.suite_results import read_results
    from wavecast.suite import demonstrations

    def train(one: Any, seed: int = 1) -> Any:
        return demonstrations.SmallTraining(one.domain, "net", "task", "accuracy", 9, 0.1, 1.0, 0.9)

    def no_suite(*_: Any, **__: Any) -> Any:
        return read_results(SAMPLES / "suite.csv")

    monkeypatch.setattr(wavecast, "measure", lambda run_step, **options: measured())
    monkeypatch.setattr(iteration, "require_gpu", lambda: None)
    monkeypatch.setattr(calibration, "time_host", lambda device="cpu": reference_times()[device])
    monkeypatch.setattr(whole_runs, "share_in", lambda seconds: 0.01)
    monkeypatch.setattr(layers, "gpu_id", lambda device="cuda": "t4" if device == "cuda" else "cpu")
    monkeypatch.setattr(suite_runs, "run", no_suite)
    monkeypatch.setattr(demonstrations, "train", train)
