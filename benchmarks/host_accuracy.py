"""What the host benchmark says of whole steps: predicted against measured on our H200.

    python -m benchmarks.host_accuracy

reads measurements/h200/host/*.json (`benchmarks.host_reality`), one file a machine, traces the
steps of it here, and prints the tables of docs/concepts/timeline.md: host-bound steps with the
reference host and with a calibrated one, the same on slower hosts, and CUDA graphs. What the
benchmark takes on the reference host is then known from the other machines only.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import wavecast
from benchmarks.host_reality import (
    GRAPHED,
    HOST_BOUND,
    Key,
    Step,
    make_capturable,
    make_step,
    named,
)
from wavecast import Host, Trace
from wavecast.hosts import calibrated
from wavecast.timeline import REFERENCE_HOST

MEASURED = Path(__file__).parent.parent / "measurements" / "h200" / "host"
GPU = "h200-sxm"

Run = Mapping[str, Mapping[str, Mapping[str, Any]]]


def runs() -> dict[str, Run]:
    """What was measured, by file."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(MEASURED.glob("*.json"))}


@cache
def trace_of(name: str, make: Callable[[Key], Step] = make_step) -> Trace:
    """The trace of a measured step."""
    key = next(key for key in (*HOST_BOUND, *GRAPHED) if named(key) == name)
    return wavecast.trace(partial(make, key))


def host_s(step: Mapping[str, float]) -> float:
    """Two looks at the same: issued to an idle GPU, and in the steady state."""
    return math.sqrt(step["wall_s"] * step["issue_s"])


def predicted_s(name: str, host: Host) -> float:
    """What a host needs for a step."""
    return float(host.issue_times(trace_of(name).calls).sum())


def machine_factor(run: Run) -> float:
    """How many times as long as the reference host this machine takes for its steps."""
    return statistics.median(
        host_s(step) / predicted_s(name, REFERENCE_HOST) for name, step in steps(run, "eager")
    )


def steps(run: Run, section: str) -> Iterator[tuple[str, Mapping[str, float]]]:
    """The steps of a section that did not fail."""
    for name, found in run.get(section, {}).items():
        if "wall_s" in found:
            yield name, found


Times = dict[str, dict[str, float]]


def reference_of(measured: Iterable[Run]) -> Times:
    """What the reference host would take for the benchmark, from machines that ran it.

    The times of each, over how many times as long as the reference host it takes for its steps;
    the geometric mean of all.
    """
    found: dict[str, dict[str, list[float]]] = {"cpu": {}, "cuda": {}}
    for run in measured:
        factor = machine_factor(run)
        for section in ("host", "again"):
            for sort, times in found.items():
                for name, seconds in run.get(section, {}).get(sort, {}).items():
                    times.setdefault(name, []).append(seconds / factor)
    return {
        sort: {name: statistics.geometric_mean(each) for name, each in times.items()}
        for sort, times in found.items()
    }


def host_of(times: Mapping[str, Mapping[str, float]], sort: str, reference: Times) -> Host:
    """The host that a section's benchmark speaks of."""
    return calibrated(
        sort, {sort: times[sort]}, {}, software="-", source="a benchmark", reference=reference
    ).host


def eager_lines(run: Run, section: str, reference: Times) -> Iterator[str]:
    """How well host-bound steps are met, with several hosts."""
    benchmark = run["host"] if section == "eager" else run[section]
    hosts = {
        "reference": REFERENCE_HOST,
        "calibrated on the CPU": host_of(benchmark, "cpu", reference),
        "calibrated on the GPU": host_of(benchmark, "cuda", reference),
    }
    for name, host in hosts.items():
        errors = [
            predicted_s(step, host) / host_s(found) - 1 for step, found in steps(run, section)
        ]
        mean, median = statistics.mean(map(abs, errors)), statistics.median(errors)
        yield f"| {section} | {len(errors)} | {name} | {mean:.0%} | {median:+.0%} |"


def graph_lines(run: Run) -> Iterator[str]:
    """How well replayed graphs are met."""
    for name, found in steps(run, "graphed"):
        said = wavecast.predict(
            trace_of(name, make_capturable), GPU, host="reference", graphed=True
        )
        before = run["eager"].get(name)
        eager = f"{1e3 * before['wall_s']:.1f} ms" if before else ""
        gap = (found["wall_s"] - found["gpu_s"]) / found["kernels"]
        yield (
            f"| {name} | {eager} | {1e3 * found['wall_s']:.2f} ms | {1e3 * found['gpu_s']:.2f} ms "
            f"| {found['kernels']} | {1e6 * gap:.2f} us | {1e6 * found['issue_s']:.0f} us "
            f"| {1e3 * said.seconds:.2f} ms | {said.seconds / found['wall_s'] - 1:+.1%} |"
        )


def main() -> None:
    """Print all tables."""
    measured = runs()
    for name, run in measured.items():
        reference = reference_of(other for each, other in measured.items() if each != name)
        print(f"{name}: takes {machine_factor(run):.2f} times as long as the reference host\n")
        print("| steps | | host | mean error | median |\n|---|---:|---|---:|---:|")
        for section in ("eager", "slow python", "busy cores"):
            if section in run:
                print("\n".join(eager_lines(run, section, reference)))
        print("\n| step | wall | busy | kernels |\n|---|---:|---:|---:|")
        for step, found in steps(run, "eager"):
            said = predicted_s(step, REFERENCE_HOST)
            print(
                f"| {step} | {1e3 * found['wall_s']:.1f} ms | {1e3 * found['gpu_s']:.1f} ms "
                f"| {found['kernels']} | predicted host {1e3 * said:.1f} ms"
            )
        if "graphed" in run:
            print("\n| step | eager | graph | busy | kernels | gap | launch | predicted | error |")
            print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
            print("\n".join(graph_lines(run)))


if __name__ == "__main__":
    main()
