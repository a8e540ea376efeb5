"""Show that a change of the code changes no prediction: run on two commits and compare.

It uses only the public face of wavecast, so the same file runs on an old and on a new commit:

    python -m lab.score.unchanged trace TRACES [--measured FOLDER]   # on the old commit
    python -m lab.score.unchanged predict TRACES old.json            # on the old commit
    python -m lab.score.unchanged predict TRACES new.json            # on the new commit
    python -m lab.score.unchanged trace AGAIN                        # on the new commit
    python -m lab.score.unchanged predict AGAIN again.json
    python -m lab.score.unchanged compare old.json new.json

To run it on another commit, put that commit's `src` first on PYTHONPATH.
`python -m lab.measured.campaigns unpack suite FOLDER` makes a FOLDER of measured traces.
"""

from __future__ import annotations

import argparse
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import wavecast
from wavecast import suite

TRACES = 60
GPUS = 25
PRECISIONS = ("fp32", "bf16")


def trace_steps(folder: Path, measured: Path | None) -> None:
    """Write traces of the suite's models in two precisions, then copies of measured ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for benchmark in suite.benchmarks():
        for precision in PRECISIONS:
            path = folder / f"{benchmark.name}-{precision}.json.gz"
            if not path.exists():
                batch = benchmark.default_batch
                make_step = partial(benchmark.make_step, batch, precision)
                made = wavecast.trace(make_step, samples=batch)
                made.save(path)
    if measured is not None:
        files = sorted(measured.glob("*.json.gz"))
        missing = TRACES - len(list(folder.glob("*.json.gz")))
        for path in files[:: max(1, len(files) // missing)][:missing]:
            shutil.copy(path, folder / f"measured-{path.name}")


def predict_steps(folder: Path) -> dict[str, Any]:
    """Times, ranges and memory of every trace of a folder on GPUs drawn from the whole list."""
    gpus = sorted(wavecast.devices(), key=lambda gpu: gpu.id)
    chosen = gpus[:: len(gpus) // GPUS][:GPUS]
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.json.gz")):
        trace = wavecast.load_trace(path)
        for gpu in chosen:
            found[f"{path.name} on {gpu.id}"] = _numbers(trace, gpu)
    return found


def _numbers(trace: wavecast.Trace, gpu: wavecast.Device) -> dict[str, Any]:
    step = wavecast.predict(trace, gpu)
    numbers: dict[str, Any] = {
        "seconds": step.seconds,
        "low_s": step.low_s,
        "high_s": step.high_s,
        "gpu_s": step.gpu_s,
        "host_s": step.host_s,
        "unpredicted": dict(step.unpredicted),
        "by_op": [[share.name, share.calls, share.gpu_s] for share in step.by_op()],
        "by_module": [[share.name, share.calls, share.gpu_s] for share in step.by_module()],
    }
    if trace.allocations:
        memory = wavecast.memory(trace, gpu)
        numbers |= {
            "peak_bytes": memory.peak_bytes,
            "reserved_bytes": memory.reserved_bytes,
            "context_bytes": memory.context_bytes,
            "by_kind": dict(memory.by_kind),
        }
    return numbers


def compare(first: Path, second: Path) -> int:
    """Print how many predictions differ, and name the first few; the number is returned."""
    old, new = json.loads(first.read_text()), json.loads(second.read_text())
    names = [name for name in old if name in new]
    differing = [name for name in names if old[name] != new[name]]
    print(f"{len(names)} predictions in both files, {len(old)} and {len(new)} in each")
    print(f"{len(differing)} differ")
    for name in differing[:10]:
        keys = [key for key in old[name] if old[name][key] != new[name].get(key)]
        print(f"  {name}: {', '.join(keys)}")
    return len(differing) + (len(names) != len(old))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    tracing = commands.add_parser("trace")
    tracing.add_argument("folder", type=Path)
    tracing.add_argument("--measured", type=Path, help="a folder of measured traces to copy from")
    predicting = commands.add_parser("predict")
    predicting.add_argument("folder", type=Path)
    predicting.add_argument("out", type=Path)
    comparing = commands.add_parser("compare")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    asked = parser.parse_args()
    if asked.command == "trace":
        trace_steps(asked.folder, asked.measured)
    elif asked.command == "predict":
        asked.out.write_text(json.dumps(predict_steps(asked.folder)))
    else:
        raise SystemExit(compare(asked.old, asked.new) > 0)


if __name__ == "__main__":
    main()
