"""How long do steps with activation checkpointing take, beside the same steps without? On the GPU.

    python -m lab collect checkpointed OUT

Each step is measured in a process of its own (`wavecast.measure`: timed before a profiler runs).
OUT/checkpointed.json becomes measurements/h200/checkpointed.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab import needs
from wavecast.suite.decoders import gpt, llama

SIZES: dict[str, dict[str, Any]] = {
    "gpt 12x512 s256": {"layers": 12, "hidden": 512, "heads": 8, "seq": 256},
    "gpt 24x1024 s512": {"layers": 24, "hidden": 1024, "heads": 16, "seq": 512},
    "gpt 24x2048 s2048": {"layers": 24, "hidden": 2048, "heads": 16, "seq": 2048},
    "llama 16x512 s128": {"layers": 16, "hidden": 512, "heads": 8, "seq": 128, "ffn": 1408},
    "llama 16x2048 s1024": {
        **{"layers": 16, "hidden": 2048, "heads": 16, "kv_heads": 8, "seq": 1024, "ffn": 5632}
    },
}
RECOMPUTE = ("none", "full")
COMMAND = (sys.executable, "-m", "lab", "collect", "checkpointed")


def step_of(size: str, recompute: str) -> Callable[[], Any]:
    """The step of a decoder with or without checkpointed blocks, one sequence in bfloat16."""
    make = gpt if size.startswith("gpt") else llama
    return make(1, "bf16", recompute=recompute, **SIZES[size])


def measure(size: str, recompute: str) -> dict[str, Any]:
    """The times of one step on this machine's GPU."""
    import wavecast

    trace = wavecast.measure(step_of(size, recompute), repeats=30)
    measured = trace.measurement
    assert measured is not None
    times = {"seconds": measured.seconds, "gpu_s": measured.gpu_s, "host_s": measured.host_s}
    return {"size": size, "recompute": recompute, "calls": len(trace), **times}


def main(given: Sequence[str] = ()) -> None:
    """Measure all steps, twice each in turn, and write them."""
    parser = needs.parser(__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write into")
    parser.add_argument("--one", nargs=2, metavar=("SIZE", "RECOMPUTE"), help="measure only this")
    args = parser.parse_args(given)
    if args.one:
        print(json.dumps(measure(*args.one)))
        return
    rows = []
    for _ in range(2):
        for size in SIZES:
            for recompute in RECOMPUTE:
                command = [*COMMAND, str(args.out), "--one", size, recompute]
                run = subprocess.run(command, capture_output=True, text=True, check=True)
                rows.append(json.loads(run.stdout.splitlines()[-1]))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "checkpointed.json").write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        print(row)
