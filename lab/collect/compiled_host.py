"""The host's side of compiled steps, which no profiler has slowed.

    python -m lab.collect.compiled OUT --seconds 140 --workers 14 --host

writes OUT/host.jsonl.gz: for each step its wall time and the host's time in each of its parts
(clearing gradients, forward pass, backward pass, clipping, optimizer), compiled and eager; for each
piece of `lab.steps.host_parts` the time of one call; and the host benchmark of the machine.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lab.collect.inductor_hook import KernelOrigins
from lab.steps.compiled import DEVICE, EAGER, HOST_STEPS, STEPS, CompiledStep
from lab.steps.compiled_blind import BLIND
from lab.steps.host_parts import LISTS, PARTS, Make

WARM_UP, COMPILED_WARM_UP = 3, 5
ITERATIONS, ROUNDS = 8, 3
CALLS = 20
"""Calls of a piece that are timed together. The GPU's queue holds 1024 kernels."""
LIGHT = ("efficientnet", "mobilenet", "convnext", "resnet50", "regnet", "shufflenet", "mnasnet")
"""Steps that take longest to compile come last."""

Row = dict[str, Any]
Run = Callable[[], Any]


def tasks() -> list[str]:
    """What to measure, the most telling first."""
    first = (
        "lstm-fp32 hf-llama-bf16-weights blind-qwen2 unet-bf16 blind-unet hf-llama-tf32 dlrm-fp32 "
        "blind-albert hf-gpt2-tf32-fused hand-gpt-bf16 detector-bf16-last resnet18-bf16-last "
        "hf-vit-tf32 hf-bert-graphs tiny-4 tiny-12 tiny-4-graphs tiny-4-compiled-adamw "
        "tower-fp32-graphs plain-llama-bf16 hand-bert-tf32 blind-gpt blind-opt blind-neox"
    ).split()
    names = [step.name for step in (*STEPS, *HOST_STEPS, *BLIND)]
    rest = [name for name in names if name not in first and not name.startswith(LIGHT)]
    pieces = [f"part {name}" for name in PARTS]
    steps = [f"host {name}" for name in first]
    return ["part host", *steps[:13], *pieces, *steps[13:], *(f"host {name}" for name in rest)]


@contextmanager
def watched(marks: dict[str, list[float]]) -> Iterator[None]:
    """Note when gradients are cleared, the backward pass runs and the optimizer works."""
    clock = time.perf_counter
    plain = {
        "zero": (torch.optim.Optimizer, "zero_grad"),
        "backward": (torch.Tensor, "backward"),
    }
    kept = {name: getattr(owner, attribute) for name, (owner, attribute) in plain.items()}

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            marks.setdefault(f"{name} begins", []).append(clock())
            try:
                return function(*arguments, **named)
            finally:
                marks.setdefault(f"{name} ends", []).append(clock())

        return run

    for name, (owner, attribute) in plain.items():
        setattr(owner, attribute, noting(name, kept[name]))
    try:
        yield
    finally:
        for name, (owner, attribute) in plain.items():
            setattr(owner, attribute, kept[name])


def _parts(step: Run) -> Row:
    """The median seconds of each part of an iteration, as the host sees them."""
    marks: dict[str, list[float]] = {}
    begins, ends = [], []
    with watched(marks):
        for _ in range(2 * ITERATIONS):
            begins.append(time.perf_counter())
            step()
            ends.append(time.perf_counter())
            if torch.cuda.is_available():
                torch.cuda.synchronize()
    if any(len(marks.get(f"{n} {e}", ())) != len(begins) for n in ("zero", "backward")
           for e in ("begins", "ends")):  # fmt: skip
        return {}
    times = {
        "zero": (marks["zero begins"], marks["zero ends"]),
        "forward": (marks["zero ends"], marks["backward begins"]),
        "backward": (marks["backward begins"], marks["backward ends"]),
        "optimizer": (marks["backward ends"], ends),
    }
    return {
        f"{name}_s": statistics.median(b - a for a, b in zip(*pair, strict=True))
        for name, pair in times.items()
    }


def timed(step: Run) -> Row:
    """The wall time of an iteration, the host's time to issue one, and that of its parts."""
    rounds, issued = [], []
    for _ in range(ROUNDS):
        _wait()
        begin = time.perf_counter()
        for _ in range(ITERATIONS):
            step()
        _wait()
        rounds.append((time.perf_counter() - begin) / ITERATIONS)
    for _ in range(ITERATIONS):
        begin = time.perf_counter()
        step()
        issued.append(time.perf_counter() - begin)
        _wait()
    row = {"wall_s": statistics.median(rounds), "rounds_s": rounds}
    return row | {"issued_s": statistics.median(issued)} | _parts(step)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class HostTask:
    """A whole step, whose host is timed compiled and eager."""

    def __init__(self, step: CompiledStep, origins: KernelOrigins) -> None:
        self.step, self.origins = step, origins
        begin = time.perf_counter()
        self.compiled = step.make(step.mode)
        for _ in range(COMPILED_WARM_UP):
            self.compiled()
        _wait()
        self.compile_s = time.perf_counter() - begin

    def measure(self) -> Row:
        """The times of the step."""
        row: Row = {"step": self.step.name, "family": self.step.family, "mode": self.step.mode}
        row |= {"compile_s": round(self.compile_s, 1), "graphs": list(self.origins.graphs)}
        row["compiled"] = timed(self.compiled)
        del self.compiled
        gc.collect()
        eager = self.step.make(EAGER)
        for _ in range(WARM_UP):
            eager()
        row["eager"] = timed(eager)
        return row


class PartTask:
    """A piece of code that is called many times; "host" for the benchmark of the machine."""

    def __init__(self, name: str, origins: KernelOrigins) -> None:
        self.name, self.origins = name, origins
        self.runs: dict[str, Run] = {}
        if name == "host":
            for piece, make in LISTS.items():
                self._add(f"eager {piece}", make, compiled=False)
            return
        self._add("compiled", PARTS[name], compiled=True)
        self._add("eager", PARTS[name], compiled=False)

    def _add(self, name: str, make: Make, *, compiled: bool) -> None:
        run = make(compiled, DEVICE)
        for _ in range(COMPILED_WARM_UP):
            run()
        _wait()
        self.runs[name] = run

    def measure(self) -> Row:
        """The seconds of one call of each."""
        row: Row = {"part": self.name, "graphs": list(self.origins.graphs)}
        for name, run in self.runs.items():
            times = []
            for _ in range(3 * ROUNDS):
                _wait()
                begin = time.perf_counter()
                for _ in range(CALLS):
                    run()
                times.append((time.perf_counter() - begin) / CALLS)
            row[f"{name}_s"] = statistics.median(times)
        if self.name == "host" and torch.cuda.is_available():
            from wavecast.frameworks.pytorch.measurement import host_benchmark

            row["benchmark"] = {d: host_benchmark.time_host(d, 12) for d in ("cpu", "cuda")}
            row["processor"] = host_benchmark.processor()
        return row
