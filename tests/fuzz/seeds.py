"""Seeds of the fuzzers: real files, and files that the code of the project writes."""

from __future__ import annotations

import gzip
import json
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import made
import numpy as np
import run_samples as samples
import tiny_configs
from fuzz import forms
from fuzz.forms import Mutate
from kineto_file import AUTOGRAD, File

from wavecast import files
from wavecast.frameworks.pytorch.compiled.plans import store_plan
from wavecast.predictors.mlp import MlpNetwork, write_model
from wavecast.traces.joining import Counted
from wavecast.traces.step import Trace

SAMPLES = Path(__file__).parents[1] / "samples"
OLD = SAMPLES / "version-0.1"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Part:
    """A file of a seed."""

    content: bytes
    mutate: Mutate
    chance: int = 1
    """How often this file is the one that is changed, beside those of the other files."""


@dataclass(frozen=True)
class Seed:
    """Files that are read together. The first one is the file that the reader is given."""

    parts: dict[str, Part]

    @property
    def main(self) -> str:
        """The name of the file that the reader is given."""
        return next(iter(self.parts))


def one(name: str, content: bytes, mutate: Mutate = forms.text) -> Seed:
    """A seed of a single file."""
    return Seed({name: Part(content, mutate)})


def _written(trace: Trace) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        trace.save(path)
        return path.read_bytes()


@cache
def traces() -> list[Seed]:
    """Traces made by hand, of version 0.1, measured, and of small networks that are traced."""
    contents = [_written(made.step()), *map(_written, _traced())]
    contents += [(OLD / name).read_bytes() for name in ("trace.json.gz", "measured-step.json.gz")]
    return [one("step.json.gz", content, forms.trace) for content in contents]


def _traced() -> list[Trace]:
    """Small networks of different kinds, and a script, traced as a user would."""
    import torch
    from networks import training
    from torch import nn

    import wavecast

    attention = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    images = nn.Sequential(
        *(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(4 * 9, 3)),
    )

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.lstm = nn.Embedding(20, 8), nn.LSTM(8, 8, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            states: torch.Tensor = self.lstm(self.words(x.long().abs() % 20))[0]
            return states

    made_of = {attention: (2, 4, 16), images: (2, 3, 8, 8), Recurrent(): (2, 5)}
    steps = [
        wavecast.trace(training(lambda model=model: model, shape, torch.optim.AdamW))  # type: ignore[misc]
        for model, shape in made_of.items()
    ]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(_SCRIPT, encoding="utf-8")
        steps.append(wavecast.run_script(str(script)).trace)
    return steps


_SCRIPT = """\
import torch
model = torch.nn.Linear(8, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    optimizer.step()
"""


@cache
def profiles() -> list[Seed]:
    """Profiler files with iterations, shapes, copies, two streams and a backward thread."""
    file = File(traceName="x.json", with_flops=1)
    shapes: dict[str, Any] = {"Input Dims": [[8, 16], [16, 4]], "Input type": ["float", "float"]}
    for number in (3, 4):
        with file.annotation(f"ProfilerStep#{number}"):
            with file.inside("aten::linear"):
                file.op("aten::addmm", "gemm", us=20.0, **shapes)
            file.op("aten::relu", "vectorized", **_dims([8, 4]))
            file.op("aten::copy_", "Memcpy HtoD")
            with file.on(AUTOGRAD), file.inside("autograd::engine::evaluate_function: MmBackward0"):
                file.op("aten::mm", "gemm_2", **shapes)
            with file.annotation("Optimizer.step#SGD.step"):
                file.op("aten::_foreach_add_", "multi_tensor_apply_kernel", stream=8)
            file.wait()
    bare = File()
    bare.op("aten::mm", "gemm", **shapes)
    small = File(deviceProperties=[])
    small.launch("k", us=5.0, grid=[1, 2, 3], block=[32, 1, 1])
    text = file.text().encode()
    return [
        one("profile.json", text, forms.profile),
        one("profile.json.gz", gzip.compress(text, mtime=0), forms.profile),
        one("profile.json", bare.text().encode(), forms.profile),
        one("profile.json", small.text().encode(), forms.profile),
        one("profile.json", json.dumps({"traceEvents": _unbound()}).encode(), forms.profile),
    ]


def _dims(*shapes: list[int]) -> dict[str, Any]:
    return {"Input Dims": list(shapes)}


def _unbound() -> list[object]:
    """An op whose result is as long as its input says: what it may return must be limited."""
    file = File()
    file.op("aten::unbind", "k", **(_dims([20, 2], []) | {"Concrete Inputs": ["", "0"]}))
    return list(file.events)


@cache
def caffe() -> list[Seed]:
    return [one("train.log", samples.caffe_log(300).encode())]


@cache
def dllogger() -> list[Seed]:
    content = samples.dllogger_log(2, 40).encode()
    return [one("log.json", content, forms.json_lines)]


@cache
def tensorboard() -> list[Seed]:
    written = (SAMPLES / "events.out.tfevents.written").read_bytes()
    contents = (samples.tensorboard_events(300), written)
    return [one("events.out.tfevents.1.host", content, forms.events) for content in contents]


@cache
def lightning() -> list[Seed]:
    folder = SAMPLES / "lightning"
    return [
        one("metrics.csv", samples.lightning_metrics(300).encode()),
        Seed(
            {
                "metrics.csv": Part((folder / "metrics.csv").read_bytes(), forms.text, 3),
                "hparams.yaml": Part((folder / "hparams.yaml").read_bytes(), forms.text),
            }
        ),
    ]


@cache
def trainer() -> list[Seed]:
    config = json.dumps({"_name_or_path": "bert", **tiny_configs.BERT}).encode()
    contents = (
        samples.trainer_state().encode(),
        (SAMPLES / "trainer" / "trainer_state.json").read_bytes(),
    )
    return [
        Seed(
            {
                "trainer_state.json": Part(content, forms.json_file, 4),
                "config.json": Part(config, forms.json_file),
            }
        )
        for content in contents
    ]


@cache
def mlflow() -> list[Seed]:
    with tempfile.TemporaryDirectory() as folder:
        samples.write_mlflow(Path(folder), samples.mlflow_metric(300))
        paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        names = [str(path.relative_to(folder)) for path in paths]
        parts = {
            name: Part(path.read_bytes(), forms.text, 4 if "metrics" in name else 1)
            for name, path in zip(names, paths, strict=True)
        }
    return [Seed({"meta.yaml": parts.pop("meta.yaml"), **parts})]


@cache
def tables() -> list[Seed]:
    rows = [
        {"model": "a", "batch": batch, "iterations": count, "seconds": 0.1 * batch * count}
        for batch in (8, 16, 32)
        for count in (100, 200)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return [
        one("runs.csv", samples.TABLE.encode()),
        one("runs.csv", (ROOT / "examples" / "runs.csv").read_bytes()),
        one("runs.json", json.dumps(rows).encode(), forms.json_file),
        one("runs.jsonl", lines, forms.json_lines),
    ]


@cache
def suite_results() -> list[Seed]:
    return [one("suite.csv", (OLD / "suite.csv").read_bytes())]


@cache
def layer_rows() -> list[Seed]:
    return [one("layers.csv", (OLD / "layers.csv").read_bytes())]


@cache
def stores() -> list[Seed]:
    return [one("runs.sqlite", (OLD / "runs.sqlite").read_bytes(), forms.database)]


@cache
def devices() -> list[Seed]:
    paths = (OLD / "l4.toml", files.shipped("devices") / "h100-sxm-80gb.toml")
    return [one("mine.toml", path.read_bytes()) for path in paths]


@cache
def clusters() -> list[Seed]:
    names = ("dgx-h100", "lambda-bridges", "pcie-8")
    paths = (files.shipped("clusters") / f"{name}.toml" for name in names)
    return [one("mine.toml", path.read_bytes()) for path in paths]


@cache
def hosts() -> list[Seed]:
    return [one("host.toml", (OLD / "host.toml").read_bytes())]


_CORRECTIONS = b"""\
gpu = "l4"
date = 2026-11-18
steps = 2
ops = [
    "0.12 2e-05 loss/fp32 - - aten.mse_loss",
    "-0.05 3e-06 other/fp32 concatenation 1,12.5,0.5 aten.cat",
]
swept = ["0.3 4e-05 other/fp32 concatenation 2,12,0.5 aten.cat"]
"""


@cache
def corrections() -> list[Seed]:
    return [one("l4.toml", _CORRECTIONS)]


@cache
def checks() -> list[Seed]:
    """The file of checks of the example."""
    return [one("wavecast.toml", (ROOT / "examples" / "check" / "wavecast.toml").read_bytes())]


@cache
def baselines() -> list[Seed]:
    """The baseline of the example, up to its second step."""
    path = ROOT / "examples" / "check" / "wavecast-baseline.toml"
    return [one("baseline.toml", path.read_bytes().partition(b"\n[steps.language.l4]")[0])]


@cache
def networks() -> list[Seed]:
    """A network of two layers with the card of a shipped one."""
    card = files.shipped_toml("models/mlp-linear.toml")
    count = len(card["ranges"])
    weights = (
        (np.full((4, count), 0.01, np.float32), np.full(4, 0.1, np.float32)),
        (np.full((1, 4), 0.1, np.float32), np.full(1, 0.1, np.float32)),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "linear.npz"
        write_model(path, MlpNetwork(np.ones(count), np.full(count, 1e-3), weights), card)
        return [
            Seed(
                {
                    "linear.npz": Part(path.read_bytes(), forms.arrays),
                    "linear.toml": Part(path.with_suffix(".toml").read_bytes(), forms.text, 2),
                }
            )
        ]


@cache
def configs() -> list[Seed]:
    chosen = (tiny_configs.BERT, tiny_configs.LLAMA, tiny_configs.GPT2)
    return [one("config.json", json.dumps(config).encode(), forms.json_file) for config in chosen]


@cache
def counters() -> list[Seed]:
    from wavecast.frameworks import ncu

    counted = {("gemm", 8, 128): Counted(1e9, 1e6), ("relu<float>", 64, 256): Counted(1e6, 2e6)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counters.json"
        ncu.save(counted, path)
        return [one("counters.json", path.read_bytes(), forms.json_file)]


@cache
def plans() -> list[Seed]:
    with tempfile.TemporaryDirectory() as folder:
        store_plan("seed", made.graph_plan(), Path(folder))
        return [one("seed.plan", (Path(folder) / "seed.plan").read_bytes(), forms.plan)]


@cache
def counter_tables() -> list[Seed]:
    heading = '"ID","Kernel Name","Block Size","Grid Size","Metric Name","Metric Value"\n'
    rows = "".join(
        f'"{number}","void gemm<float>(int)","(128, 1, 1)","({number}, 2, 1)","{name}","1,024"\n'
        for number in range(1, 4)
        for name in ("dram__bytes_read.sum", "dram__bytes_write.sum")
    )
    return [one("ncu.csv", f"==PROF== Connected\n{heading}{rows}".encode())]


@cache
def layer_times() -> list[Seed]:
    lines = [
        "I1107 15:24:11.500000  4242 caffe.cpp:397] Average time per layer:",
        *(
            f"I1107 15:24:11.500010  4242 caffe.cpp:400] {name:>10}\t{which}: {time} ms."
            for name, time in (("data", 0.00135), ("conv1", 4.26304), ("relu1", 0.45344))
            for which in ("forward", "backward")
        ),
        "I1107 15:24:11.500090  4242 caffe.cpp:408] Average Forward pass: 24.9 ms.",
        "I1107 15:24:11.500100  4242 caffe.cpp:410] Average Backward pass: 44.2 ms.",
    ]
    return [one("time.log", ("\n".join(lines) + "\n").encode())]
