"""Wrong uses of the command line: what each must say, and the files that they name."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from made import mm, step
from shell import Outcome

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


def check(done: Outcome, code: int, says: Iterable[str]) -> None:
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


# Each line is a command and what its message must say. Where a command exits with 2, it was called
# with wrong words, or an exit code of 1 would be its answer "no".


REFUSED: tuple[tuple[str, ...], ...] = (
    ("predict good.json.gz --gpu zx81", '"zx81"', "wavecast devices"),
    ("predict good.json.gz --gpu h1O0-sxm", "did you mean", "h100-sxm-80gb"),
    ("predict good.json.gz --gpu a100", "fits several", "a100-pcie-40gb"),
    ("predict good.json.gz --gpu ''", 'unknown device ""', "list them"),
    ("predict '' --gpu l4", "target is empty", "FILE.py:FUNCTION"),
    ("predict resnet5O --gpu l4", "'resnet5O'", "did you mean resnet50"),
    ("predict xyzzy --gpu l4", "'xyzzy'", "known: resnet50", "A target is"),
    ("predict a_directory --gpu l4", "is a directory", "FILE.py:FUNCTION"),
    ("predict gone.py:make --gpu l4", "no file gone.py", "looked in"),
    ("predict steps.py --gpu l4", "without an optimizer step", "make_step"),
    ("predict steps.py: --gpu l4", "does not name a function", "FILE.py:FUNCTION"),
    ("predict : --gpu l4", "does not name a function", "FILE.py:FUNCTION"),
    ("predict .steps:fine --gpu l4", "does not name a function"),
    ("predict steps:fine:fine --gpu l4", "no module steps:fine", "a target is"),
    ("predict gone.away:make --gpu l4", "no module gone.away", "'gone'"),
    ("predict json.gone:make --gpu l4", "no module json.gone"),
    ("predict steps.py:fein --gpu l4", "no function 'fein'", "it has"),
    ("predict empty.py:make --gpu l4", "no function 'make'", "no function at all"),
    ("predict steps.py:NUMBER --gpu l4", "not a function but of type int", "name one"),
    ("predict broken.py:make --gpu l4", "fails on import", "no licence", ":2"),
    ("predict syntax.py:make --gpu l4", "fails on import", "syntax.py:1"),
    ("predict needy.py:make --gpu l4", "a_library_that_nobody_has", "install"),
    ("predict script.py:make --gpu l4", "sys.exit(2)", "__name__"),
    ("predict notes.json --gpu l4", "notes.json", "no traceEvents"),
    ("predict steps.py:needs --gpu l4", "needs a value for learning_rate"),
    ("predict steps.py:needs_batch --gpu l4", "for batch", "use --batch"),
    ("predict steps.py:no_batch -b 4 --gpu l4", "has no parameter 'batch'", "leave"),
    ("predict steps.py:fine -p bf16 --gpu l4", "has no parameter 'precision'"),
    ("predict resnet50 --batch 0 --gpu l4", "at least 1, not 0"),
    ("predict resnet50 --batch -3 --gpu l4", "at least 1, not -3"),
    ("predict resnet50 -p int4 --gpu l4", "'int4'", "known: fp32, tf32"),
    ("predict good.json.gz --gpu l4 --host-factor -1", "-1: it is above 0"),
    ("predict good.json.gz --gpu l4 --host-factor nan", "nan: it is above 0"),
    ("predict good.json.gz --gpu l4 --host-factor inf", "inf: it is above 0"),
    ("predict steps.py:raises --gpu l4", "RuntimeError", "steps.py:", "is gone"),
    ("predict steps.py:fails_to_build --gpu l4", "ValueError", "no such data"),
    ("predict steps.py:wrong_shape --gpu l4", "RuntimeError", "steps.py:"),
    ("predict steps.py:returns_none --gpu l4", "NoneType", "return the function"),
    ("predict steps.py:returns_int --gpu l4", "of type int", "return the function"),
    ("predict steps.py:on_cpu --gpu l4", "no op on the GPU", ".cuda()"),
    ("predict steps.py:does_nothing --gpu l4", "no op on the GPU", ".cuda()"),
    ("predict steps.py:waits --gpu l4", "an async function", "plain function"),
    ("predict steps.py:yields --gpu l4", "a generator", "plain function"),
    ("predict steps.py:async_step --gpu l4", "an async function", "the step that"),
    ("predict steps.py:graph --gpu l4", "graph", "steps.py:"),
    ("predict custom.py:make_step --gpu l4", "badinput", "custom.py:"),
    ("predict steps.py:exits --gpu l4", "sys.exit(3)", "return"),
    ("predict steps.py:builtin --gpu l4", "which arguments it takes", "def"),
    ("predict gone.json.gz --gpu l4", "no trace file gone.json.gz"),
    ("predict cut.json.gz --gpu l4", "cut.json.gz", "truncated or damaged"),
    ("predict noise.json.gz --gpu l4", "noise.json.gz", "gzip"),
    ("predict future.json.gz --gpu l4", "version 99", "trace the step"),
    ("predict altered.json.gz --gpu l4", "checksum", "altered"),
    ("predict other.json.gz --gpu l4", "not a wavecast trace"),
    ("predict nothing.json.gz --gpu l4", "has no ops", "trace the step again"),
    ("predict good.json.gz --batch 4 --gpu l4", "fixed", "trace the step"),
    ("predict made --from runs.csv", "wavecast runs predict MODEL --from SOURCE"),
    ("predict good.json.gz --gpu l4 -n 5", "wavecast runs predict MODEL --from SOURCE"),
    ("predict good.json.gz --gpu l4 --gpus 8", "wavecast runs predict MODEL --from SOURCE"),
    (
        "predict good.json.gz --gpu l4 --inner-modules 3",
        "wavecast runs predict MODEL --from SOURCE",
    ),
    ("predict good.json.gz --gpu l4 --phase testing", "wavecast runs predict MODEL --from SOURCE"),
    (
        "predict good.json.gz --gpu l4 --method ordinary",
        "wavecast runs predict MODEL --from SOURCE",
    ),
    ("predict good.json.gz --gpu l4 --samples 5 --tokens 5", "--samples and"),
    ("predict good.json.gz --gpu l4 --checkpoint-time 5s", "--iterations"),
    ("predict good.json.gz --gpu l4 --epochs 5", "--dataset-samples"),
    (
        "predict good.json.gz --gpu l4 --iterations 5 --startup-time soon",
        "--startup-time is a time such as 48h",
        "'soon'",
    ),
    ("predict good.json.gz --gpu l4 --price l4=free", "write GPU=USD"),
    ("predict good.json.gz --gpu l4 --price -1", "--price -1 cannot be"),
    ("predict good.json.gz --gpu l4 --lifetime-years 0", "add --buy"),
    ("predict good.json.gz --gpu l4 --host-factor 0", "it is above 0"),
    ("predict good.json.gz --gpu l4 --parallel ,", "names no axis", "data=8"),
    (
        "predict good.json.gz --gpu l4 --parallel data=99999999",
        "99,999,999 GPUs",
        "at most 1,000,000",
    ),
    ("predict good.json.gz --gpu ../l4", '"../l4" is a path'),
    (
        f"predict {'x' * 300} --gpu l4",
        "of 300 letters is too long",
    ),
    ("predict resnet50 --gpu l4 --origin t4", "--origin", "not measured"),
    ("predict good.json.gz --gpu l4 --origin t4", "nothing to scale"),
    ("predict resnet50 --gpu l4 --predictor wave", "--predictor wave", "measure"),
    (
        "predict good.json.gz --gpu l4 --predictor habitat",
        "--predictor habitat",
        "nothing to scale",
    ),
    (
        "predict measured.json.gz --gpu l4 --predictor roofline --origin t4",
        "Roofline does not scale",
        "leave the origin out",
    ),
    ("predict good.json.gz --gpu l4 -p bf16", "precision is fixed", "trace the step again"),
    (
        "predict measured.json.gz --gpu l4 -p bf16 --predictor wave",
        "its own predictor",
        "leave --predictor out",
    ),
    ("predict good.json.gz --gpu l4 --model mine.npz", "--model is for --predictor mlp or habitat"),
    (
        "predict good.json.gz --gpu l4 --predictor roofline --model mine.npz",
        "--model is for --predictor mlp or habitat",
    ),
    ("predict good.json.gz --gpu l4 --predictor mlp --model mine.npz", "mine.npz"),
    ("predict good.json.gz --gpu l4 --host mars", 'unknown host "mars"'),
    ("predict good.json.gz --gpu all --gpu zx81", '"zx81"'),
    ("predict good.json.gz --gpu l4 --parallel data", "data"),
    ("predict good.json.gz --gpu l4 --parallel tensor=1.5", "tensor is a whole number, not '1.5'"),
    ("predict good.json.gz --gpu l4 --parallel shard=4", "it is a ZeRO stage"),
    ("predict good.json.gz --gpu l4 --parallel pipeline=2,schedule=magic", "the schedules are"),
    ("devices none.toml", "no device file", "none.toml"),
    ("devices not_toml.toml", "not_toml.toml", "is not TOML"),
    ("devices misspelt.toml", "memory_byte ", 'mean "memory_bytes"'),
    ("devices in_gb.toml", "nominal.memory_bytes", "unit is bytes"),
    ("devices zx81", 'unknown device "zx81"', "wavecast devices"),
    ("devices a100", "fits several devices", "say which"),
    ("trace good.json.gz --gpu l4", "kernels are fixed", "step itself"),
    ("trace good.json.gz -o out.json", "FILE.json.gz, not out.json"),
    ("trace good.json.gz -o gone/out.json.gz", "no directory gone", "make"),
    ("trace steps.py:fine --gpu zx81", 'unknown device "zx81"', "wavecast devices"),
    ("trace measured.json.gz -p bf16", "--precision bf16", "nothing here"),
    ("trace good.json.gz --out step.txt", "a trace is saved as FILE.json.gz"),
    ("trace steps.py:fine --out a_directory", "not a_directory"),
    ("memory gone.json.gz", "no trace file gone.json.gz"),
    ("memory measured.json.gz", "no allocations", "trace the step itself"),
    ("memory good.json.gz --gpu zx81", 'unknown device "zx81"', "wavecast devices"),
    ("memory good.json.gz --html gone/p.html", "gone/p.html", "choose"),
    ("memory good.json.gz --measure", "is a trace", "name the step itself"),
    ("memory steps.py:fine --measure", "leave out --measure"),
    ("memory steps.py:raises", "RuntimeError", "steps.py:22"),
    ("memory measured.json.gz -p bf16", "--precision bf16", "step itself"),
    ("memory measured.json.gz -b 4", "--batch 4", "step itself"),
    ("memory good.json.gz --gpu all", "fits good.json.gz --gpu all"),
    ("memory resnet50 --measure --gpu l4", "this machine's GPU", "leave"),
    ("memory resnet50 --measure --expandable-segments", "PYTORCH_ALLOC_CONF", "leave"),
    ("memory good.json.gz --gpu nothing", 'unknown device "nothing"'),
    ("memory cut.json.gz --gpu l4", "truncated or damaged"),
    ("memory good.json.gz --gpu l4 --parallel data=0", "data is 0"),
    ("memory good.json.gz --gpu l4 --parallel speed=2", "as in data=8,shard=3"),
    ("memory good.json.gz --gpu l4 --html a_directory", "it is a directory"),
    ("memory good.json.gz --gpu l4 --batch 8", "whose batch is fixed"),
    ("max-batch good.json.gz --gpu l4", "batch is fixed", "again"),
    ("max-batch steps.py:fine --gpu zx81", 'unknown device "zx81"', "wavecast devices"),
    ("max-batch steps.py:no_batch --gpu l4", "'batch'; add one"),
    ("max-batch steps.py:fine --gpu l4 --start 0", "at least 1, not 0"),
    ("max-batch steps.py:fine --gpu l4 --limit-gib 0", "--limit-gib", "above 0, not 0"),
    ("max-batch steps.py:fine --gpu l4 --limit-gib -1", "--limit-gib", "above 0, not -1"),
    ("max-batch steps.py:fine --gpu l4 --limit-gib nan", "--limit-gib", "above 0, not nan"),
    ("max-batch resnet50 --gpu l4 --start 0", "the batch must be at least 1"),
    ("max-batch resnet50 --gpu l4 --limit-gib 0", "--limit-gib is a number of GiB above 0"),
    ("max-batch resnet50 --gpu l4 --limit-gib nan", "above 0, not nan"),
    ("profile good.json.gz", "traced, not measured", "(--gpu)"),
    ("profile steps.py:fine", "needs a GPU", "torch sees none here"),
    ("profile gone.json.gz", "no trace file gone.json.gz"),
    ("profile measured.json.gz good.json.gz", "only measured traces"),
    ("profile good.json.gz --gpu all", "predict good.json.gz --gpu all"),
    ("profile good.json.gz --gpu l4 --origin t4", "nothing to scale"),
    ("profile measured.json.gz -p bf16", "--precision bf16", "nothing here"),
    ("profile measured.json.gz --host reference", "name a GPU (--gpu)"),
    ("profile measured.json.gz --cuda-graph", "name a GPU (--gpu)"),
    (
        "profile measured.json.gz measured.json.gz --gpu l4",
        "only measured traces can be joined",
        "leave --gpu out",
    ),
    ("profile noise.json.gz", "it cannot be read as gzip"),
    ("profile measured.json.gz --parallel data=2", "name a GPU (--gpu)"),
    ("extrapolate b8.json.gz b16.json.gz --batch 64 --gpu l4", "2 batch sizes are too few"),
    ("extrapolate b8.json.gz b16.json.gz b16.json.gz --batch 64 --gpu l4", "two of these traces"),
    ("extrapolate b8.json.gz b16.json.gz b32.json.gz --batch 0 --gpu l4", "at least one sample"),
    (
        "extrapolate b8.json.gz b16.json.gz measured.json.gz --batch 64 --gpu l4",
        "measured.json.gz does not say how many samples",
        "--batch",
    ),
    (
        "extrapolate b8.json.gz b16.json.gz b32.json.gz --batch 64 --gpu l4 --origin t4",
        "--origin",
        "nothing to scale",
    ),
    ("measure steps.py:fine", "needs a GPU", "torch sees none here"),
    ("measure good.json.gz", "is a trace", "measure the step itself"),
    ("measure steps.py:fine -o gone/m.json.gz", "no directory gone"),
    ("import gone.json", "no profiler file gone.json"),
    ("import notes.json", "no traceEvents", "torch.profiler wrote"),
    ("import a_directory", "it is a folder"),
    ("import notes.json --batch 0", "at least 1, not 0"),
    ("calibrate --host-out host.json", "FILE.toml, not host.json"),
    ("calibrate --seconds 2", "has no GPU", "--seconds"),
    ("calibrate --list --seconds 2", "leave out --seconds"),
    ("calibrate --list --host-out h.toml", "leave out --host-out"),
    ("calibrate --out mine", "has no GPU", "--out"),
    ("suite run -o suite.csv", "needs a GPU", "torch sees none here"),
    ("suite predict --gpu zx81", 'unknown device "zx81"', "wavecast devices"),
    ("suite predict --gpu l4 -m resnet5O", "did you mean resnet50"),
    ("suite predict --gpu l4 -p int4", "'int4'", "known: fp32"),
    ("suite predict --gpu l4 --scale 0", "must be above 0, not 0"),
    ("suite show gone.csv", "cannot read gone.csv"),
    ("suite show runs.csv", "runs.csv has no suite results"),
    ("runs add gone.log", "gone.log: there is no such file"),
    ("runs add a_directory", "a_directory: no file", "Caffe logs"),
    ("runs add runs.csv -f magic", 'no format "magic"', "caffe"),
    ("runs add runs.csv --batch 0", "batch must be a whole number"),
    ("runs add runs.csv -p int4", "'int4'", "fp32, tf32"),
    ("runs list --phase tests", 'training or testing, not "tests"'),
    ("runs list --store gone.db", "no run store gone.db", "runs add"),
    ("runs list --store notes.json", "notes.json: is not a run store"),
    ("runs export out.txt", "FILE.csv or FILE.jsonl, not out.txt"),
    ("runs export out.csv --phase tests", 'not "tests"'),
    ("runs export out.csv -s gone.db", "no run store gone.db"),
    ("runs predict made --from gone.csv --batch 64 --iterations 10", "gone.csv: there is no"),
    ("runs predict made --from no_runs.csv --batch 64 --iterations 10", "does not say iterations"),
    ("runs predict vgg --from runs.csv --batch 64 --iterations 10", "it has made"),
    ("runs predict made --from runs.csv -b 64", "give the iterations"),
    ("runs predict made --from runs.csv -n 9", "give the batch"),
    ("runs predict made --from runs.csv --batch 64 --iterations 10 --phase x", 'not "x"'),
    ("runs predict made --from runs.csv --batch 64 --iterations 10 --method x", 'not "x"'),
    ("runs predict made --from runs.csv --batch 64 --iterations 10 --gpus 4", "every run has"),
    (
        "runs predict made --from runs.csv --batch 64 --iterations 10 --gpus 4 --time total",
        "with --gpus a law",
        "leave --time out",
    ),
    (
        "runs predict made --from runs.csv --batch 64 --iterations 10 --gpus 4 --method ordinary",
        "with --gpus the law",
        "leave --method out",
    ),
    ("runs add runs.csv --dry-run --store s.db", "--store would", "leave"),
    (
        "design --batches 8,16,32 --iterations 100,200,400 --budget 600",
        "say how long a run takes",
        "--from",
    ),
    (
        "design --batches 8,16,32 --iterations 100,200,400 --budget 1 --sample 0.1",
        "need 5 runs",
        "1 GPU-s",
    ),
    (
        "design --batches 8,16,32 --iterations 100,200,400 --budget 600 --sample 0.1 --criterion Z",
        'D, A, I, not "Z"',
    ),
    (
        "design --batches 8,16,32 --iterations 100,200,400 --budget 600 --sample 0.1 --gpus one",
        'such as 8,16,32, not "one"',
    ),
    (
        "design --batches 8,16,32 --iterations 100,200,400 --budget 600 --sample -1",
        "must not be negative",
    ),
    (
        "design --batches 8,16,32 --iterations 100,200,400 --budget 600 --from gone.csv",
        "gone.csv: there is no",
    ),
    ("design --batches 8 --iterations 9 --budget 600 --sample 0.1", "give two batches"),
    ("design --batches 0,8 --iterations 9 --budget 600 --sample 0.1", "must be at least 1"),
    (
        "design --batches 8,16 --iterations 100,200 --budget 60 --from runs.csv --sample 0.1",
        "--sample would change nothing",
    ),
    (
        "design --batches 8,16 --iterations 100,200 --budget 60 --from runs.csv --startup 1",
        "--startup would",
        "leave",
    ),
    (
        "design --batches 8,16 --iterations 100,200 --budget 60 --sample 0.1 --model made",
        "--model",
        "(--from)",
    ),
    ("fit layers.csv -o m.npz", "has no measured layers", "collect"),
    ("fit gone.csv -o m.npz", "cannot read gone.csv"),
    ("fit layers.csv -o m.txt", "FILE.npz", "not m.txt"),
    ("fit layers.csv -o m.npz --device tpu", '"cpu" or "cuda", not "tpu"'),
    ("fit --runs gone.csv", "gone.csv: there is no such file"),
    ("fit --runs runs.csv -m vgg", "no run of vgg", "it has made"),
    ("fit --runs runs.csv --method best", 'not "best"'),
    ("fit --runs runs.csv --plot p.png", "FILE.svg", "not p.png"),
    ("fit layers.csv -o m.npz --time total", "--time is for past runs"),
    ("fit runs.csv --runs runs.csv", "--runs fits past runs", "no other files"),
    ("fit --runs runs.csv --width 64", "--width is for layer times"),
    ("fit --runs runs.csv --epochs 9", "--epochs is for layer times"),
    ("fit --runs runs.csv --target forward", "--target is for layer times"),
    ("fit --runs runs.csv --device cuda", "--device is for layer times"),
    ("fit layers.csv -o m.npz -m made", "--model is for past runs"),
    ("fit layers.csv -o m.npz --plot p.svg", "--plot is for past runs"),
    ("fit layers.csv -o m.npz --phase testing", "--phase is for past"),
    ("fit layers.csv -o m.npz --method relative", "--method is for"),
    ("collect attention -o a.csv --device cpu", "kinds are conv2d"),
    ("collect linear -o a.csv", "needs a GPU", "torch sees none here"),
    ("collect linear -o a.csv --device tpu", 'not "tpu"'),
    ("choose good.json.gz --price 3", "names no GPU", "l4=0.50"),
    ("choose good.json.gz --providers moon", '"moon"', "aws"),
    ("choose good.json.gz --budget -3", "--budget is a number of USD"),
    ("choose good.json.gz --deadline never", "--deadline is a time"),
    ("choose measured.json.gz --gpus-up-to 8", "was measured on one GPU", "--gpus-up-to"),
    ("choose good.json.gz --setup habitat", "nothing to scale"),
    ("choose good.json.gz --gpu l4 --buy l4=2500 --lifetime-years 0", "0.0 years"),
    ("choose good.json.gz --gpu nothing", 'unknown device "nothing"'),
    ("prices --gpu rtx-2070", "no such offer is known", "aws"),
    ("prices update none.csv", "none.csv", "cannot be read"),
    ("prices update x.csv --date soon", "2026-11-01", "'soon'"),
    ("prices update --provider moon", '"moon"', "aws"),
    ("compare good.json.gz gone.json.gz --gpu l4", "there is no trace file gone.json.gz"),
    ("compare good.json.gz good.json.gz --gpu l4 --precision-b fp8", "unknown precision 'fp8'"),
    ("compare good.json.gz good.json.gz --gpu l4 --html a_directory", "it is a directory"),
    ("scale good.json.gz --gpu l4 --up-to 0", "--up-to 0 is less than one replica"),
    ("scale good.json.gz --gpu l4 --cluster nowhere", 'unknown cluster "nowhere"'),
    ("scale good.json.gz --gpu l4 --parallel tensor=3 --up-to 2", "which has 3 GPUs"),
    ("scale measured.json.gz --gpu l4", "was measured on one GPU"),
    ("scale good.json.gz --gpu l4 --tokens -5", "tokens is -5.0"),
    ("parallelize good.json.gz --gpu l4 --gpus 4", "--global-batch"),
    (
        "parallelize good.json.gz --gpu l4 --gpus 0 --global-batch 64",
        "--gpus is a whole number of at least 1",
    ),
    (
        "parallelize good.json.gz --gpu l4 --gpus 4 --global-batch 0",
        "--global-batch is a whole number",
    ),
    (
        "parallelize good.json.gz --gpu l4 --gpus 4 --global-batch 64 --show 0",
        "--show is a whole number",
    ),
    (
        "parallelize good.json.gz --gpu l4 --gpus 4 --global-batch 64 --micro-batch 2",
        "leave out --micro-batch",
    ),
    (
        "parallelize good.json.gz --gpu l4 --gpus 4 --global-batch 64 --cluster nowhere",
        'unknown cluster "nowhere"',
    ),
    ("parallelize measured.json.gz --gpu l4 --gpus 4 --global-batch 64", "samples="),
    ("advise good.json.gz --gpu l4 --change magic", "there is no change 'magic'"),
    ("advise good.json.gz --gpu nothing", 'unknown device "nothing"'),
    ("advise good.json.gz --gpu l4 --loader", "--loader is for training scripts"),
    ("advise gone.json.gz --gpu l4", "there is no trace file"),
)
"""Commands that exit with 1."""
MISUSED: tuple[tuple[str, ...], ...] = (
    ("predict good.json.gz", "Missing option", "--gpu"),
    ("predict good.json.gz --gpu", "requires an argument"),
    ("predict --gpu l4", "Missing argument", "TARGET"),
    ("predict resnet50 --batch abc --gpu l4", "--batch", "integer"),
    ("predict good.json.gz --gpu l4 --predictor magic", "magic"),
    ("predict good.json.gz --gpu l4 --by layer", "layer"),
    ("predict good.json.gz --gpu l4 --fast", "--fast"),
    ("predict good.json.gz --gpu l4 --ranks 0", "'--ranks'"),
    ("predict good.json.gz --gpu l4 --by colour", "'--by'"),
    ("devices --gpu l4", "No such option: --gpu"),
    ("trace", "Missing argument 'TARGET'"),
    ("forecast", "forecast"),
    ("fits good.json.gz", "Missing option '--gpu'"),
    ("fits good.json.gz --gpu zx81", 'unknown device "zx81"', "wavecast devices"),
    ("fits gone.json.gz --gpu l4", "no trace file gone.json.gz"),
    ("fits measured.json.gz --gpu l4", "no allocations", "trace the step itself"),
    ("fits steps.py:raises --gpu l4", "RuntimeError"),
    ("fits steps.py:no_batch --gpu l4 --batch 4", "no parameter 'batch'", "leave out --batch"),
    ("fits measured.json.gz -p bf16 --gpu l4", "--precision bf16", "step itself"),
    ("fits measured.json.gz -b 4 --gpu l4", "--batch 4", "itself"),
    ("fits good.json.gz --gpu nothing", 'unknown device "nothing"'),
    ("fits good.json.gz --gpu l4 --parallel data=-1", "data is a whole number, not '-1'"),
    ("fits altered.json.gz --gpu l4", "its checksum does not match"),
    ("max-batch steps.py:fine", "Missing option '--gpu'"),
    ("max-batch resnet50 --gpu l4 --batch 4", "No such option"),
    ("profile measured.json.gz --kernels -1", "--kernels"),
    ("profile good.json.gz --gpu l4 --kernels -1", "Invalid value for '--kernels'"),
    ("extrapolate b8.json.gz b16.json.gz b32.json.gz --gpu l4", "'--batch'"),
    ("extrapolate --batch 64 --gpu l4", "'TRACE...'"),
    ("measure steps.py:fine --repeats 0", "--repeats"),
    ("measure steps.py:fine --warm-up -1", "--warm-up"),
    ("suite predict", "Missing option '--gpu'"),
    ("runs list --last 0", "--last"),
    ("runs forecast", "No such command 'forecast'"),
    ("fit", "FILE... and --out, or --runs"),
    ("fit layers.csv", "FILE... and --out, or --runs"),
    ("collect linear", "Missing option '--out'"),
    ("collect linear -o a.csv --count 0", "--count"),
    ("choose good.json.gz --by luck", "'luck' is not one of"),
    ("choose good.json.gz --gpus-up-to 0", "Invalid value for '--gpus-up-to'"),
    ("choose good.json.gz --show 0", "Invalid value for '--show'"),
    ("choose", "Missing argument 'TARGET'"),
    ("compare good.json.gz", "Missing argument 'B'"),
    ("compare good.json.gz good.json.gz", "Missing option '--gpu'"),
    ("scale good.json.gz", "Missing option '--gpu'"),
    ("scale", "Missing argument 'TARGET'"),
    ("parallelize good.json.gz --gpu l4", "Missing option '--gpus'"),
    ("advise good.json.gz", "Missing option '--gpu'"),
    ("advise", "Missing argument 'TARGET'"),
)
"""Commands that exit with 2."""
