"""Which ops do real steps run, and how long do they take? Records steps on this machine's GPU.

    python -m lab collect reality OUT

Needs a GPU and transformers. Records each step of `lab.steps.reality`, compares it with the trace
made without using the GPU, and measures its times and memory. Writes OUT/steps/*.json.gz,
OUT/steps.csv, OUT/probe.json (the machine, autocast, the host), OUT/attention.json (which attention
kernel torch chooses) and OUT/rnn_reserve.json. `lab.score.agreement` repeats the comparison with
the recorded steps, without a GPU.
"""

from __future__ import annotations

import csv
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from lab import needs
from lab.collect.gpu_steps import release_memory, single_s, steady_s
from lab.measured.agreement import compare, describe
from lab.steps.reality import LAYER_STEPS, LIBRARY_STEPS, PRECISIONS, STEPS
from wavecast.frameworks.pytorch.capture import capture
from wavecast.frameworks.pytorch.capture.autocast import registered
from wavecast.frameworks.pytorch.measurement.iteration import measure as measure_step
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder, RecordingMode
from wavecast.frameworks.pytorch.recording.structure import Structure
from wavecast.traces.step import Trace


def record(make_step: Callable[[], Any]) -> Trace:
    """The trace of a step recorded on the GPU, with the GPU time of each op."""
    # GradScaler skips the first updates, until its scale is small enough.
    return measure_step(make_step(), warm_up=10, repeats=1, recordings=1)


def measure(make_step: Callable[[], Any], repeats: int = 20) -> dict[str, float]:
    """The wall, issue and GPU-busy times of a step, and its peak memory."""
    release_memory()
    before = torch.cuda.memory_allocated()
    step = make_step()
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    issues, walls = single_s(step, repeats)
    iteration_s = steady_s(step, repeats)
    peak = torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    busy_s = sum(e.self_device_time_total for e in profiler.key_averages()) * 1e-6 / 3
    return {
        "steady_s": iteration_s,
        "synced_s": statistics.median(walls),
        "issue_s": statistics.median(issues),
        "gpu_busy_s": busy_s,
        "peak_bytes": float(peak),
    }


def attention_choices() -> list[dict[str, Any]]:
    """The attention kernel that torch chooses, for all combinations of what it depends on."""
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
    """The memory that cuDNN keeps between the passes of a recurrent layer."""
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
    """Properties of this torch and GPU that the tracer reproduces."""
    x = torch.randn(4, 64, 64, device="cuda", dtype=torch.float16)
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "gpu": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "autocast_cuda": sorted(registered("AutocastCUDA")),
    }
    with torch.autocast("cuda", torch.float16):
        facts["rms_norm"] = str(F.rms_norm(x, (64,)).dtype)
        facts["layer_norm"] = str(F.layer_norm(x, (64,)).dtype)
        facts["group_norm"] = str(F.group_norm(x, 4).dtype)
        facts["sum"] = str(x.sum().dtype)
    return facts


def time_issue(count: int = 2000) -> dict[str, float]:
    """Host seconds to issue one op of a few kinds on this machine."""
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
    """Record, compare and measure all steps, and print tables."""
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


def main(given: Sequence[str] = ()) -> None:
    """Record into a folder."""
    parser = needs.parser(__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write into")
    run_on_gpu(parser.parse_args(given).out)
