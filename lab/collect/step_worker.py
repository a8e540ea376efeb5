"""A process that prepares one step and measures it when it is told to (`lab.collect.step_times`).

It times a step before any profiler runs: iterations in a row, iterations issued to an idle GPU with
the host's time for each part, and peak memory. Then it counts the Python functions of an iteration,
and records its kernels: op by op where the step is eager, else with the op of each fused kernel.
"""

from __future__ import annotations

import gzip
import itertools
import json
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lab.collect.step_times import GPU, prediction_of
from lab.collect.turns import Turn, in_new_process
from lab.steps.compiled import EAGER, GRAPHS, CompiledStep
from lab.steps.timed_sets import step_named
from wavecast.frameworks.pytorch.compiled.fused_ops import kernels_of
from wavecast.ops.fused import FUSED
from wavecast.traces.step import Op

# The kernels of one iteration as torch.profiler records them, with the op that launched each.


GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
RUNTIME = ("cuda_runtime", "cuda_driver")
REGIONS = (
    "TorchDynamo Cache Lookup",
    "Torch-Compiled Region",
    "Pregraph bytecode",
    "AOTDispatcher Runtime Wrapper Prologue",
    "CompiledFunction",
    "CompiledFunctionBackward",
    "## Call CompiledFxGraph",
    "Optimizer.step",
    "Optimizer.zero_grad",
)
"""The beginnings of the names of the host's regions in compiled steps."""

Event = dict[str, Any]


def profiled(
    run: Callable[[], Any], turn: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> list[Event]:
    """The events of a run, as Chrome's trace format has them.

    Args:
        run: what to profile.
        turn: entered before the run, when the profiler has started, which takes long.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, record_shapes=True) as watched, turn():
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        watched.export_chrome_trace(str(path))
        document = json.loads(path.read_text(encoding="utf-8"))
    return [event for event in document["traceEvents"] if event.get("ph") == "X"]


def ran_kernels(events: list[Event]) -> list[Event]:
    """One row for each kernel, copy and fill, in the order in which they ran."""
    owners = _owners(events)
    rows = []
    works = [event for event in events if event.get("cat") in GPU_WORK]
    works.sort(key=lambda event: float(event["ts"]))
    begin = float(works[0]["ts"]) if works else 0.0
    for event in works:
        details = event.get("args", {})
        rows.append(
            {
                "name": event["name"],
                "us": float(event["dur"]),
                "at_us": round(float(event["ts"]) - begin, 3),
                "grid": details.get("grid"),
                "block": details.get("block"),
                "registers": details.get("registers per thread"),
                "shared": details.get("shared memory"),
                "stream": details.get("stream", 0),
                "op": owners.get(details.get("correlation")),
            }
        )
    return rows


def _owners(events: list[Event]) -> dict[Any, list[Any]]:
    """The outermost aten op around each launch: its name, and shapes and types of its inputs."""
    by_thread: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "cpu_op" and str(event["name"]).startswith("aten::"):
            by_thread[event["tid"]].append(event)
    outermost: dict[Any, list[Event]] = {}
    for thread, called in by_thread.items():
        called.sort(key=lambda event: (float(event["ts"]), -float(event["dur"])))
        kept: list[Event] = []
        for event in called:
            if not kept or float(event["ts"]) >= float(kept[-1]["ts"]) + float(kept[-1]["dur"]):
                kept.append(event)
        outermost[thread] = kept
    owners: dict[Any, list[Any]] = {}
    for event in events:
        if event.get("cat") not in RUNTIME or "correlation" not in event.get("args", {}):
            continue
        owner = _around(outermost.get(event["tid"], []), float(event["ts"]))
        if owner is not None:
            details = owner.get("args", {})
            shapes, types = details.get("Input Dims"), details.get("Input type")
            owners[event["args"]["correlation"]] = [owner["name"], shapes, types]
    return owners


def _around(called: list[Event], moment: float) -> Event | None:
    """The event of a sorted list that contains a moment."""
    low, high = 0, len(called)
    while low < high:
        middle = (low + high) // 2
        if float(called[middle]["ts"]) <= moment:
            low = middle + 1
        else:
            high = middle
    if not low:
        return None
    event = called[low - 1]
    return event if moment <= float(event["ts"]) + float(event["dur"]) else None


def busy_s(rows: list[Event]) -> float:
    """The seconds in which at least one kernel ran."""
    busy = until = 0.0
    for row in rows:
        begin, end = row["at_us"], row["at_us"] + row["us"]
        busy += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return busy * 1e-6


def regions(events: list[Event]) -> dict[str, list[float]]:
    """How often each region of the host's compiled code ran, and for how many microseconds."""
    entries: dict[str, list[float]] = {}
    for event in events:
        name = str(event["name"])
        start = next((region for region in REGIONS if name.startswith(region)), None)
        if start is None and event.get("cat") in RUNTIME:
            start = name
        if start is not None and event.get("cat") not in GPU_WORK:
            entry = entries.setdefault(start, [0, 0.0])
            entry[0] += 1
            entry[1] = round(entry[1] + float(event["dur"]), 1)
    return entries


# Which node each kernel comes from, while torch.compile works on this machine.
#
# Inductor gives kernels of different graphs the same names. Here their numbers run through the
# whole process, so that a kernel's name says which node it was made of.


class KernelOrigins:
    """The op of each kernel that Inductor has generated since `install`, by the kernel's name."""

    def __init__(self) -> None:
        self.ops: dict[str, Op | str] = {}
        """Ops by kernel name; the text of the error where a node could not be described."""
        self.graphs: list[dict[str, int]] = []
        """How many nodes of each class every compiled graph had."""
        self._pending: list[Op | str] = []

    def clear(self) -> None:
        """Forget all kernels."""
        self.ops.clear()
        self.graphs.clear()

    def install(self, sm_count: int) -> None:
        """Listen to Inductor from now on."""
        from torch._inductor.codegen.triton import TritonScheduling
        from torch._inductor.codegen.wrapper import PythonWrapperCodegen
        from torch._inductor.scheduler import Scheduler
        from torch._inductor.virtualized import V

        numbers = itertools.count()
        plain_enter, plain_define = Scheduler.enter_context, TritonScheduling.define_kernel
        plain_codegen = Scheduler.codegen

        def enter_context(scheduler: Any, node: Any) -> Any:
            self._pending = self._described(node, V.graph, sm_count)
            return plain_enter(scheduler, node)

        def define_kernel(scheduling: Any, *arguments: Any, **named: Any) -> Any:
            name = plain_define(scheduling, *arguments, **named)
            if name not in self.ops:
                self.ops[name] = self._pending.pop(0) if self._pending else "no node"
            return name

        def codegen(scheduler: Any) -> Any:
            names = [type(node).__name__ for node in scheduler.nodes]
            self.graphs.append({name: names.count(name) for name in names})
            return plain_codegen(scheduler)

        Scheduler.enter_context = enter_context
        Scheduler.codegen = codegen
        TritonScheduling.define_kernel = define_kernel
        PythonWrapperCodegen.next_kernel_suffix = lambda _: str(next(numbers))

    @staticmethod
    def _described(node: Any, graph: Any, sm_count: int) -> list[Op | str]:
        names = {type(node).__name__} & {"ExternKernelSchedulerNode", "NopKernelSchedulerNode"}
        if names or node.get_device() is None or node.get_device().type == "cpu":
            return []
        try:
            ops = kernels_of(node, graph, sm_count).ops
        except Exception as error:  # the other kernels still count
            return [f"{type(error).__name__}: {error}"[:300]]
        return [op for op in ops if op.name in FUSED or op.name.startswith("inductor.")]


class LateChoice:
    """Lets Inductor choose between versions of a kernel when the machine is quiet.

    Inductor times two or more versions of most kernels when they first run. While other processes
    use the GPU, that says nothing. So the first version runs until `quiet` is called.
    """

    def __init__(self) -> None:
        self.is_quiet = False
        self._waiting: list[tuple[Any, list[Any]]] = []

    def install(self) -> None:
        """Put off all choices from now on, and make them with fewer runs."""
        from torch._inductor.runtime.benchmarking import InductorBenchmarker
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        plain_choose = CachingAutotuner.autotune_to_one_config
        plain_time = InductorBenchmarker.benchmark_gpu
        fewer = {"memory_warmup_iters": 20, "benchmark_iters": 20, "max_benchmark_duration": 5}

        def choose(tuner: Any, *arguments: Any, **named: Any) -> Any:
            if self.is_quiet:
                return plain_choose(tuner, *arguments, **named)
            self._waiting.append((tuner, list(tuner.launchers)))
            tuner.launchers = tuner.launchers[:1]
            return None

        def benchmark_gpu(timer: Any, run: Any, *arguments: Any, **named: Any) -> Any:
            return plain_time(timer, run, *arguments, **(named | fewer))

        CachingAutotuner.autotune_to_one_config = choose
        InductorBenchmarker.benchmark_gpu = benchmark_gpu

    def quiet(self) -> None:
        """From the next run on, choose: of kernels that have already run, and of new ones."""
        self.is_quiet = True
        for tuner, launchers in self._waiting:
            tuner.launchers = launchers
        self._waiting.clear()

    def noisy(self) -> None:
        """Put off choices again."""
        self.is_quiet = False
        self._waiting.clear()


WARM_UP, COMPILED_WARM_UP, BRIEF_WARM_UP = 4, 5, 3
MEMORY_WAIT_S = 1.0
"""How long a step waits for memory that other steps use while they prepare."""
TIMED_S, FEWEST, MOST = 0.8, 24, 48
ROUNDS, ALONE = 3, 10

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
    kernels = ran_kernels(events)
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
    from wavecast.frameworks.pytorch.measurement import calibration as benchmark

    places = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    with turn.taken():
        times = {place: benchmark.time_host(place, rounds=12) for place in places}
    return {"host": times, "processor": benchmark.processor()}


def trace_step(step: CompiledStep, folder: Path) -> Row:
    """Trace a step without its GPU, with the software of this machine, and predict it."""
    import wavecast

    begin = time.perf_counter()
    trace = wavecast.trace(partial(step.make, step.mode), gpu=GPU)
    trace.save(folder / f"{step.name}.traced.json.gz")
    return {
        "traced": step.name,
        "trace_s": round(time.perf_counter() - begin, 1),
        **prediction_of(trace, step.mode),
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
