"""How long do iterations take on this machine, and how fast is its host? Times both on the GPU.

    python -m lab.collect.iterations OUT --seed N [--seconds 540]
    python -m lab.collect.iterations --count FILE --cache FOLDER

The first command needs a GPU and transformers. It writes OUT/machine.json, which becomes a file of
measurements/h200/iterations. The second needs no GPU. It traces the steps of such a file and adds
how often each step needs each cost of a host; `--cache` keeps the traces.

The host benchmark (`wavecast calibrate`) runs first, as users run it, and a short version of it
runs again between timings. The hosts are virtual machines that can slow down by half for seconds or
minutes. Each step is therefore timed several times, with other steps in between, and the median is
used. The steps are those of the suite in four precisions, at the default batch and a quarter of it,
in a random order fixed by the seed; steps that do not fit in the time are left out. No profiler
runs before the last measurement. The first three files were measured in another way, which
measurements/README.md describes; they also have models of the blind test.
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
"""About how long the iterations of one timing take, once the step is warm."""
TIMINGS = 3
PROBES, PROBED = 3, 4
"""Rounds of a short host benchmark, and the number of timings from one benchmark to the next."""
MOST_HELD, HELD_BYTES = 60, 14e9
"""The most steps that are in memory at a time to be timed in turn, and the most bytes."""


def known_steps(seed: int) -> list[tuple[str, MakeStep]]:
    """The steps of the suite with a measured GPU time, in a random order fixed by the seed."""
    gpu_times_s = busy_s()
    steps = [(name, make) for name, make in suite_steps() if name in gpu_times_s]
    random.Random(seed).shuffle(steps)
    return steps


def measure(out: Path, seconds: float, seed: int) -> None:
    """Time steps, and the host between them, and write `machine.json`."""
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
    print(f"{len(waiting)} steps were not timed", flush=True)
    document["profiled"] = profiling.has_profiled_gpu()
    document["gpu"] = host_benchmark.time_gpu()  # last, because it runs a profiler
    (out / "machine.json").write_text(json.dumps(document), encoding="utf-8")


def _held(waiting: list[tuple[str, MakeStep]]) -> dict[str, Step]:
    """Build the first of the waiting steps, as many as memory can hold."""
    import torch

    from lab.collect.gpu_steps import release_memory

    held: dict[str, Step] = {}
    gc.unfreeze()
    release_memory()
    while waiting and len(held) < MOST_HELD and torch.cuda.memory_allocated() < HELD_BYTES:
        name, make = waiting.pop(0)
        with torch.device("cuda"):  # initialise parameters there, which is much faster
            held[name] = make()
    gc.collect()
    gc.freeze()  # no garbage collection of the held steps while one is timed
    return held


def _timings(held: Mapping[str, Step], until: float) -> dict[str, dict[str, list[Any]]]:
    """Timings of all steps in turn, and of the host benchmark in between.

    Steps with fewer than `TIMINGS` timings are left out.
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
    """Add to a machine's file how often each step needs each cost of a host, from its trace."""
    document = json.loads(path.read_text(encoding="utf-8"))
    for name, step in document["steps"].items():
        step["asked"] = asked_of(traced(cache, name, search=bool(step.get("search"))))
    path.write_text(json.dumps(document), encoding="utf-8")


def main() -> None:
    """Measure, or add the counts to a measured file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, nargs="?", metavar="OUT", help="folder to write into")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the order of steps")
    parser.add_argument(
        "--seconds", type=float, default=540.0, help="start nothing after this time"
    )
    parser.add_argument(
        "--count", type=Path, metavar="FILE", help="add counts to this file instead"
    )
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="folder that keeps traces")
    given = parser.parse_args()
    if given.count and given.cache:
        count(given.count, given.cache)
    elif given.out and not given.count:
        measure(given.out, given.seconds, given.seed)
    else:
        parser.error("give OUT to measure, or --count FILE with --cache FOLDER")


if __name__ == "__main__":
    main()
