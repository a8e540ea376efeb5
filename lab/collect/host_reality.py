"""The host side of a step on a GPU machine: what issuing costs there, and what steps then take.

On a GPU:   python -m lab.collect.host_reality OUT [SECONDS [PART...]]

writes OUT/host.json with

- the host benchmark on the CPU and on the GPU (`wavecast calibrate`'s host part),
- host-bound steps: wall, issue and GPU-busy times,
- the same on slower hosts, made from this one: one whose Python is slowed by a profiling hook, and
  one whose cores are all busy with something else,
- steps captured as CUDA graphs: the time of a replay, its launch, its kernels,
- what `wavecast.measure` makes of a step that replays a graph.

What has not begun after SECONDS (140) is left out; parts are hosts, eager, again, graphs and
measured. `lab.score.graph_accuracy` reads the file;
what is timed after the first look at the GPU is slowed by it (docs/adr/0018).
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lab.collect.reality import time_issue
from lab.steps.reality import STEPS
from wavecast import suite
from wavecast.frameworks.pytorch.measurement import host_benchmark, profiling
from wavecast.frameworks.pytorch.measurement.iteration import measure

HOST_BOUND = (
    ("dcgan", 64, "bf16"),
    ("resnet50", 2, "fp32"),
    ("bert-base", 16, "bf16"),
    ("mobilenet_v3", 32, "bf16"),
    ("vit", 2, "bf16"),
    ("gpt2", 2, "bf16"),
    ("lstm", 2, "bf16"),
    ("gru", 64, "bf16"),
    ("suite/googlenet", 8, "bf16"),
    ("suite/transformer", 32, "bf16"),
    ("suite/dlrm", 1024, "fp32"),
    ("suite/a3c", 8, "fp32"),
    ("suite/bert-large", 8, "bf16"),
)
"""Steps of `lab.steps.reality` (measured before, see steps.csv) and of the suite (suite.csv)."""
SLOWED = (*HOST_BOUND[:5], HOST_BOUND[10])
GRAPHED = (
    ("dcgan", 64, "bf16"),
    ("resnet50", 2, "fp32"),
    ("bert-base", 16, "bf16"),
    ("mobilenet_v3", 32, "bf16"),
    ("vit", 2, "bf16"),
    ("suite/googlenet", 8, "bf16"),
    ("resnet50", 32, "bf16"),
)
REPEATS = 15

Step = Callable[[], Any]
Key = tuple[str, int, str]


def make_step(key: Key) -> Step:
    """The step of a name, a batch and a precision."""
    name, batch, precision = key
    if name.startswith("suite/"):
        return suite.benchmark(name.removeprefix("suite/")).make_step(batch, precision)
    step: Step = STEPS[name][0](batch, precision)
    return step


def clock(step: Step, warm_up: int = 4, repeats: int = REPEATS) -> dict[str, float]:
    """Wall time of a step among others, and the host's time to issue one to an idle GPU."""
    for _ in range(warm_up):
        step()
    torch.cuda.synchronize()
    issues = []
    for _ in range(repeats):
        begin = time.perf_counter()
        step()
        issues.append(time.perf_counter() - begin)
        torch.cuda.synchronize()
    walls = []
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(repeats // 3):
            step()
        torch.cuda.synchronize()
        walls.append((time.perf_counter() - begin) / (repeats // 3))
    return {"wall_s": statistics.median(walls), "issue_s": statistics.median(issues)}


def busy(step: Step) -> dict[str, float]:
    """The GPU's time of a step, and how many kernels it runs."""
    seen = profiling.gpu_activity(step, 2)
    return {"gpu_s": seen.busy_s, "kernels": seen.names.total()}


def make_capturable(key: Key) -> Step:
    """The step with optimizers that keep their count of steps on the GPU, as a graph needs it."""
    step = make_step(key)
    for found in gc.get_objects():
        # By its type: asking some other objects for their class warns.
        if issubclass(type(found), torch.optim.Optimizer) and not found.state:
            for group in found.param_groups:
                if "capturable" in group:
                    group["capturable"] = True
    return step


def capture(step: Step) -> torch.cuda.CUDAGraph:
    """A step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


@contextmanager
def slow_python() -> Iterator[None]:
    """Python calls a function at each call and return, as under a profiler."""
    sys.setprofile(lambda *_: None)
    try:
        yield
    finally:
        sys.setprofile(None)


@contextmanager
def busy_cores() -> Iterator[None]:
    """Every core has another process to run, too."""
    spin = "while True: pass"
    others = [subprocess.Popen([sys.executable, "-S", "-c", spin]) for _ in os_cores()]
    time.sleep(0.5)
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def os_cores() -> set[int]:
    """The cores that this process may use."""
    return os.sched_getaffinity(0)


class Record:
    """What was found, written after each part; parts that begin too late are left out."""

    def __init__(self, path: Path, seconds: float) -> None:
        self.path, self.begin, self.seconds = path, time.monotonic(), seconds
        self.found: dict[str, Any] = {}

    def add(self, section: str, name: str, work: Callable[[], dict[str, Any]]) -> None:
        """Do a part and write what came of it."""
        began = time.monotonic() - self.begin
        if began > self.seconds:
            print(f"{section} {name}: left out", flush=True)
            return
        try:
            found: dict[str, Any] = work()
        except Exception as error:  # one that fails must not cost the others
            found = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        self.found.setdefault(section, {})[name] = found
        self.path.write_text(json.dumps(self.found, indent=1), encoding="utf-8")
        took = time.monotonic() - self.begin - began
        cells = " ".join(f"{k} {_shown(v)}" for k, v in found.items())
        print(f"[{began:5.1f} s +{took:4.1f}] {section} {name}: {cells}", flush=True)


def _shown(value: Any) -> str:
    return f"{value * 1e6:.2f}us" if isinstance(value, float) else str(value)


def about() -> dict[str, Any]:
    """The machine."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "software": host_benchmark.versions("cuda"),
        "cores": len(os_cores()),
        "processor": host_benchmark.processor(),
    }


def named(key: Key) -> str:
    """A step in one word."""
    return "-".join(map(str, key))


def eager(record: Record) -> dict[Key, Step]:
    """All host-bound steps; gives those that slower hosts shall run."""
    kept: dict[Key, Step] = {}

    def look(key: Key) -> dict[str, float]:
        step = make_step(key)
        if key in SLOWED:
            kept[key] = step
        return clock(step) | busy(step)

    for key in HOST_BOUND:
        record.add("eager", named(key), partial(look, key))
    return kept


def slowed(record: Record, steps: dict[Key, Step]) -> None:
    """The same steps on slower hosts."""
    for name, slower in (("slow python", slow_python), ("busy cores", busy_cores)):
        with slower():
            record.add(name, "cpu", host_benchmark.time_host)
            record.add(name, "cuda", partial(host_benchmark.time_host, "cuda"))
            for key, step in steps.items():
                record.add(name, named(key), partial(clock, step, warm_up=1))


def graphs(record: Record) -> None:
    """Steps as CUDA graphs."""

    def look(key: Key) -> dict[str, Any]:
        step = make_capturable(key)  # holds the memory that the graph works on
        replay = capture(step).replay
        return clock(replay) | busy(replay)

    for key in GRAPHED:
        record.add("graphed", named(key), partial(look, key))
        gc.collect()
        torch.cuda.empty_cache()


def measured_graph(record: Record) -> None:
    """A graph as `wavecast.measure` sees it."""

    def look(key: Key) -> dict[str, Any]:
        step = make_capturable(key)
        found = seen(capture(step).replay)
        del step
        return found

    record.add("measured", named(GRAPHED[0]), partial(look, GRAPHED[0]))


def seen(replay: Step) -> dict[str, Any]:
    """What `wavecast.measure` says of a step that replays a graph."""
    trace = measure(replay, repeats=5, recordings=1)
    whole = trace.measurement
    assert whole is not None
    return {
        "seconds": whole.seconds,
        "gpu_s": whole.gpu_s,
        "host_s": whole.host_s,
        "calls": len(trace),
        "kernels": sum(len(call.kernels) for call in trace),
        "kernels_s": sum(kernel.seconds for call in trace for kernel in call.kernels),
        "first": sorted({call.op.name[:60] for call in trace})[:4],
        "notes": list(trace.notes),
    }


def hosts(record: Record) -> None:
    """The host benchmark."""
    record.add("host", "cpu", host_benchmark.time_host)
    record.add("host", "about", about)
    record.add("host", "cuda", partial(host_benchmark.time_host, "cuda"))
    record.add("host", "gpu", host_benchmark.time_gpu)
    record.add("host", "probe", time_issue)


def again(record: Record) -> None:
    """The host benchmark once more: how far do two runs differ?"""
    record.add("again", "cpu", host_benchmark.time_host)
    record.add("again", "cuda", partial(host_benchmark.time_host, "cuda"))


PARTS: dict[str, Callable[[Record], None]] = {
    "hosts": hosts,
    "eager": lambda record: slowed(record, eager(record)),
    "again": again,
    "graphs": graphs,
    "measured": measured_graph,
}


def main(out: Path, seconds: float, parts: Sequence[str]) -> None:
    """Measure the parts."""
    faulthandler.enable()
    out.mkdir(parents=True, exist_ok=True)
    record = Record(out / "host.json", seconds)
    for part in parts:
        PARTS[part](record)
    print(f"{time.monotonic() - record.begin:.0f} s in all", flush=True)


if __name__ == "__main__":
    given = sys.argv[2:] or ["140"]
    main(Path(sys.argv[1]), float(given[0]), given[1:] or list(PARTS))
