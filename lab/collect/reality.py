"""Traces made without a GPU against the same steps run on one.

On a GPU:   python -m lab.collect.reality OUT     records real steps, compares, measures
Elsewhere:  python -m lab.collect.reality         compares with the recorded ones in measurements/
"""

from __future__ import annotations

import csv
import gc
import itertools
import json
import platform
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from lab.measured import campaigns
from lab.steps.reality import LAYER_STEPS, LIBRARY_STEPS, PRECISIONS, STEPS
from wavecast.frameworks.pytorch.capture import capture
from wavecast.frameworks.pytorch.capture.autocast import registered
from wavecast.frameworks.pytorch.measurement.iteration import measure as measure_step
from wavecast.frameworks.pytorch.recorder import OpRecorder, RecordingMode
from wavecast.frameworks.pytorch.structure import Structure
from wavecast.traces.step import Call, TensorSpec, Trace

RECORDED = "steps"
"""The campaign of the recorded steps."""


@dataclass(frozen=True)
class Agreement:
    """How much of a real step a trace has: shares of its ops and of its GPU time."""

    real_ops: int
    traced_ops: int
    by_count: float
    by_gpu_time: float
    only_real: Counter[Any]
    only_traced: Counter[Any]


def compare(real: Trace, traced: Trace) -> Agreement:
    """Match ops by phase, name, shapes and dtypes, each as often as it occurs."""
    expected, got = Counter(map(identity, real)), Counter(map(identity, traced))
    left = Counter(got)
    matched_s = total_s = 0.0
    for call in real:
        seconds = sum(kernel.seconds for kernel in call.kernels)
        total_s += seconds
        if left[identity(call)] > 0:
            left[identity(call)] -= 1
            matched_s += seconds
    common = sum((expected & got).values())
    return Agreement(
        real_ops=len(real),
        traced_ops=len(traced),
        by_count=common / max(len(real), len(traced)),
        by_gpu_time=matched_s / total_s if total_s else 1.0,
        only_real=expected - got,
        only_traced=got - expected,
    )


def identity(call: Call) -> tuple[Any, ...]:
    """What two ops must share to be the same (sizes of cuDNN's opaque buffers are its own)."""

    def tensors(specs: tuple[TensorSpec, ...]) -> tuple[Any, ...]:
        opaque = call.op.base.startswith("aten._cudnn_rnn")
        return tuple((t.shape, t.dtype) for t in specs if not (opaque and t.dtype == "uint8"))

    # Which of the two names torch uses for the same view changes between its releases.
    name = call.op.name.replace("_unsafe_view", "view")
    return call.phase, name, tensors(call.op.inputs), tensors(call.op.outputs)


def record(make_step: Callable[[], Any]) -> Trace:
    """The trace of a step that really runs, with the GPU time of each op."""
    # GradScaler skips the first updates, until its scale has come down.
    return measure_step(make_step(), warm_up=10, repeats=1, recordings=1)


def measure(make_step: Callable[[], Any], repeats: int = 20) -> dict[str, float]:
    """Wall time, host time to issue and GPU-busy time of a step, and its peak memory."""
    gc.collect()  # what an earlier step left in reference cycles
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    step = make_step()
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    walls, issues = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        issued = time.perf_counter()
        torch.cuda.synchronize()
        walls.append(time.perf_counter() - start)
        issues.append(issued - start)
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    torch.cuda.synchronize()
    steady_s = (time.perf_counter() - start) / repeats
    peak = torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    busy_s = sum(e.self_device_time_total for e in profiler.key_averages()) * 1e-6 / 3
    return {
        "steady_s": steady_s,
        "synced_s": statistics.median(walls),
        "issue_s": statistics.median(issues),
        "gpu_busy_s": busy_s,
        "peak_bytes": float(peak),
    }


def attention_choices() -> list[dict[str, Any]]:
    """Which attention kernel torch chooses here, over what the choice depends on."""
    rows = []
    options = itertools.product(
        ("float32", "float16", "bfloat16"), (32, 60, 64, 80, 128, 192, 256, 288),
        (False, True), (0.0, 0.1), ("none", "bool", "float"), (False, True), (False, True),
    )  # fmt: skip
    for dtype, head, causal, dropout, mask, grouped, grad in options:
        if causal and mask != "none":
            continue
        make = {"dtype": getattr(torch, dtype), "device": "cuda", "requires_grad": grad}
        query = torch.randn(2, 8, 64, head, **make)
        key, value = (torch.randn(2, 2 if grouped else 8, 64, head, **make) for _ in range(2))
        given = None
        if mask != "none":
            given = torch.ones(2, 1, 64, 64, device="cuda", dtype=torch.bool)
            given = given if mask == "bool" else given.to(query.dtype)
        choice = torch._fused_sdp_choice(
            query, key, value, given, dropout, causal, enable_gqa=grouped
        )
        rows.append(
            {
                "dtype": dtype, "head": head, "causal": causal, "dropout": dropout, "mask": mask,
                "grouped": grouped, "grad": grad, "choice": choice,
            }
        )  # fmt: skip
    return rows


def reserved_sizes() -> list[dict[str, Any]]:
    """The memory cuDNN reserves between the passes of a recurrent layer."""
    rows = []
    options = itertools.product(
        (nn.RNN, nn.LSTM, nn.GRU), (1, 3), (False, True), (0.0, 0.2), (torch.float32, torch.float16)
    )
    for cell, layers, bidirectional, dropout, dtype in options:
        if dropout and layers == 1:
            continue
        layer = cell(96, 160, layers, bidirectional=bidirectional, dropout=dropout)
        layer = layer.to("cuda", dtype)
        recorder = OpRecorder(Structure())
        source = torch.randn(20, 8, 96, device="cuda", dtype=dtype)
        with RecordingMode(recorder), recorder.step():
            layer(source)
        for call in recorder.recording().calls:
            if call.op.name == "aten._cudnn_rnn":
                rows.append(
                    {
                        "cell": cell.__name__, "layers": layers, "bidirectional": bidirectional,
                        "dropout": dropout, "dtype": str(dtype),
                        "reserve_bytes": call.op.outputs[3].nbytes,
                        "noise_bytes": sum(t.nbytes for t in call.op.inputs if t.dtype == "uint8"),
                    }
                )  # fmt: skip
    return rows


def probe() -> dict[str, Any]:
    """Facts about this torch and GPU that the tracer imitates."""
    x = torch.randn(4, 64, 64, device="cuda", dtype=torch.float16)
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "gpu": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "autocast_cuda": sorted(registered("AutocastCUDA")),
    }
    with torch.autocast("cuda", torch.float16):
        found["rms_norm"] = str(F.rms_norm(x, (64,)).dtype)
        found["layer_norm"] = str(F.layer_norm(x, (64,)).dtype)
        found["group_norm"] = str(F.group_norm(x, 4).dtype)
        found["sum"] = str(x.sum().dtype)
    return found


def time_issue(count: int = 2000) -> dict[str, float]:
    """Host seconds to issue one op of a few sorts, and the GPU's rates, on this machine."""
    small = torch.zeros(8, device="cuda")
    grad = torch.zeros(8, device="cuda", requires_grad=True)
    matrix = torch.zeros(64, 64, device="cuda")
    cases: dict[str, Callable[[], Any]] = {
        "view": lambda: small.view(2, 4),
        "add_": lambda: small.add_(1),
        "mul": lambda: small * small,
        "mul_grad": lambda: grad * grad,
        "mm": lambda: matrix @ matrix,
        "sum": lambda: small.sum(),
        "empty": lambda: torch.empty(8, device="cuda"),
        "item": lambda: small[0].item(),
    }
    seconds = {}
    for name, run in cases.items():
        for _ in range(200):
            run()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            run()
        seconds[name] = (time.perf_counter() - start) / count
        torch.cuda.synchronize()
    return seconds


def run_on_gpu(out: Path) -> None:
    """Record, compare and measure everything; a short table last."""
    out.mkdir(parents=True, exist_ok=True)
    steps = out / "steps"
    steps.mkdir()
    (out / "probe.json").write_text(json.dumps({**probe(), "issue_s": time_issue()}, indent=1))
    (out / "attention.json").write_text(json.dumps(attention_choices()))
    (out / "rnn_reserve.json").write_text(json.dumps(reserved_sizes()))
    rows, lines = [], []
    for (name, (make, batch)), precision in itertools.product(STEPS.items(), PRECISIONS):
        real = record(partial(make, batch, precision))
        real.save(steps / f"{name}-{precision}.json.gz")
        traced = capture(partial(make, batch, precision))
        lines.append(describe(f"{name} {precision}", compare(real, traced)))
        for size in (2, batch):
            row = measure(partial(make, size, precision))
            rows.append({"model": name, "precision": precision, "batch": size, **row})
        torch.cuda.empty_cache()
        print(lines[-1], flush=True)
    others = {**LIBRARY_STEPS, **LAYER_STEPS}
    for (name, make), precision in itertools.product(others.items(), (*PRECISIONS, "fp16")):
        real = record(partial(make, precision))
        lines.append(
            describe(f"{name} {precision}", compare(real, capture(partial(make, precision))))
        )
        print(lines[-1], flush=True)
    with (out / "steps.csv").open("w") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    print("\n".join(lines))


def describe(name: str, agreement: Agreement) -> str:
    """One line, and the ops that differ."""
    line = (
        f"{name:22} real {agreement.real_ops:5} traced {agreement.traced_ops:5} "
        f"count {agreement.by_count:7.2%} gpu time {agreement.by_gpu_time:7.2%}"
    )
    for title, counter in (("real", agreement.only_real), ("traced", agreement.only_traced)):
        for (phase, op, inputs, outputs), count in counter.most_common(6):
            shapes = " ".join(f"{s}{d[-4:]}" for s, d in inputs[:3])
            line += f"\n    only {title}: {count}x {phase} {op} {shapes} -> {outputs[:2]}"
    return line


def compare_with_recorded() -> None:
    """Compare traces made here with the steps recorded on the GPU."""
    for (name, (make, batch)), precision in itertools.product(STEPS.items(), PRECISIONS):
        real = campaigns.traces(RECORDED)[f"{name}-{precision}"]
        traced = capture(partial(make, batch, precision))
        print(describe(f"{name} {precision}", compare(real, traced)))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_on_gpu(Path(sys.argv[1]))
    else:
        compare_with_recorded()
