"""Iterations on machines whose hosts were calibrated: predicted against measured.

    python -m benchmarks.iterations --measure OUT [--backwards]          on the GPU
    python -m benchmarks.iterations --cache FOLDER [--write PAGE]        from the files

Hosts differ by more than models do, and `wavecast calibrate` times them within a minute. Here it
runs first, as users do it, and a little of it again before and after each timing: these hosts are
virtual, and for minutes at a time they get slower by a half. The steps are those of the suite in
four precisions, at the usual batch and at a quarter of it, and of the blind test, in an order drawn
once; what time does not allow is left out. No profiler runs in the process before all is timed.

What is said of a machine knows nothing of it: the host's costs (`training.host`) and the times of
the benchmark on the reference host are fitted again without it.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import wavecast
from benchmarks import blind, pages
from benchmarks.blind import MakeStep
from benchmarks.timed import BLIND, Machine, Timed, busy_s, iteration_s, machines
from training.host import Steps, host_without, machine_factor
from training.host import read as read_steps
from training.host_reference import reference_of
from wavecast import Host, Trace, suite
from wavecast.hosts import factor_of, reference_times
from wavecast.timeline import COSTS, demands

SEED = 5
MARK = "begin: python -m benchmarks.iterations"
WARM_UP = 3
TIMED_S = 0.4
"""About so long a step runs at a time, once warm."""
TIMINGS, PROBES = 2, 3
"""Of each step, and rounds of the host's patterns beside each."""


def steps() -> Iterator[tuple[str, MakeStep]]:
    """Every benchmark of the suite in every precision, at two batches."""
    found = []
    for each in suite.benchmarks():
        quarter = max(each.default_batch // 4, each.smallest_batch)
        for batch in sorted({quarter, each.default_batch}):
            for precision in suite.PRECISIONS:
                make = partial(each.make_step, batch, precision)
                found.append((f"{each.name} b{batch} {precision}", make))
    random.Random(SEED).shuffle(found)
    yield from found


def known_steps(*, backwards: bool = False) -> list[tuple[str, MakeStep]]:
    """Of the suite and of the blind test, those whose GPU time is known; in an order drawn once."""
    known = busy_s()
    found = [(name, make) for name, make in (*steps(), *blind.steps()) if name in known]
    random.Random(SEED + 1).shuffle(found)
    return found[::-1] if backwards else found


def measure(out: Path, seconds: float, *, backwards: bool) -> None:
    """Time steps, and the host before and after each timing, into `machine.json`."""
    import torch

    from wavecast.frameworks.pytorch import issuing

    out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    about = {"software": issuing.versions("cuda"), "processor": issuing.processor()}
    host = {"cpu": issuing.time_host("cpu"), "cuda": issuing.time_host("cuda")}
    document: dict[str, Any] = {"about": about, "host": host, "steps": {}}
    for name, make in known_steps(backwards=backwards):
        if time.monotonic() > until:
            print(f"time is up before {name}", flush=True)
            break
        torch.backends.cudnn.benchmark = False  # some of the blind steps turn it on
        found = _timings(make, partial(issuing.time_host, "cuda", rounds=PROBES))
        asked = asked_of(wavecast.trace(make, gpu=blind.GPU))
        document["steps"][name] = {**found, "asked": asked}
        print(name, found["timings_s"], flush=True)
        (out / "machine.json").write_text(json.dumps(document), encoding="utf-8")
    document["gpu"] = issuing.time_gpu()
    (out / "machine.json").write_text(json.dumps(document), encoding="utf-8")


def asked_of(trace: Trace) -> dict[str, int]:
    """How often a step asks for each of the host's costs."""
    counts = demands(trace.calls).sum(axis=0).tolist()
    return {name: int(count) for name, count in zip(COSTS, counts, strict=True) if count}


def _timings(make: MakeStep, probe: Callable[[], dict[str, float]]) -> dict[str, list[Any]]:
    """A step's iteration in the steady state, and the host before and after."""
    import torch

    step = make()
    for _ in range(WARM_UP):
        step()
    times, hosts = [], []
    for _ in range(TIMINGS):
        hosts.append(probe())
        times.append(iteration_s(step, TIMED_S))
    hosts.append(probe())
    del step
    gc.collect()
    torch.cuda.empty_cache()
    return {"timings_s": times, "hosts": hosts}


def traced(cache: Path, step: Timed) -> Trace:
    """The trace of a step: of the blind test as it was kept, of the suite made and kept."""
    name = step.name.replace(" ", "-")
    kept = BLIND / "traces" / f"{name}.json.gz"
    path = cache / f"{'search' if step.search else 'suite'}-{name}.json.gz"
    if kept.exists() and not step.search:
        return wavecast.load_trace(kept)
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        make = dict((*steps(), *blind.steps()))[step.name]
        wavecast.trace(partial(_searching, make) if step.search else make, gpu=blind.GPU).save(path)
    return wavecast.load_trace(path)


def _searching(make: MakeStep) -> Callable[[], Any]:
    import torch

    step = make()

    def run() -> None:
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True
        step()
        torch.backends.cudnn.benchmark = before

    return run


@dataclass(frozen=True)
class Row:
    """A step as predicted with some host, and as timed."""

    machine: str
    host: str
    of_suite: bool
    error: float
    within: bool


REFERENCE, AT_START, THROUGHOUT = (
    "the reference host",
    "a host calibrated at the start",
    "a host calibrated throughout",
)


def hosts_of(machine: Machine, steps: Steps, others: Sequence[Machine]) -> dict[str, Host]:
    """Whom a machine's host is taken for, by what is known without it."""
    base = host_without(machine.name, steps)
    reference = reference_of(others, base)["cuda"]

    def calibrated(times: Mapping[str, float]) -> Host:
        costs: dict[str, Any] = {"known": True, **machine.direct}
        return replace(base.scaled(factor_of(times, reference)), **costs)

    return {
        REFERENCE: base,
        AT_START: calibrated(machine.start["cuda"]),
        THROUGHOUT: calibrated(machine.throughout),
    }


def rows(cache: Path) -> Iterator[Row]:
    """Every step of every machine, with each host."""
    every, fitted = machines(), read_steps()
    of_suite = {name for name, _ in steps()}
    for machine in every:
        others = [other for other in every if other is not machine]
        for title, host in hosts_of(machine, fitted, others).items():
            for step in machine.steps:
                found = wavecast.predict(traced(cache, step), blind.GPU, host=host)
                yield Row(
                    machine.name,
                    title,
                    step.name in of_suite,
                    found.seconds / step.seconds - 1,
                    found.low_s <= step.seconds <= found.high_s,
                )


def table(found: Sequence[Row]) -> Iterator[str]:
    """By host: the suite, on all machines and on each, and the others."""
    yield "| predicted with | steps | mean error | median | worst | in range |"
    yield "|---|---:|---:|---:|---:|---:|"
    names = dict.fromkeys(row.machine for row in found)
    for title in dict.fromkeys(row.host for row in found):
        same = [row for row in found if row.host == title]
        own, others = ([r for r in same if r.of_suite is wanted] for wanted in (True, False))
        yield _line(f"{title}: the suite", own)
        for name in names if title != REFERENCE else ():
            there = [row for row in own if row.machine == name]
            yield _line(f"{title}: the suite, {name} machine", there)
        yield _line(f"{title}: models of the blind test", others)


def _line(title: str, some: Sequence[Row]) -> str:
    sizes = [abs(row.error) for row in some]
    return (
        f"| {title} | {len(some)} | {statistics.mean(sizes):.1%} | {statistics.median(sizes):.1%} "
        f"| {max(sizes):.0%} | {statistics.mean(row.within for row in some):.0%} |"
    )


def noise() -> Iterator[str]:
    """Of each machine: its host by the benchmark and by its steps, and how steps repeat."""
    yield "| machine | host at the start | throughout | by its steps | two timings differ by |"
    yield "|---|---:|---:|---:|---:|"
    reference = reference_times()["cuda"]
    for machine in machines():
        factors = (
            factor_of(machine.start["cuda"], reference),
            factor_of(machine.throughout, reference),
            machine_factor(machine),
        )
        apart = [step.apart for step in machine.steps if step.apart is not None]
        cells = " | ".join(f"{factor:.2f}" for factor in factors)
        yield f"| {machine.name} | {cells} | {f'{statistics.mean(apart):.1%}' if apart else ''} |"


def main() -> None:
    """Measure, or show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", type=Path, metavar="OUT", help="on the GPU, into a folder")
    parser.add_argument("--backwards", action="store_true", help="from the last step on")
    parser.add_argument("--seconds", type=float, default=540.0, help="that may be measured")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="where traces are kept")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table there, too")
    given = parser.parse_args()
    if given.measure:
        measure(given.measure, given.seconds, backwards=given.backwards)
        return
    if not given.cache:
        parser.error("predicting needs --cache FOLDER, where traces are kept")
    text = "\n".join((*table(list(rows(given.cache))), "", *noise()))
    print(text)
    if given.write:
        pages.write(given.write, MARK, text)


if __name__ == "__main__":
    main()
