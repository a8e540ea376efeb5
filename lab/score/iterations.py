"""Iterations on machines whose hosts were calibrated: predicted against measured.

    python -m lab.score.iterations --measure OUT --seed N                      on the GPU
    python -m lab.score.iterations --cache FOLDER --count FILE                 of a new file
    python -m lab.score.iterations --data FOLDER --cache FOLDER [--write]      from the files

Hosts differ by more than models do, and `wavecast calibrate` times them within a minute. Here it
runs first, as users do it, and a little of it again between timings: these hosts are virtual, and
for seconds or minutes they get slower by a half. So each step is timed again while others were, and
the median counts. The steps are those of the suite in four precisions, at the usual batch and at a
quarter of it, in an order drawn once; what time does not allow is left out. No profiler runs in the
process. The first three files were measured otherwise (measurements/README.md says how), and have
models of the blind test, too.

What is said of a machine knows nothing of it: the host's costs (`lab.fit.host`) and the times of
the benchmark on the reference host are fitted again without it. The last two are in no fit at all,
nor in what makes the ranges. Ops of the suite are in the fit of `learned`; the last lines are of
models that are in none: neither in that of the host nor, with their family, in that of ops
(`lab.score.families`, for which `--data` names the public tables).
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import wavecast
from lab.fit.host import Steps, host_without, machine_factor, model_of
from lab.fit.host import read as read_steps
from lab.fit.host_reference import reference_of
from lab.measured import campaigns, own_steps
from lab.measured.figures import Figures, figures, percent, record
from lab.measured.timed import Machine, busy_s, iteration_s, machines, unseen_machines
from lab.score import blind, pages
from lab.score.blind import MakeStep, Step
from lab.score.families import folds
from wavecast import Host, Trace, suite
from wavecast.hardware.calibration import factor_of, reference_times
from wavecast.hardware.hosts import COSTS, demands
from wavecast.predictors.learned.predictor import Learned

SEED = 5
MARK = "begin: python -m lab.score.iterations"
WARM_UP = 2
TIMED_S = 0.3
"""About so long a step runs at a time, once warm."""
TIMINGS = 3
PROBES, PROBED = 3, 4
"""Rounds of the host's patterns, and after how many timings they run."""
MOST_HELD, HELD_BYTES = 60, 14e9
"""Steps that are held at a time, and their parameters: they take turns."""


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


def known_steps(seed: int) -> list[tuple[str, MakeStep]]:
    """Those of the suite whose GPU time is known, in an order drawn by the seed."""
    known = busy_s()
    found = [(name, make) for name, make in steps() if name in known]
    random.Random(seed).shuffle(found)
    return found


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
    document["gpu"] = host_benchmark.time_gpu()  # last, because a profiler looks
    (out / "machine.json").write_text(json.dumps(document), encoding="utf-8")


def _held(waiting: list[tuple[str, MakeStep]]) -> dict[str, Step]:
    """The first of those that wait, as many as memory holds at a time."""
    import torch

    held: dict[str, Step] = {}
    gc.unfreeze()
    gc.collect()
    torch.cuda.empty_cache()
    while waiting and len(held) < MOST_HELD and torch.cuda.memory_allocated() < HELD_BYTES:
        name, make = waiting.pop(0)
        with torch.device("cuda"):  # parameters are drawn there, which is many times as fast
            held[name] = make()
    gc.collect()
    gc.freeze()  # what others hold is no garbage that a step would have to look through
    return held


def _timings(held: Mapping[str, Step], until: float) -> dict[str, dict[str, list[Any]]]:
    """Iterations in the steady state, of one step after the other and again, and the host's times
    after each `PROBED`-th; steps without all their timings are left out."""
    from wavecast.frameworks.pytorch.measurement import host_benchmark

    found: dict[str, dict[str, list[Any]]] = {name: {"timings_s": [], "hosts": []} for name in held}
    for timing in range(TIMINGS):
        for place, (name, step) in enumerate(held.items()):
            if time.monotonic() > until:
                break
            for _ in range(WARM_UP):
                step()
            found[name]["timings_s"].append(iteration_s(step, TIMED_S))
            if (place + timing) % PROBED == 0:
                found[name]["hosts"].append(host_benchmark.time_host("cuda", rounds=PROBES))
    for name, each in found.items():
        print(name, *(f"{1e3 * seconds:.2f} ms" for seconds in each["timings_s"]), flush=True)
    return {name: each for name, each in found.items() if len(each["timings_s"]) == TIMINGS}


def count(path: Path, cache: Path) -> None:
    """Add to a machine's file what its steps ask of a host, by their traces."""
    document = json.loads(path.read_text(encoding="utf-8"))
    for name, step in document["steps"].items():
        step["asked"] = asked_of(traced(cache, name, search=bool(step.get("search"))))
    path.write_text(json.dumps(document), encoding="utf-8")


def asked_of(trace: Trace) -> dict[str, int]:
    """How often a step asks for each of the host's costs."""
    counts = demands(trace.calls).sum(axis=0).tolist()
    return {name: int(count) for name, count in zip(COSTS, counts, strict=True) if count}


def traced(cache: Path, title: str, *, search: bool) -> Trace:
    """The trace of a step: of the blind test as it was kept, of the suite made and kept."""
    name = title.replace(" ", "-")
    kept = campaigns.traces("blind")
    path = cache / "iterations" / f"{'search' if search else 'suite'}-{name}.json.gz"
    if name in kept and not search:
        return kept[name]
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        make = dict((*steps(), *blind.steps()))[title]
        wavecast.trace(partial(_searching, make) if search else make, gpu=blind.GPU).save(path)
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
class IterationRow:
    """A step as predicted with some host, and as timed."""

    machine: str
    host: str
    of_suite: bool
    error: float
    within: bool
    host_over_gpu: float
    """Predicted time of the one over that of the other."""
    unseen: bool = False
    """Whether the machine is in no fit."""


REFERENCE, AT_START, THROUGHOUT, HOST_OUT, MODEL_OUT = (
    "the reference host",
    "a host calibrated at the start",
    "a host calibrated throughout",
    "the same, its costs fitted without the model",
    "the same, ops fitted without the family, too",
)
EVERY = (REFERENCE, AT_START, THROUGHOUT, HOST_OUT, MODEL_OUT)


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


def predictors(data: Path, cache: Path) -> dict[str, Learned]:
    """By model of the suite: ops fitted without its family."""
    cases = list(own_steps.cases())
    return {case.model: fitted for fitted, own in folds(cases, data, cache) for case in own}


def rows(data: Path, cache: Path, titles: Collection[str] = EVERY) -> Iterator[IterationRow]:
    """Every step of every machine, with each of these hosts."""
    every, unseen, fitted = machines(), unseen_machines(), read_steps()
    of_suite = {name for name, _ in steps()}
    family_out = predictors(data, cache) if MODEL_OUT in titles else {}
    for machine in (*every, *unseen):
        others = [other for other in every if other is not machine]
        known = hosts_of(machine, fitted, others)
        without = {
            model: hosts_of(machine, fitted.where(fitted.models != model), others)[THROUGHOUT]
            for model in {model_of(step) for step in machine.steps}
        }
        for step in machine.steps:
            trace = traced(cache, step.name, search=step.search)
            own = without[model_of(step)]
            hosts = {**known, HOST_OUT: own, MODEL_OUT: own}
            for title in titles:
                predictor = family_out.get(model_of(step)) if title == MODEL_OUT else None
                found = wavecast.predict(trace, blind.GPU, host=hosts[title], predictor=predictor)
                yield IterationRow(
                    machine.name,
                    title,
                    step.name in of_suite,
                    found.seconds / step.seconds - 1,
                    found.low_s <= step.seconds <= found.high_s,
                    found.host_s / found.gpu_s,
                    machine in unseen,
                )


def table(found: Sequence[IterationRow]) -> Iterator[str]:
    """A line for each host and set: the suite on all machines and on each, and blind models."""
    yield "| predicted with | steps | mean error | median | bias | worst | in range |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for title, chosen in sets_of(found).items():
        yield _line(title, chosen)


def sets_of(found: Sequence[IterationRow]) -> dict[str, list[IterationRow]]:
    """The rows of each line of the table, by its title."""
    sets: dict[str, list[IterationRow]] = {}
    names = dict.fromkeys(row.machine for row in found)
    for title in dict.fromkeys(row.host for row in found):
        same = [row for row in found if row.host == title]
        of_suite = [row for row in same if row.of_suite]
        sets[f"{title}: the suite"] = of_suite
        unseen = [row for row in of_suite if row.unseen]
        if unseen:
            sets[f"{title}: the suite, machines in no fit"] = unseen
        for name in names if title in (AT_START, THROUGHOUT) else ():
            there = [row for row in of_suite if row.machine == name]
            sets[f"{title}: the suite, {name} machine"] = there
        sets[f"{title}: models of the blind test"] = [row for row in same if not row.of_suite]
    return sets


def figures_of(found: Sequence[IterationRow]) -> dict[str, Figures]:
    """The five figures of each line of the table that is not about one machine."""
    return {
        f"h200 iterations, {title}": figures(
            (row.error for row in chosen), (row.within for row in chosen)
        )
        for title, chosen in sets_of(found).items()
        if not title.endswith(" machine")
    }


def _line(title: str, some: Sequence[IterationRow]) -> str:
    found = figures((row.error for row in some), (row.within for row in some))
    cells = " | ".join(found.cells(1))
    return f"| {title} | {found.count} | {cells} | {percent(found.in_range)} |"


def noise() -> Iterator[str]:
    """A line for each machine: its host factors, and how far two timings of a step differ."""
    yield "| machine | host at the start | throughout | by its steps | two timings differ by |"
    yield "|---|---:|---:|---:|---:|"
    reference = reference_times()["cuda"]
    for machine in (*machines(), *unseen_machines()):
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
    parser.add_argument("--seed", type=int, default=SEED, help="of the order of steps")
    parser.add_argument("--count", type=Path, metavar="FILE", help="add what its steps ask for")
    parser.add_argument("--seconds", type=float, default=540.0, help="that may be measured")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="the public tables")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="where traces and fits are")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/appendix")
    given = parser.parse_args()
    if given.measure:
        measure(given.measure, given.seconds, given.seed)
        return
    if not given.cache:
        parser.error("predicting needs --cache FOLDER, where traces are kept")
    if given.count:
        count(given.count, given.cache)
        return
    if not given.data:
        parser.error(
            "models left out of the fit need --data FOLDER, with what others are fitted on"
        )
    predicted = list(rows(given.data, given.cache))
    text = "\n".join((*table(predicted), "", *noise()))
    print(text)
    if given.write:
        pages.write(pages.APPENDIX / "accuracy-hosts.md", MARK, text)
        record(figures_of(predicted))


if __name__ == "__main__":
    main()
