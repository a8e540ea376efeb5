"""How long do iterations take on this machine, and how fast is its host? Times both on the GPU.

    python -m lab.collect.iterations OUT --seed N [--seconds 540]
    python -m lab.collect.iterations --count FILE --cache FOLDER

The first needs a GPU and transformers; it writes OUT/machine.json, which becomes a file of
measurements/h200/iterations. The second needs no GPU. It traces the steps of such a file and adds
how often each needs each cost of a host; `--cache` keeps the traces.

The host benchmark (`wavecast calibrate`) runs first, as users run it, and a little of it again
between timings: these hosts are virtual, and for seconds or minutes they get slower by a half. So
each step is timed again after others were, and the median counts. The steps are those of the suite
in four precisions, at the usual batch and at a quarter of it, in an order drawn by the seed; what
time does not allow is left out. No profiler runs in the process before the last line. The first
three files were measured otherwise (measurements/README.md says how), and have models of the blind
test, too.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.measured.timed import busy_s
from lab.measured.timed_traces import asked_of, traced
from lab.steps.by_name import SEED, MakeStep, Step, suite_steps

WARM_UP = 2
TIMED_S = 0.3
"""About so long a step runs at a time, once it is warm."""
TIMINGS = 3
PROBES, PROBED = 3, 4
"""Rounds of the host benchmark, and after how many timings they run."""
MOST_HELD, HELD_BYTES = 60, 14e9
"""Steps that are held in memory at a time, and the bytes of their parameters: they take turns."""


def known_steps(seed: int) -> list[tuple[str, MakeStep]]:
    """The steps of the suite whose GPU time is known, in an order drawn by the seed."""
    known = busy_s()
    steps = [(name, make) for name, make in suite_steps() if name in known]
    random.Random(seed).shuffle(steps)
    return steps


def measure(out: Path, seconds: float, seed: int) -> None:
    """Time steps, and the host between them, into `machine.json`."""
    from wavecast.frameworks.pytorch.measurement import host_benchmark, profiling

    out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    about = {"software": host_benchmark.versions("cuda"), "processor": host_benchmark.processor()}
    host = {"cpu": host_benchmark.time_host("cpu"), "cuda": host_benchmark.time_host("cuda")}
    document: dict[str, Any] = {"about": about, "host": host, "steps": {}}
    waiting = known_steps(seed)
    while waiting and time.monotonic() < until:
        document["steps"] |= _timings(_held(waiting), until)
        (out / "machine.json").write_text(json.dumps(document), encoding="utf-8")
    print(f"{len(waiting)} steps are left", flush=True)
    document["profiled"] = profiling.has_profiled_gpu()
    document["gpu"] = host_benchmark.time_gpu()  # last, because it runs a profiler
    (out / "machine.json").write_text(json.dumps(document), encoding="utf-8")


def _held(waiting: list[tuple[str, MakeStep]]) -> dict[str, Step]:
    """The first of the waiting steps, as many as memory holds at a time."""
    import torch

    from lab.collect.gpu_steps import release_memory

    held: dict[str, Step] = {}
    gc.unfreeze()
    release_memory()
    while waiting and len(held) < MOST_HELD and torch.cuda.memory_allocated() < HELD_BYTES:
        name, make = waiting.pop(0)
        with torch.device("cuda"):  # parameters are drawn there, which is many times as fast
            held[name] = make()
    gc.collect()
    gc.freeze()  # Python must not search the held steps for garbage while one of them is timed
    return held


def _timings(held: Mapping[str, Step], until: float) -> dict[str, dict[str, list[Any]]]:
    """Iterations in the steady state, of all steps in turn, and the host's times in between.

    Steps that did not get all their timings are left out.
    """
    from lab.collect.gpu_steps import iteration_s
    from wavecast.frameworks.pytorch.measurement import host_benchmark

    timed: dict[str, dict[str, list[Any]]] = {name: {"timings_s": [], "hosts": []} for name in held}
    for timing in range(TIMINGS):
        for place, (name, step) in enumerate(held.items()):
            if time.monotonic() > until:
                break
            for _ in range(WARM_UP):
                step()
            timed[name]["timings_s"].append(iteration_s(step, TIMED_S))
            if (place + timing) % PROBED == 0:
                timed[name]["hosts"].append(host_benchmark.time_host("cuda", rounds=PROBES))
    for name, lists in timed.items():
        print(name, *(f"{1e3 * seconds:.2f} ms" for seconds in lists["timings_s"]), flush=True)
    return {name: lists for name, lists in timed.items() if len(lists["timings_s"]) == TIMINGS}


def count(path: Path, cache: Path) -> None:
    """Add to a machine's file how often its steps need each cost of a host, by their traces."""
    document = json.loads(path.read_text(encoding="utf-8"))
    for name, step in document["steps"].items():
        step["asked"] = asked_of(traced(cache, name, search=bool(step.get("search"))))
    path.write_text(json.dumps(document), encoding="utf-8")


def main() -> None:
    """Measure, or count for a file that was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, nargs="?", metavar="OUT", help="folder to write into")
    parser.add_argument("--seed", type=int, default=SEED, help="draws the order of steps")
    parser.add_argument("--seconds", type=float, default=540.0, help="begin nothing after these")
    parser.add_argument("--count", type=Path, metavar="FILE", help="count for a file instead")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="where traces are kept")
    given = parser.parse_args()
    if given.count and given.cache:
        count(given.count, given.cache)
    elif given.out and not given.count:
        measure(given.out, given.seconds, given.seed)
    else:
        parser.error("give OUT to measure, or --count FILE with --cache FOLDER")


if __name__ == "__main__":
    main()
