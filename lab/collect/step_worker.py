"""A process that prepares one step and measures it when it is told to (`lab.collect.step_times`).

It times a step before any profiler runs: iterations in a row, iterations issued to an idle GPU with
the host's time for each part, and peak memory. Then it counts the Python functions of an iteration,
and records its kernels: op by op where the step is eager, else with the op of each fused kernel.
"""

from __future__ import annotations

import gzip
import json
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lab.collect.inductor_hook import KernelOrigins, LateChoice
from lab.collect.profiled import busy_s, kernels_of, profiled, regions
from lab.collect.turns import Turn, in_new_process
from lab.steps.compiled import EAGER, GRAPHS, CompiledStep
from lab.steps.timed_sets import step_named
from wavecast.traces.step import Op

WARM_UP, COMPILED_WARM_UP, BRIEF_WARM_UP = 4, 5, 3
MEMORY_WAIT_S = 1.0
"""How long a step waits for memory that other steps use while they prepare."""
TIMED_S, FEWEST, MOST = 0.8, 24, 48
ROUNDS, ALONE = 3, 10
GPU = "h200-sxm"

Row = dict[str, Any]
Run = Callable[[], Any]


def wait() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed(step: Run) -> Row:
    """The wall time of an iteration, of several in a row."""
    wait()
    begin = time.perf_counter()
    step()
    wait()
    once_s = max(time.perf_counter() - begin, 1e-6)
    repeats = int(min(max(TIMED_S / once_s, FEWEST), MOST)) // ROUNDS
    rounds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(repeats):
            step()
        wait()
        rounds.append((time.perf_counter() - begin) / repeats)
    return {"wall_s": statistics.median(rounds), "rounds_s": rounds}


@contextmanager
def watched(marks: dict[str, list[float]]) -> Iterator[None]:
    """Note when gradients are cleared, and when the backward pass runs."""
    clock = time.perf_counter
    places = {
        "zero": (torch.optim.Optimizer, "zero_grad"),
        "backward": (torch.Tensor, "backward"),
    }
    kept = {name: getattr(owner, attribute) for name, (owner, attribute) in places.items()}

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            marks.setdefault(f"{name} begins", []).append(clock())
            try:
                return function(*arguments, **named)
            finally:
                marks.setdefault(f"{name} ends", []).append(clock())

        return run

    for name, (owner, attribute) in places.items():
        setattr(owner, attribute, noting(name, kept[name]))
    try:
        yield
    finally:
        for name, (owner, attribute) in places.items():
            setattr(owner, attribute, kept[name])


def parts(step: Run) -> Row:
    """The host's time of an iteration that is issued to an idle GPU, and of each of its parts."""
    marks: dict[str, list[float]] = {}
    begins, ends = [], []
    with watched(marks):
        for _ in range(ALONE):
            begins.append(time.perf_counter())
            step()
            ends.append(time.perf_counter())
            wait()
    issued = {"issued_s": statistics.median(b - a for a, b in zip(begins, ends, strict=True))}
    whole = ("zero begins", "zero ends", "backward begins", "backward ends")
    if any(len(marks.get(name, ())) != ALONE for name in whole):
        return issued
    times = {
        "zero": (marks["zero begins"], marks["zero ends"]),
        "forward": (marks["zero ends"], marks["backward begins"]),
        "backward": (marks["backward begins"], marks["backward ends"]),
        "optimizer": (marks["backward ends"], ends),
    }
    return issued | {
        f"{name}_s": statistics.median(b - a for a, b in zip(*pair, strict=True))
        for name, pair in times.items()
    }


def memory(step: Run) -> Row:
    """The memory before an iteration, and its peaks."""
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


def python_calls(step: Run) -> Row:
    """How many functions an iteration calls, in Python and in C, by package and phase."""
    marks: dict[str, list[float]] = {}
    counts: Counter[str] = Counter()

    def count(frame: Any, event: str, _: Any) -> None:
        if event not in ("call", "c_call"):
            return
        phase = "other"
        if len(marks.get("backward begins", ())):
            phase = "optimizer" if marks.get("backward ends") else "backward"
        elif marks.get("zero ends"):
            phase = "forward"
        where = frame.f_code.co_filename
        for package in ("transformers", "torch/nn", "torch/optim", "torch/utils", "torch"):
            if f"/{package}/" in where:
                break
        else:
            package = "user"
        counts[f"{phase} {package} {event}"] += 1

    with watched(marks):
        sys.setprofile(count)
        try:
            step()
        finally:
            sys.setprofile(None)
    wait()
    return dict(counts)


def encoded(op: Op | str) -> Any:
    """An op as JSON."""
    if isinstance(op, str):
        return op
    tensors = [[[*t.shape], t.dtype, t.strides, t.device] for t in (*op.inputs, *op.outputs)]
    return [op.name, len(op.inputs), tensors, dict(op.attrs)]


def record_eager(step: Run, path: Path) -> Row:
    """Write the trace of an eager step with its kernels and memory."""
    import wavecast

    trace = wavecast.measure(step, warm_up=0, repeats=4, recordings=1)
    trace.save(path)
    assert trace.measurement is not None
    return {"busy_s": trace.measurement.gpu_s, "trace": path.name}


def record_kernels(step: Run, turn: Turn, origins: KernelOrigins) -> Row:
    """The kernels of one iteration, the ops of fused ones, and the regions of the host."""
    events = profiled(step, turn.taken)
    kernels = kernels_of(events)
    used = {kernel["name"] for kernel in kernels}
    return {
        "busy_s": busy_s(kernels),
        "regions": regions(events),
        "kernels": kernels,
        "graphs": list(origins.graphs),
        "ops": {name: encoded(op) for name, op in origins.ops.items() if name in used},
    }


def prepared(step: CompiledStep, choice: LateChoice, brief: bool) -> Run:
    """A step that has run a few times, with its memory given back so that others can run."""
    if step.mode != EAGER and torch.cuda.is_available() and step.mode != GRAPHS:
        choice.install()  # a graph keeps the versions of its recording
    run = step.make(step.mode)
    done, left = 0, BRIEF_WARM_UP if brief else WARM_UP if step.mode == EAGER else COMPILED_WARM_UP
    while done < left:
        try:
            run()
            wait()
            done += 1
        except torch.OutOfMemoryError:  # others prepare as well
            torch.cuda.empty_cache()
            time.sleep(MEMORY_WAIT_S)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return run


def measure_step(step: CompiledStep, folder: Path, turn: Turn, brief: bool) -> Row:
    """Everything about a step; if brief, only its times, memory and kernels."""
    torch.set_float32_matmul_precision("highest")
    on_gpu = torch.cuda.is_available()
    origins, choice = KernelOrigins(), LateChoice()
    if step.mode != EAGER:
        origins.install(torch.cuda.get_device_properties(0).multi_processor_count if on_gpu else 1)
    begin = time.perf_counter()
    run = prepared(step, choice, brief)
    row: Row = {"step": step.name, "family": step.family, "mode": step.mode}
    row["prepare_s"] = round(time.perf_counter() - begin, 2)
    with turn.taken():
        choice.quiet()
        for _ in range(2):
            run()
        row |= timed(run) | ({} if brief else parts(run)) | memory(run)
    if not brief:
        row["python_calls"] = python_calls(run)
    if step.mode == EAGER and on_gpu and not brief:
        with turn.taken():
            row |= record_eager(run, folder / f"{step.name}.json.gz")
    else:
        row |= record_kernels(run, turn, origins)
    return row


def measure_host(turn: Turn) -> Row:
    """The host benchmark."""
    from wavecast.frameworks.pytorch.measurement import host_benchmark as benchmark

    places = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    with turn.taken():
        times = {place: benchmark.time_host(place, rounds=12) for place in places}
    return {"host": times, "processor": benchmark.processor()}


def trace_step(step: CompiledStep, folder: Path) -> Row:
    """Trace a step without its GPU, with the software of this machine, and predict it."""
    import wavecast
    from lab.score.blind_torch import told

    begin = time.perf_counter()
    trace = wavecast.trace(partial(step.make, step.mode), gpu=GPU)
    trace.save(folder / f"{step.name}.traced.json.gz")
    return {
        "traced": step.name,
        "trace_s": round(time.perf_counter() - begin, 1),
        **told(trace, step.mode),
    }


def work(turn: Turn, folder: Path, brief: bool) -> str:
    """Do one task, (step | trace | host) NAME; returns its times in milliseconds."""
    kind, name = turn.task.split()
    if kind != "trace" and not can_use_gpu():
        in_new_process("-m", "lab.collect.step_worker", str(folder), str(int(brief)))(turn)
    if kind == "host":
        row = measure_host(turn)
    elif kind == "trace":
        row = trace_step(step_named(name), folder)
    else:
        row = measure_step(step_named(name), folder, turn, brief)
    with gzip.open(folder / f"{kind}-{name}.row.gz", "wt", encoding="utf-8") as file:
        json.dump(row, file, separators=(",", ":"))
    keys = ("wall_s", "issued_s", "busy_s", "seconds", "gpu_s")
    shown = {key: round(row[key] * 1e3, 2) for key in keys if key in row}
    return " ".join(f"{key} {value}" for key, value in shown.items()) or "yes"


def can_use_gpu() -> bool:
    """Whether this process can use the GPU, if there is one.

    It cannot where the process that it was forked from had used it already.
    """
    try:
        if torch.cuda.is_available():
            torch.zeros(1, device="cuda")
    except RuntimeError:
        return False
    return True


def main() -> None:
    """Do a task in a new process: FOLDER BRIEF KIND NAME DESCRIPTOR."""
    folder, brief, kind, name, descriptor = sys.argv[1:6]
    turn = Turn(f"{kind} {name}", int(descriptor))
    try:
        turn.say(done=work(turn, Path(folder), brief == "1"))
    except Exception as error:
        text = traceback.format_exc(limit=-3)[-500:]
        turn.say(failed=f"{type(error).__name__}: {str(error)[:300]} {text}")


if __name__ == "__main__":
    main()
