"""A process that prepares one step or bundle after another, and measures it when it is told to.

`lab.collect.compiled` starts several. They compile at the same time; while one measures, the others
are stopped.
"""

from __future__ import annotations

import gc
import gzip
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lab.collect.compiled_host import HostTask, PartTask
from lab.collect.inductor_hook import KernelOrigins, LateChoice
from lab.collect.profiled import busy_s, kernels_of, profiled, regions
from lab.steps.compiled import (
    DEVICE,
    EAGER,
    GRAPHS,
    HOST_STEPS,
    STEPS,
    CompiledStep,
    step_named,
)
from lab.steps.compiled_blind import BLIND
from lab.steps.compiled_blind_2 import BLIND_2
from lab.steps.fused_functions import drawn
from wavecast.traces.step import Op

WARM_UP = 4
TIMED_S, FEWEST, MOST = 0.35, 5, 40
ALONE = 7
"""Iterations that are timed one by one on an idle GPU."""
BUNDLE = 12
"""Functions that are compiled together."""
BUNDLE_RUNS = 5

Row = dict[str, Any]


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def release() -> None:
    """Free what the last task left."""
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def timed(step: Callable[[], Any]) -> Row:
    """The wall time of an iteration, the host's share and the memory of a warm step."""
    synchronize()
    begin = time.perf_counter()
    step()
    synchronize()
    once_s = max(time.perf_counter() - begin, 1e-6)
    repeats = int(min(max(TIMED_S / once_s, FEWEST), MOST))
    rounds = []
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(max(repeats // 3, 2)):
            step()
        synchronize()
        rounds.append((time.perf_counter() - begin) / max(repeats // 3, 2))
    issued, done = [], []
    for _ in range(ALONE):
        begin = time.perf_counter()
        step()
        issued.append(time.perf_counter() - begin)
        synchronize()
        done.append(time.perf_counter() - begin)
    row = {"wall_s": statistics.median(rounds), "rounds_s": rounds}
    row |= {"issued_s": statistics.median(issued), "alone_s": statistics.median(done)}
    return row | _memory(step)


def _memory(step: Callable[[], Any]) -> Row:
    if not torch.cuda.is_available():
        return {}
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return {
        "held_bytes": held,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def recorded(step: Callable[[], Any]) -> Row:
    """The kernels of one iteration, and the regions of the host."""
    events = profiled(step)
    rows = kernels_of(events)
    return {"busy_s": busy_s(rows), "regions": regions(events), "kernels": rows}


def encoded(op: Op | str) -> Any:
    """An op as JSON."""
    if isinstance(op, str):
        return op
    tensors = [[[*t.shape], t.dtype, t.strides, t.device] for t in (*op.inputs, *op.outputs)]
    return [op.name, len(op.inputs), tensors, dict(op.attrs)]


class StepTask:
    """A whole step: compiled first, then eager."""

    def __init__(self, step: CompiledStep, origins: KernelOrigins) -> None:
        self.step, self.origins = step, origins
        begin = time.perf_counter()
        self.compiled = step.make(step.mode)
        for _ in range(WARM_UP):
            self.compiled()
        synchronize()
        self.compile_s = time.perf_counter() - begin

    def measure(self) -> Row:
        """Everything about the step, compiled and eager.

        A profiler slows the process down for good, so both are timed before either is profiled.
        """
        row: Row = {"step": self.step.name, "family": self.step.family, "mode": self.step.mode}
        row["compile_s"] = round(self.compile_s, 2)
        for _ in range(2):
            self.compiled()
        row["compiled"] = timed(self.compiled)
        try:
            gc.collect()  # release() would also forget the compiled code
            before = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
            eager = self.step.make(EAGER)
            for _ in range(3):
                eager()
            row["eager"] = without(before, timed(eager))
            row["eager"] |= recorded(eager)
        except Exception as error:  # the compiled half still counts
            row["eager_error"] = repr(error)[:300]
        row["compiled"] |= recorded(self.compiled)
        row["graphs"] = list(self.origins.graphs)
        used = {kernel["name"] for kernel in row["compiled"]["kernels"]}
        row["ops"] = {n: encoded(op) for n, op in self.origins.ops.items() if n in used}
        return row


def without(held_bytes: int, row: Row) -> Row:
    """A timed step less the memory that something else held all the while."""
    return {
        name: value - held_bytes if name.endswith("_bytes") else value
        for name, value in row.items()
    }


class BundleTask:
    """Small functions that are compiled together; their kernels are timed several times."""

    def __init__(self, seed: int, origins: KernelOrigins) -> None:
        self.functions, self.origins = drawn(seed, BUNDLE), origins
        self.seed = seed
        functions = self.functions

        def together(arguments: list[list[Any]]) -> list[Any]:
            return [run(given) for run, given in zip(functions, arguments, strict=True)]

        self.run = torch.compile(together, dynamic=False)
        self.arguments = [function.tensors(DEVICE) for function in functions]
        self._again()
        self._again()

    def _again(self) -> None:
        with torch.no_grad():
            self.run(self.arguments)
        synchronize()

    def measure(self) -> Row:
        """The median seconds of each kernel."""

        def repeated() -> None:
            for _ in range(BUNDLE_RUNS):
                self._again()

        self._again()
        times: dict[str, list[float]] = {}
        shapes: dict[str, Row] = {}
        for kernel in kernels_of(profiled(repeated)):
            if kernel["name"] in self.origins.ops:
                times.setdefault(kernel["name"], []).append(kernel["us"])
                shapes[kernel["name"]] = kernel
        kernels = [
            {
                "name": name,
                "us": statistics.median(each),
                "least_us": min(each),
                "runs": len(each),
                **{key: shapes[name][key] for key in ("grid", "block", "registers", "shared")},
                "op": encoded(self.origins.ops[name]),
            }
            for name, each in times.items()
        ]
        names = [function.name for function in self.functions]
        return {"bundle": self.seed, "functions": names, "kernels": kernels}


Task = StepTask | BundleTask | HostTask | PartTask


def prepared(task: str, origins: KernelOrigins) -> Task:
    """The task of a name: "step NAME", "bundle SEED", "host NAME" or "part NAME"."""
    kind, _, name = task.partition(" ")
    if kind == "bundle":
        return BundleTask(int(name), origins)
    if kind == "part":
        return PartTask(name, origins)
    if kind == "host":
        return HostTask(step_named(name, all_steps()), origins)
    return StepTask(step_named(name, all_steps()), origins)


def is_graphed(task: str) -> bool:
    """Whether a task is a step that runs as CUDA graphs."""
    kind, _, name = task.partition(" ")
    return kind == "step" and any(s.name == name and s.mode == GRAPHS for s in all_steps())


def all_steps() -> tuple[CompiledStep, ...]:
    """The steps that can be asked for by name."""
    return (*STEPS, *HOST_STEPS, *BLIND, *BLIND_2)


def serve(folder: Path, replies: int) -> None:
    """Answer commands from standard input: "prepare TASK" and "measure"."""
    torch.set_float32_matmul_precision("highest")
    origins = KernelOrigins()
    on_gpu = torch.cuda.is_available()
    origins.install(torch.cuda.get_device_properties(0).multi_processor_count if on_gpu else 1)
    choice = LateChoice()
    if on_gpu:
        choice.install()
    task: Task | None = None
    number = 0
    for line in sys.stdin:
        command, _, name = line.strip().partition(" ")
        answer: Row
        try:
            if command == "prepare":
                task = None
                release()
                origins.clear()
                choice.noisy()
                if is_graphed(name):  # a graph keeps the versions with which it was recorded
                    choice.quiet()
                begin = time.perf_counter()
                task = prepared(name, origins)
                gc.collect()
                answer = {"ready": name, "seconds": time.perf_counter() - begin}
            else:
                assert task is not None
                number += 1
                if isinstance(task, StepTask | BundleTask):
                    choice.quiet()  # the host's time is the same with any version of a kernel
                path = folder / f"{os.getpid()}-{number}.json.gz"
                with gzip.open(path, "wt", encoding="utf-8") as file:
                    json.dump(task.measure(), file, separators=(",", ":"))
                answer = {"done": str(path)}
                task = None
                release()
        except Exception as error:
            text = traceback.format_exc(limit=-3)[-600:]
            answer = {"failed": f"{type(error).__name__}: {str(error)[:300]}", "trace": text}
            task = None
        os.write(replies, (json.dumps(answer) + "\n").encode())


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
