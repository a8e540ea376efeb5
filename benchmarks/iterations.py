"""Iterations of the suite on machines whose hosts were calibrated: predicted against measured.

    python -m benchmarks.iterations --measure OUT                        on the GPU
    python -m benchmarks.iterations --rounds OUT                         on the GPU, again and again
    python -m benchmarks.iterations --cache FOLDER [--write PAGE]        from the files

Hosts differ by more than models do, and `wavecast calibrate` times them within a minute. Here it
runs first, as users do it, and then steps of the whole suite in four precisions, at the usual batch
and at a quarter of it, in an order drawn once; what time does not allow is left out. The files
under measurements/h200/iterations, one a machine, are in no fit. What is there is not measured
again.

The hosts are virtual, and for minutes at a time they get slower by a half. `--rounds` times the
first of the steps, and the host, in rounds that are minutes apart; of each the median counts. How
well a step that was measured tells its next round says how much of an error is the machine's.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import wavecast
from benchmarks import blind, pages
from benchmarks.blind import MakeStep
from wavecast import suite

FOLDER = Path(__file__).parent.parent / "measurements" / "h200" / "iterations"
SEED = 5
MARK = "begin: python -m benchmarks.iterations"
ROUNDS = 3
WARM_UP, FEWEST, MOST = 3, 4, 20
TIMED_S = 0.4
"""About so long a step runs in each round, once warm."""
TIMINGS, PROBES = 2, 3
"""Of each step, and rounds of the host's patterns beside each."""


def steps() -> Iterator[tuple[str, MakeStep]]:
    """Every benchmark in every precision, at two batches."""
    found = []
    for each in suite.benchmarks():
        quarter = max(each.default_batch // 4, each.smallest_batch)
        for batch in sorted({quarter, each.default_batch}):
            for precision in suite.PRECISIONS:
                make = partial(each.make_step, batch, precision)
                found.append((f"{each.name} b{batch} {precision}", make))
    random.Random(SEED).shuffle(found)
    yield from found


def measure_rounds(out: Path, seconds: float) -> None:
    """As many of the steps as a first round has time for, and the same again in the others."""
    from wavecast.frameworks.pytorch import issuing

    out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    about = {"software": issuing.versions("cuda"), "processor": issuing.processor()}
    chosen, hosts = list(steps()), []
    times: dict[str, list[float]] = {}
    for number in range(ROUNDS):
        until = begin + (number + 1) * seconds / ROUNDS
        hosts.append({"cpu": issuing.time_host("cpu"), "cuda": issuing.time_host("cuda")})
        for position, (name, make) in enumerate(chosen):
            if time.monotonic() > until:
                chosen = chosen[:position]
                break
            times.setdefault(name, []).append(_iteration_s(make))
            print(number, name, times[name], flush=True)
        document = {
            **{"about": about, "hosts": hosts, "gpu": issuing.time_gpu()},
            "steps": {name: {"rounds_s": each} for name, each in times.items()},
        }
        (out / "machine.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


def measure_beside(out: Path, seconds: float, *, backwards: bool) -> None:
    """Steps whose GPU time is known, the host timed before and after each timing.

    No profiler runs before all is timed: once one has, launches take longer ever after.
    """
    from wavecast.frameworks.pytorch import issuing

    out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    about = {"software": issuing.versions("cuda"), "processor": issuing.processor()}
    host = {"cpu": issuing.time_host("cpu"), "cuda": issuing.time_host("cuda")}
    document: dict[str, Any] = {"about": about, "host": host, "steps": {}}
    probe = partial(issuing.time_host, "cuda", rounds=PROBES)
    for name, make in known_steps(backwards=backwards):
        if time.monotonic() > until:
            print(f"time is up before {name}", flush=True)
            break
        hosts: list[dict[str, float]] = []
        try:
            times = list(_timings(make, TIMINGS, before=lambda: hosts.append(probe())))
        except Exception as error:  # the others still count
            print(f"{name}: {error!r}", flush=True)
            continue
        hosts.append(probe())
        document["steps"][name] = {"timings_s": times, "hosts": hosts}
        print(name, times, flush=True)
        (out / "machine.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    document["gpu"] = issuing.time_gpu()
    (out / "machine.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


def known_steps(*, backwards: bool = False) -> list[tuple[str, MakeStep]]:
    """Of the suite and of the blind test, those whose GPU time is known; in an order drawn once."""
    known = busy_s()
    found = [(name, make) for name, make in (*steps(), *blind.steps()) if name in known]
    random.Random(SEED + 1).shuffle(found)
    return found[::-1] if backwards else found


def _iteration_s(make: MakeStep) -> float:
    (found,) = _timings(make, 1)
    return found


def _timings(
    make: MakeStep, count: int, before: Callable[[], object] = lambda: None
) -> Iterator[float]:
    """One iteration of a step in the steady state, waited for once at the end of many."""
    import torch

    step = make()
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()
    repeats = int(min(max(TIMED_S / (time.perf_counter() - begin), FEWEST), MOST))
    for _ in range(count):
        before()
        step()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(repeats):
            step()
        torch.cuda.synchronize()
        yield (time.perf_counter() - begin) / repeats
    del step
    gc.collect()
    torch.cuda.empty_cache()


def busy_s() -> dict[str, float]:
    """The GPU's time of each step, where it was measured."""
    files = (*blind.read(FOLDER).values(), *blind.read(blind.FOLDER).values())
    found = [item for each in files for item in each["steps"].items()]
    return {name: step["gpu_s"] for name, step in found if "gpu_s" in step}


def documents() -> blind.Documents:
    """What the files have; of rounds the median of each step and of the host."""
    found, known = blind.read(FOLDER), busy_s()
    for document in found.values():
        if "hosts" in document:
            document["host"] = _middle(document["hosts"])
            document["steps"] = {
                name: {"seconds": statistics.median(step["rounds_s"]), "gpu_s": known[name]}
                for name, step in document["steps"].items()
                if len(step["rounds_s"]) == ROUNDS and name in known
            }
    return found


def _middle(hosts: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        sort: {name: statistics.median(host[sort][name] for host in hosts) for name in times}
        for sort, times in hosts[0].items()
    }


def rounds() -> dict[str, list[float]]:
    """Of each step that ran in all of them."""
    found = [item for each in blind.read(FOLDER).values() for item in each["steps"].items()]
    of_all = {name: step["rounds_s"] for name, step in found if "rounds_s" in step}
    return {name: each for name, each in of_all.items() if len(each) == ROUNDS}


def repeated(said_s: Mapping[str, float]) -> Iterator[tuple[str, list[float]]]:
    """How far each round of a step is from what could be said of it."""
    told: dict[str, Callable[[str, list[float], int], float]] = {
        "our prediction, host calibrated": lambda name, _, __: said_s[name],
        "the round before or after": lambda _, each, n: each[n - 1 if n else 1],
        "the mean of the other rounds": lambda _, each, n: _mean_but(each, n),
        "the median of all, in hindsight": lambda _, each, __: statistics.median(each),
    }
    for title, tell in told.items():
        yield (
            title,
            [
                abs(tell(name, each, n) / second - 1)
                for name, each in rounds().items()
                for n, second in enumerate(each)
            ],
        )


def _mean_but(each: Sequence[float], place: int) -> float:
    return (sum(each) - each[place]) / (len(each) - 1)


def traced(cache: Path, name: str) -> Path:
    """The trace of a step: from the folder, or made and kept there."""
    path = cache / f"suite-{name.replace(' ', '-')}.json.gz"
    if not path.exists():
        make = dict(steps())[name]
        cache.mkdir(parents=True, exist_ok=True)
        wavecast.trace(make, gpu=blind.GPU).save(path)
    return path


def table(cache: Path) -> Iterator[str]:
    """How well steps are met, and how well they repeat."""
    known, find = documents(), partial(traced, cache)
    by_reference, by_calibrated = (
        list(blind.rows(on_their_hosts=theirs, documents=known, traces=find))
        for theirs in (False, True)
    )
    yield from blind.sums(by_reference, by_calibrated)
    yield ""
    yield f"| each round of {len(rounds())} steps by | mean error | median | worst |"
    yield "|---|---:|---:|---:|"
    in_rounds = {machine for machine, document in known.items() if "hosts" in document}
    said_s = {row.name: row.found.seconds for row in by_calibrated if row.machine in in_rounds}
    for title, off in repeated(said_s):
        yield (
            f"| {title} | {statistics.mean(off):.1%} | {statistics.median(off):.1%} "
            f"| {max(off):.0%} |"
        )


def main() -> None:
    """Measure, or show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", type=Path, metavar="OUT", help="on the GPU, into a folder")
    parser.add_argument("--rounds", type=Path, metavar="OUT", help="the same in rounds")
    parser.add_argument("--beside", type=Path, metavar="OUT", help="with the host beside each")
    parser.add_argument("--backwards", action="store_true", help="from the last step on")
    parser.add_argument("--seconds", type=float, default=540.0, help="that may be measured")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="where traces are kept")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table there, too")
    given = parser.parse_args()
    if given.measure:
        known = {name for each in blind.read(FOLDER).values() for name in each["steps"]}
        missing = ((name, make) for name, make in steps() if name not in known)
        blind.measure(given.measure, given.seconds, missing, traced=False)
        return
    if given.beside:
        measure_beside(given.beside, given.seconds, backwards=given.backwards)
        return
    if given.rounds:
        measure_rounds(given.rounds, given.seconds)
        return
    if not given.cache:
        parser.error("predicting needs --cache FOLDER, where traces are kept")
    text = "\n".join(table(given.cache))
    print(text)
    if given.write:
        pages.write(given.write, MARK, text)


if __name__ == "__main__":
    main()
