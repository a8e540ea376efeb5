"""What do the habits of eager frameworks cost one rank? Predicted, and measured on our H200.

    python -m lab score framework_decoders

The micro-batches with one rank were traced (measurements/h200/traced), and are predicted.
Triton kernels cannot be traced, so norms and rotary positions are PyTorch's ops, of
which rotary positions are then made one kernel, as `fused_rotary` does. The second table has what
an autograd function around a Triton kernel costs the host: the measured difference between a
decoder with such functions and a plain one, less the predicted difference, for each function.
Its median is `wavecast.hardware.hosts.IN_FUNCTION`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import wavecast
from lab.measured import campaigns
from lab.pages import heading
from lab.places import H200
from lab.scores import ScoreTable
from wavecast.hardware.hosts import REFERENCE_HOST
from wavecast.parallel.fused_kernels import ROTARY, with_fused
from wavecast.traces.step import Trace

GPU = "h200-sxm"
LAYERS = {"1B": 16, "8B": 8}
HOST_BOUND = {256: ("seconds", "issue_s"), 4096: ("issue_s",)}
"""The measured times that the host sets, by positions, with one rank; with eight it sets both."""
Key = tuple[str, str, int, int]
"""Habits, model, tensor ranks and positions."""


def measured() -> dict[Key, Mapping[str, Any]]:
    """The measured cases."""
    cases = json.loads((H200 / "framework_decoders.json").read_text(encoding="utf-8"))["cases"]
    return {(c["habits"], c["model"], c["tensor"], c["seq"]): c for c in cases}


def fused(habits: str, size: str, seq: int) -> tuple[Trace, Trace]:
    """The micro-batch of one rank with PyTorch's ops, and with rotary positions as one kernel."""
    plain = campaigns.traces("framework-decoders", campaigns.TRACED)[f"{size}-s{seq}-{habits}"]
    return plain, with_fused(plain, ROTARY)


def gpu_rows(cases: Mapping[Key, Mapping[str, Any]]) -> Iterator[str]:
    """A line for each habit of one rank: the GPU's time, measured and predicted."""
    for (habits, size, ranks, seq), case in cases.items():
        if ranks == 1:
            plain, turned = fused(habits, size, seq)
            trace = turned if habits != "plain" else plain
            predicted_s = wavecast.predict(trace, GPU).gpu_s
            off = predicted_s / case["gpu_s"] - 1
            yield (
                f"| {habits} | {size}, {seq} positions | {case['gpu_s'] * 1e3:.1f} ms "
                f"| {predicted_s * 1e3:.1f} ms | {off:+.1%} |"
            )


def function_costs(cases: Mapping[Key, Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """The case, and what each function cost the host in it, in seconds."""
    saved: dict[str, float] = {}
    for (habits, size, ranks, seq), case in cases.items():
        if habits != "functions":
            continue
        if size not in saved:
            plain, turned = fused("plain", size, 256)
            saved[size] = _issue_s(plain) - _issue_s(turned)
        functions = 2 * (4 * LAYERS[size] + 1)  # two norms and two rotations, in both passes
        bound = HOST_BOUND[seq] if ranks == 1 else HOST_BOUND[256]
        for name in bound:
            more_s = case[name] - cases["plain", size, ranks, seq][name]
            yield f"{size}, {ranks}, {seq}, {name}", (more_s + saved[size]) / functions


def _issue_s(trace: Trace) -> float:
    return float(REFERENCE_HOST.issue_times(trace.calls).sum())


def tables() -> Iterator[ScoreTable]:
    """The GPU's time of each habit, and what functions cost the host."""
    cases = measured()
    names = heading("habits | micro-batch | GPU time | predicted | error", "ll")
    yield ScoreTable("\n".join([*names, *gpu_rows(cases)]))
    costs = dict(function_costs(cases))
    lines = [*heading("model, ranks, positions, timing | each function", "l")]
    lines += [f"| {name} | {cost * 1e6:.0f} us |" for name, cost in costs.items()]
    middle = statistics.median(costs.values())
    both = 2 * REFERENCE_HOST.forward_s + REFERENCE_HOST.autograd_s
    cell = f"{middle * 1e6:.0f} us, {2 * middle / both:.1f} forward ops"
    yield ScoreTable("\n".join([*lines, f"| **median** | {cell} |"]))
