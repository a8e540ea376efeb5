"""How long does the host take to issue steps, and how long do they run? Measures on this machine.

    python -m lab.collect.host_reality OUT [--seconds 140] [--parts PART ...]

Needs a GPU and transformers. Writes OUT/host.json, which becomes a file of measurements/h200/host:

- hosts: the host benchmark of `wavecast calibrate`, on the CPU and on the GPU,
- eager: wall, issue and GPU-busy times of host-bound steps; then the same on two slower hosts that
  are simulated here: Python is slowed by a profiling hook, or all cores are kept busy,
- again: the host benchmark a second time,
- graphs: steps captured as CUDA graphs: the times of a replay, of its launch and of its kernels,
- measured: a step that replays a graph, as measured by `wavecast.measure`.

Nothing is started after SECONDS. `lab.score.graph_accuracy` reads the file. The first use of a
profiler slows everything after it (docs/adr/0018).
"""

from __future__ import annotations

import faulthandler
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lab.collect.gpu_steps import captured, folder_and_seconds, release_memory, single_s, steady_s
from lab.collect.reality import time_issue
from lab.steps.graphed import GRAPHED, Key, Step, make_capturable, make_step, named
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
"""Steps of `lab.steps.reality` (also in steps.csv) and of the suite (also in suite.csv)."""
SLOWED = (*HOST_BOUND[:5], HOST_BOUND[10])
"""The steps that are also timed on the slower hosts."""
REPEATS = 15
GRAPH_WARM_UP = 4


def clock(step: Step, warm_up: int = 4, repeats: int = REPEATS) -> dict[str, float]:
    """The wall time of a step in the steady state, and the host time to issue it to an idle GPU."""
    for _ in range(warm_up):
        step()
    issues, _ = single_s(step, repeats)
    walls = [steady_s(step, repeats // 3) for _ in range(3)]
    return {"wall_s": statistics.median(walls), "issue_s": statistics.median(issues)}


def busy(step: Step) -> dict[str, float]:
    """The GPU-busy time of a step and its number of kernels."""
    seen = profiling.gpu_activity(step, 2)
    return {"gpu_s": seen.busy_s, "kernels": seen.names.total()}


@contextmanager
def slow_python() -> Iterator[None]:
    """A slower host: Python calls a hook at each call and return, as under a profiler."""
    sys.setprofile(lambda *_: None)
    try:
        yield
    finally:
        sys.setprofile(None)


@contextmanager
def busy_cores() -> Iterator[None]:
    """A slower host: every core also runs another process."""
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
    """The results, written to the file after each part. Parts after the time limit are skipped."""

    def __init__(self, path: Path, seconds: float) -> None:
        self.path, self.begin, self.seconds = path, time.monotonic(), seconds
        self.results: dict[str, Any] = {}

    def add(self, section: str, name: str, work: Callable[[], dict[str, Any]]) -> None:
        """Run a part and write its result."""
        began = time.monotonic() - self.begin
        if began > self.seconds:
            print(f"{section} {name}: skipped, the time is up", flush=True)
            return
        try:
            result: dict[str, Any] = work()
        except Exception as error:  # the other parts still count
            result = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        self.results.setdefault(section, {})[name] = result
        self.path.write_text(json.dumps(self.results, indent=1), encoding="utf-8")
        took = time.monotonic() - self.begin - began
        cells = " ".join(f"{k} {_shown(v)}" for k, v in result.items())
        print(f"[{began:5.1f} s +{took:4.1f}] {section} {name}: {cells}", flush=True)


def _shown(value: Any) -> str:
    return f"{value * 1e6:.2f}us" if isinstance(value, float) else str(value)


def about() -> dict[str, Any]:
    """A description of the machine."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "software": host_benchmark.versions("cuda"),
        "cores": len(os_cores()),
        "processor": host_benchmark.processor(),
    }


def eager(record: Record) -> dict[Key, Step]:
    """Time all host-bound steps. Returns those that the slower hosts also run."""
    kept: dict[Key, Step] = {}

    def timed(key: Key) -> dict[str, float]:
        step = make_step(key)
        if key in SLOWED:
            kept[key] = step
        return clock(step) | busy(step)

    for key in HOST_BOUND:
        record.add("eager", named(key), partial(timed, key))
    return kept


def slowed(record: Record, steps: dict[Key, Step]) -> None:
    """Time the host benchmark and these steps on the slower hosts."""
    for name, slower in (("slow python", slow_python), ("busy cores", busy_cores)):
        with slower():
            record.add(name, "cpu", host_benchmark.time_host)
            record.add(name, "cuda", partial(host_benchmark.time_host, "cuda"))
            for key, step in steps.items():
                record.add(name, named(key), partial(clock, step, warm_up=1))


def graphs(record: Record) -> None:
    """Time steps that were captured as CUDA graphs."""

    def timed(key: Key) -> dict[str, Any]:
        step = make_capturable(key)  # keeps the memory alive that the graph uses
        replay = captured(step, GRAPH_WARM_UP).replay
        return clock(replay) | busy(replay)

    for key in GRAPHED:
        record.add("graphed", named(key), partial(timed, key))
        release_memory()


def measured_graph(record: Record) -> None:
    """Measure a step that replays a graph with `wavecast.measure`."""

    def timed(key: Key) -> dict[str, Any]:
        step = make_capturable(key)
        figures = seen(captured(step, GRAPH_WARM_UP).replay)
        del step
        return figures

    record.add("measured", named(GRAPHED[0]), partial(timed, GRAPHED[0]))


def seen(replay: Step) -> dict[str, Any]:
    """The results of `wavecast.measure` for a step that replays a graph."""
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
    """Run the host benchmark."""
    record.add("host", "cpu", host_benchmark.time_host)
    record.add("host", "about", about)
    record.add("host", "cuda", partial(host_benchmark.time_host, "cuda"))
    record.add("host", "gpu", host_benchmark.time_gpu)
    record.add("host", "probe", time_issue)


def again(record: Record) -> None:
    """Run the host benchmark again, to see how much two runs differ."""
    record.add("again", "cpu", host_benchmark.time_host)
    record.add("again", "cuda", partial(host_benchmark.time_host, "cuda"))


PARTS: dict[str, Callable[[Record], None]] = {
    "hosts": hosts,
    "eager": lambda record: slowed(record, eager(record)),
    "again": again,
    "graphs": graphs,
    "measured": measured_graph,
}


def main() -> None:
    """Measure the chosen parts."""
    parser = folder_and_seconds(__doc__, 140.0)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    given = parser.parse_args()
    faulthandler.enable()
    given.out.mkdir(parents=True, exist_ok=True)
    record = Record(given.out / "host.json", given.seconds)
    for part in given.parts:
        PARTS[part](record)
    print(f"{time.monotonic() - record.begin:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
