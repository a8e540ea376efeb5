"""Wrong uses of the command line: how they are written down and checked, and files for them."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from made import mm, step
from shell import Outcome, run

from wavecast.traces.step import Call, Kernel, Measurement, Phase, Trace

STEPS = """
import torch
from torch import nn

NUMBER = 4

def _model():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).cuda()
    return model, torch.randn(2, 8, device="cuda")

def fine(batch=2):
    model, data = _model()
    def step():
        model(data).sum().backward()
    return step

def no_batch():
    return fine()

def raises():
    def step():
        raise RuntimeError("the data is gone")
    return step

def fails_to_build():
    raise ValueError("no such data set")

def wrong_shape():
    model, _ = _model()
    return lambda: model(torch.randn(2, 9, device="cuda"))

def returns_none():
    pass

def returns_int():
    return 4

def needs(learning_rate):
    return fine()

def needs_batch(batch):
    return fine(batch)

def on_cpu():
    model = nn.Linear(8, 8)
    return lambda: model(torch.randn(2, 8)).sum().backward()

def does_nothing():
    return lambda: None

async def waits():
    return fine()

def yields():
    yield fine()

def async_step():
    async def step():
        pass
    return step

def graph():
    model, data = _model()
    def step():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(data)
        graph.replay()
    return step

def exits():
    def step():
        raise SystemExit(3)
    return step

builtin = min
"""

CUSTOM = """
import torch

torch.library.define("badinput::secret", "(Tensor x) -> Tensor")

def make_step():
    data = torch.randn(2, 8, device="cuda")
    return lambda: torch.ops.badinput.secret(data)
"""

MINE = """
name = "Mine"
vendor = "Me"
architecture = "Own"
[nominal]
memory_bytes = {memory}
memory_bytes_per_s = 1e12
fp32_flops = 2e13
"""


RUNS = "model,batch,iterations,seconds,gpu,gpus\n" + "".join(
    f"made,{batch},{iterations},{1 + iterations * (0.01 + batch / 1000)},t4,1\n"
    for batch in (8, 16, 32)
    for iterations in (100, 200, 400)
)


def write_files(folder: Path) -> None:
    """Write good files and bad ones into a folder."""
    files = {
        "steps.py": STEPS,
        "custom.py": CUSTOM,
        "empty.py": "",
        "broken.py": "import torch\nraise RuntimeError('no licence')\n",
        "syntax.py": "def make_step(:\n",
        "needy.py": "import a_library_that_nobody_has\n",
        "script.py": "import sys\nsys.exit(2)\n",
        "not_toml.toml": "name = Mine",
        "misspelt.toml": MINE.format(memory=17179869184).replace("memory_bytes =", "memory_byte ="),
        "in_gb.toml": MINE.format(memory=16),
        "notes.json": "{}",
        "runs.csv": RUNS,
        "no_runs.csv": "model,batch\nmade,8\n",
        "layers.csv": "in_features,out_features\n",
    }
    for name, content in files.items():
        (folder / name).write_text(content)
    (folder / "a_directory").mkdir()
    _write_traces(folder)


def _write_traces(folder: Path) -> None:
    good = folder / "good.json.gz"
    step().save(good)
    content = good.read_bytes()
    (folder / "cut.json.gz").write_bytes(content[: len(content) // 2])
    (folder / "noise.json.gz").write_bytes(bytes(range(256)) * 8)
    Trace(()).save(folder / "nothing.json.gz")
    document = json.loads(gzip.decompress(content))

    def write(name: str, changed: Any) -> None:
        (folder / name).write_bytes(gzip.compress(json.dumps(changed).encode()))

    _measured().save(folder / "measured.json.gz")
    for batch in (8, 16, 32):
        step(samples=batch).save(folder / f"b{batch}.json.gz")
    write("future.json.gz", document | {"version": 99})
    write("altered.json.gz", document | {"trace": document["trace"] | {"samples": 64}})
    write("other.json.gz", {"hello": "world"})


def _measured() -> Trace:
    """A product that took 6 ms on a T4."""
    kernel = Kernel("sgemm", 6e-3, grid=(4096, 1, 1), block=(256, 1, 1), registers=32)
    product = Call(mm(2048, 2048, 2048), Phase.FORWARD, kernels=(kernel,), host_s=1e-4)
    whole = Measurement("Tesla T4", seconds=1e-2, gpu_s=6e-3, host_s=1e-4)
    return Trace((product,), measurement=whole)


@dataclass(frozen=True)
class Wrong:
    """A wrong command, its exit code, and what its message must say."""

    about: str
    command: str
    says: tuple[str, ...]
    code: int = 1


def check(done: Outcome, code: int, says: tuple[str, ...]) -> None:
    """Check that a command did nothing but say these things: in one line, or below its usage."""
    assert (done.code, done.out) == (code, "")
    assert "Traceback" not in done.err
    # What a script is not kept from, as root, is said before anything else.
    err = "".join(line for line in done.err.splitlines(True) if not line.startswith("wavecast: "))
    if code == 1 or not err.startswith(("Usage: ", "Error: ")):  # those two are typer's
        assert err.startswith("error: ")
        assert err.count("\n") == 1
    for part in says:
        assert part in done.err


def check_wrong(wrong: Wrong) -> None:
    """Run a wrong command in this process, and check what it says."""
    words = [word if word != "''" else "" for word in wrong.command.split()]
    check(run(*words, env={"NO_COLOR": "1"}), wrong.code, wrong.says)
