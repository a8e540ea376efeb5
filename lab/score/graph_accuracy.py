"""CUDA graphs: predicted against replayed on our H200.

    python -m lab.score.graph_accuracy

reads measurements/h200/host/*.json (`lab.collect.host_reality`), one file a machine, traces the
steps of it here, and prints the table of docs/concepts/timeline.md. The other steps of these files
were timed after a profiler had run (docs/adr/0018); `lab.score.iterations` has hosts without one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import wavecast
from lab.collect.host_reality import GRAPHED, make_capturable, named
from lab.places import H200

MEASURED = H200 / "host"
GPU = "h200-sxm"

Run = Mapping[str, Mapping[str, Mapping[str, Any]]]


def runs() -> dict[str, Run]:
    """What was measured, by file."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(MEASURED.glob("*.json"))}


def lines(run: Run) -> Iterator[str]:
    """How well replayed graphs are met."""
    yield "| step | eager | graph | busy | kernels | gap | launch | predicted | error |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for name, found in run["graphed"].items():
        if "wall_s" not in found:
            continue
        key = next(key for key in GRAPHED if named(key) == name)
        trace = wavecast.trace(partial(make_capturable, key))
        said = wavecast.predict(trace, GPU, host="reference", graphed=True)
        before = run["eager"].get(name)
        eager = f"{1e3 * before['wall_s']:.1f} ms" if before else ""
        gap = (found["wall_s"] - found["gpu_s"]) / found["kernels"]
        yield (
            f"| {name} | {eager} | {1e3 * found['wall_s']:.2f} ms | {1e3 * found['gpu_s']:.2f} ms "
            f"| {found['kernels']} | {1e6 * gap:.2f} us | {1e6 * found['issue_s']:.0f} us "
            f"| {1e3 * said.seconds:.2f} ms | {said.seconds / found['wall_s'] - 1:+.1%} |"
        )


def main() -> None:
    """Print the table of each machine."""
    for name, run in runs().items():
        if "graphed" in run:
            print(f"{name}:\n")
            print("\n".join(lines(run)))


if __name__ == "__main__":
    main()
