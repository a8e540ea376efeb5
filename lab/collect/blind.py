"""How long do models take that no fit has seen? Traces and measures them on this machine's GPU.

    python -m lab.collect.blind OUT [--seconds 150]

Needs a GPU, torchvision, timm and transformers. The steps are `lab.steps.by_name.blind_steps`. Each
is first traced without using the GPU, then measured on it. Steps that measurements/h200/blind
already has are not measured again. Writes OUT/machine.json and OUT/traces. No fit reads these
files; `lab.score.blind` compares predictions with them. Only the GPU time is used from here,
because a profiler has run before iterations are timed. `lab.collect.iterations` times them without
one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import wavecast
from lab.collect.gpu_steps import folder_and_seconds, release_memory
from lab.measured.timed import BLIND, documents
from lab.measured.timed_traces import GPU, file_name
from lab.needs import require
from lab.steps.by_name import MakeStep, blind_steps


def measure(out: Path, seconds: float, steps: Iterable[tuple[str, MakeStep]]) -> None:
    """Time the machine's host, then as many steps as the time allows.

    Args:
        out: the folder for `machine.json` and traces.
        seconds: no step is started after this time.
        steps: steps by name.
    """
    from wavecast.frameworks.pytorch.measurement import host_benchmark

    until = time.monotonic() + seconds
    (out / "traces").mkdir(parents=True, exist_ok=True)
    rows: dict[str, Any] = {}
    host = {"cpu": host_benchmark.time_host("cpu"), "cuda": host_benchmark.time_host("cuda")}
    about = {"software": host_benchmark.versions("cuda"), "processor": host_benchmark.processor()}
    direct = host_benchmark.time_gpu()
    for name, make in steps:
        if time.monotonic() > until:
            print(f"the time is up; stopped before {name}", flush=True)
            break
        try:
            wavecast.trace(make, gpu=GPU).save(out / "traces" / f"{file_name(name)}.json.gz")
            measured = wavecast.measure(make(), repeats=15, recordings=1).measurement
            assert measured is not None
            rows[name] = {
                "seconds": measured.seconds,
                "gpu_s": measured.gpu_s,
                "host_s": measured.host_s,
            }
            print(f"{name}: {rows[name]}", flush=True)
        except Exception as error:  # the others still count
            print(f"{name}: {error!r}", flush=True)
        release_memory()
        document = {"about": about, "host": host, "gpu": direct, "steps": rows}
        (out / "machine.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


def main() -> None:
    """Measure the steps that were not measured before."""
    given = folder_and_seconds(__doc__, 150.0).parse_args()
    require("the blind test", "torchvision", "timm", "transformers")
    measured = {name for document in documents(BLIND).values() for name in document["steps"]}
    missing = ((name, make) for name, make in blind_steps() if name not in measured)
    measure(given.out, given.seconds, missing)


if __name__ == "__main__":
    main()
