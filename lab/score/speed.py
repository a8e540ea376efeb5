"""How much time and memory do importing, tracing, predicting and searching take?

    python -m lab score speed
    python -m lab score speed --only parallelize

Each case runs in a new process. Times are CPU seconds of the process, since machines are shared.
Tracing is timed after torch has been imported, once cold and once warm; commands are timed whole.
"""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from time import process_time
from typing import Any

from lab import needs
from lab.pages import heading

CASES = (
    *("import", "import-numpy", "bert-base", "llama-8", "llama-32", "llama-128", "memory-70b"),
    *("predict-all", "predict-llama", "predict-many", "parallelize", "choose"),
    *("compiled gpt2", "compiled gpt2-medium", "compiled llama-1b"),
)
COMMANDS = {
    "parallelize": "parallelize hf:llama-3.1-8b --gpu h100-sxm-80gb --gpus 512 --global-batch 1024 "
    "--precision bf16",
    "choose": "choose hf:llama-3.1-8b --qlora",
}
_RESULT = "RESULT "


def main(given: Sequence[str] = ()) -> None:
    """Run every case, each in a process of its own, and print a table in Markdown."""
    parser = needs.parser(__doc__)
    parser.add_argument("--case", choices=CASES, help="run one case in this process")
    parser.add_argument("--only", choices=CASES, nargs="+", default=CASES)
    args = parser.parse_args(given)
    if args.case is not None:
        print(_RESULT + json.dumps(measure(args.case)))
        return
    print(f"Python {platform.python_version()}, {platform.machine()}, CPU seconds, best of 3\n")
    print(*heading("case | time and memory", "ll"), sep="\n")
    for case in args.only:
        runs = [_run(case) for _ in range(3)]
        best = min(runs, key=lambda run: run["seconds"])
        print(f"| {best['what']} | {_show(best)} |", flush=True)


def _run(case: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "lab", "score", "speed", "--case", case]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith(_RESULT))
    result: dict[str, Any] = json.loads(line.removeprefix(_RESULT))
    return result


def _show(run: dict[str, Any]) -> str:
    parts = [f"{run['seconds']:.2f} s"]
    if "warm_s" in run:
        parts.append(f"again {run['warm_s']:.2f} s")
    if "rss_gb" in run:
        parts.append(f"{run['rss_gb']:.2f} GB")
    return ", ".join([*parts, *run.get("more", [])])


def measure(case: str) -> dict[str, Any]:
    """The result of one case, run in this process."""
    if case.startswith("import"):
        return _import("numpy" if case == "import-numpy" else "wavecast")
    if case in COMMANDS:
        return _command(COMMANDS[case])
    if case == "predict-all":
        return _predict_all("BERT-base", _suite_step)
    if case == "predict-llama":
        return _predict_all("Llama of 6.7 billion parameters", lambda: _llama_step(32))
    if case == "predict-many":
        return _predict_many()
    if case == "memory-70b":
        return _memory_70b()
    if case == "bert-base":
        return _trace("BERT-base step, batch 16, bf16", _suite_step)
    if case.startswith("compiled "):
        return _compile(case.removeprefix("compiled "))
    layers = int(case.removeprefix("llama-"))
    return _trace(f"Llama-like step, {layers} layers", lambda: _llama_step(layers))


def _import(name: str) -> dict[str, Any]:
    subprocess.run([sys.executable, "-c", f"import {name}"], check=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "what": f"`import {name}`, with Python's own start",
        "seconds": used.ru_utime + used.ru_stime,
    }


def _command(command: str) -> dict[str, Any]:
    arguments = [sys.executable, "-m", "wavecast", *command.split(), "--json"]
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "what": f"`wavecast {command}`",
        "seconds": used.ru_utime + used.ru_stime,
        "rss_gb": used.ru_maxrss / 1e6,
    }


def _trace(what: str, make_step: Callable[[], Any]) -> dict[str, Any]:
    import wavecast.frameworks.pytorch  # importing torch is not timed
    from wavecast import Trace
    from wavecast.traces.step import Role

    def timed() -> tuple[float, Trace]:
        start = process_time()
        trace = wavecast.trace(make_step)
        return process_time() - start, trace

    cold_s, trace = timed()
    warm_s, _ = timed()
    weights = sum(a.nbytes for a in trace.allocations if a.role is Role.PARAMETER) / 4
    return {
        "what": f"trace a {what}",
        "seconds": cold_s,
        "warm_s": warm_s,
        "rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "more": [f"{len(trace)} ops", f"{weights / 1e9:.2f} G parameters"],
    }


def _compile(name: str) -> dict[str, Any]:
    """A model of the suite as torch.compile would run it; loading the compiler is counted apart."""
    import wavecast.frameworks.pytorch  # importing torch is not timed
    from wavecast import suite

    start = process_time()
    import torch._inductor.compile_fx  # noqa: F401

    loading_s = process_time() - start
    start = process_time()
    trace = wavecast.trace(lambda: suite.benchmark(name).make_step(4, "bf16"), compiled=True)
    return {
        "what": f"trace a compiled {name} step, batch 4, bf16",
        "seconds": process_time() - start,
        "rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "more": [f"{len(trace)} ops", f"loading the compiler {loading_s:.1f} s"],
    }


def _memory_70b() -> dict[str, Any]:
    import wavecast.frameworks.pytorch  # importing torch is not timed

    start = process_time()
    memory = wavecast.memory(wavecast.trace(_llama_70b_step, gpu="b200-sxm"), "b200-sxm")
    kinds = {kind: nbytes for kind, nbytes in memory.by_kind.items() if nbytes}
    seconds = process_time() - start
    largest = sorted(kinds.items(), key=lambda item: -item[1])[:4]
    return {
        "what": "memory of a step of 70 billion parameters, by kind",
        "seconds": seconds,
        "rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "more": [f"{kind} {nbytes / 2**30:.0f} GiB" for kind, nbytes in largest],
    }


def _predict_all(name: str, make_step: Callable[[], Any]) -> dict[str, Any]:
    import wavecast

    trace = wavecast.trace(make_step)
    gpus = wavecast.devices()
    start = process_time()
    for gpu in gpus:
        _ = wavecast.predict(trace, gpu).seconds
    return {
        "what": f"predict a traced {name} on every GPU",
        "seconds": process_time() - start,
        "more": [f"{len(gpus)} GPUs", f"{len(trace)} ops, {len(trace.counts)} distinct"],
    }


def _predict_many() -> dict[str, Any]:
    """A thousand distinct products, the slowest kind of op: more than a large step has."""
    import wavecast
    from wavecast.predictors.learned.predictor import Learned
    from wavecast.traces.step import Op, TensorSpec

    def product(m: int, k: int) -> Op:
        tensors = (TensorSpec((m, k), "bfloat16"), TensorSpec((k, 1024), "bfloat16"))
        return Op("aten.mm", tensors, (TensorSpec((m, 1024), "bfloat16"),))

    ops = tuple(product(64 * m, 64 * k) for m in range(1, 41) for k in range(1, 26))
    gpus = [gpu for gpu in wavecast.devices() if gpu.sm_count and gpu.vendor == "NVIDIA"][:70]
    learned = Learned.shipped()
    start = process_time()
    for gpu in gpus:
        learned.predict_all(ops, gpu)
    return {
        "what": "predict 1,000 distinct ops on 70 GPUs",
        "seconds": process_time() - start,
        "more": [f"{len(ops)} products", f"{len(gpus)} GPUs"],
    }


def _suite_step() -> Any:
    from wavecast import suite

    return suite.benchmark("bert-base").make_step(16, "bf16")


def _llama_70b_step() -> Any:
    """A decoder of 70 layers of width 8192; weights and AdamW's state in bf16, 4096 tokens."""
    import torch
    import torch.nn.functional as F

    from lab.steps.hand_written import PlainLlama

    with torch.device("cuda"):
        model = PlainLlama(layers=70, width=8192, inner=28672, heads=64, vocabulary=128256)
    model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(0, 32000, (1, 4096), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        scores = model(tokens)[:, :-1].flatten(0, 1).float()
        F.cross_entropy(scores, tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step


def _llama_step(layers: int) -> Any:
    """A decoder of the size of Llama-7B: rotary positions, RMSNorm, SwiGLU; AdamW, bf16."""
    import torch
    import torch.nn.functional as F

    from lab.steps.hand_written import PlainLlama

    model = PlainLlama(layers=layers, width=4096, inner=11008, heads=32, vocabulary=32000).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(0, 32000, (1, 2048), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()

    return step
