"""How much time and memory do importing, tracing and predicting take?

    python -m lab score speed

Each case runs in a new process. Tracing is timed after torch has been imported, once cold and once
warm.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from lab import needs
from lab.markdown import heading

CASES = (
    *("import", "bert-base", "llama-8", "llama-32", "llama-128", "memory-70b"),
    *("predict-all", "predict-many"),
    *("compiled gpt2", "compiled gpt2-medium", "compiled llama-1b"),
)
_RESULT = "RESULT "


def main(given: Sequence[str] = ()) -> None:
    """Run every case, each in a process of its own, and print a table in Markdown."""
    parser = needs.parser(__doc__)
    parser.add_argument("--case", choices=CASES)
    args = parser.parse_args(given)
    if args.case is not None:
        print(_RESULT + json.dumps(measure(args.case)))
        return
    print(f"Python {platform.python_version()}, {platform.machine()}, best of 3\n")
    print(*heading("case | time and memory", "ll"), sep="\n")
    for case in CASES:
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
    if case == "import":
        return _import()
    if case == "predict-all":
        return _predict_all()
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


def _import() -> dict[str, Any]:
    start = time.perf_counter()
    import wavecast

    seconds = time.perf_counter() - start
    loaded = "torch" in sys.modules
    return {
        "what": "`import wavecast`",
        "seconds": seconds,
        "more": [f"torch imported: {'yes' if loaded else 'no'}", f"v{wavecast.__version__}"],
    }


def _trace(what: str, make_step: Callable[[], Any]) -> dict[str, Any]:
    import resource

    import wavecast.frameworks.pytorch  # importing torch is not timed
    from wavecast import Trace
    from wavecast.traces.step import Role

    def timed() -> tuple[float, Trace]:
        start = time.perf_counter()
        trace = wavecast.trace(make_step)
        return time.perf_counter() - start, trace

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
    import resource

    import wavecast.frameworks.pytorch  # importing torch is not timed
    from wavecast import suite

    start = time.process_time()
    import torch._inductor.compile_fx  # noqa: F401

    loading_s = time.process_time() - start
    start = time.process_time()
    trace = wavecast.trace(lambda: suite.benchmark(name).make_step(4, "bf16"), compiled=True)
    return {
        "what": f"trace a compiled {name} step, batch 4, bf16",
        "seconds": time.process_time() - start,
        "rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "more": [f"{len(trace)} ops", f"loading the compiler {loading_s:.1f} s"],
    }


def _memory_70b() -> dict[str, Any]:
    import resource

    import wavecast.frameworks.pytorch  # importing torch is not timed

    start = time.perf_counter()
    memory = wavecast.memory(wavecast.trace(_llama_70b_step, gpu="b200-sxm"), "b200-sxm")
    kinds = {kind: nbytes for kind, nbytes in memory.by_kind.items() if nbytes}
    seconds = time.perf_counter() - start
    largest = sorted(kinds.items(), key=lambda item: -item[1])[:4]
    return {
        "what": "memory of a step of 70 billion parameters, by kind",
        "seconds": seconds,
        "rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "more": [f"{kind} {nbytes / 2**30:.0f} GiB" for kind, nbytes in largest],
    }


def _predict_all() -> dict[str, Any]:
    import wavecast

    trace = wavecast.trace(_suite_step)
    gpus = wavecast.devices()
    start = time.perf_counter()
    for gpu in gpus:
        _ = wavecast.predict(trace, gpu).seconds
    return {
        "what": "predict a traced BERT-base on every GPU",
        "seconds": time.perf_counter() - start,
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
    start = time.perf_counter()
    for gpu in gpus:
        learned.predict_all(ops, gpu)
    return {
        "what": "predict 1,000 distinct ops on 70 GPUs",
        "seconds": time.perf_counter() - start,
        "more": [f"{len(ops)} products", f"{len(gpus)} GPUs"],
    }


def _suite_step() -> Any:
    from wavecast import suite

    return suite.benchmark("bert-base").make_step(16, "bf16")


def _llama_70b_step() -> Any:
    """A decoder of 70 layers of width 8192; weights and AdamW's state in bf16, 4096 tokens."""
    import torch
    import torch.nn.functional as F

    from lab.steps.llama import PlainLlama

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

    from lab.steps.llama import PlainLlama

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
