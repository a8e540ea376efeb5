"""How long do steps take, and what does the host do meanwhile? Measures sets of steps on this GPU.

    python -m lab collect step_times SET OUT [--seconds 250] [--workers 14] [--brief]
                                    [--predict] [--only NAME ...]

Needs a GPU, torch with Triton, torchvision and transformers. The sets are in
`lab.steps.timed_sets`, what is measured of a step in `lab.collect.step_worker`, and how processes
take turns in `lab.collect.turns`. Writes OUT/rows.jsonl.gz (a line for each step) and
OUT/traces.tar (recorded eager steps) as steps are done, and OUT/about.json at the end. With --brief
only times, memory and kernels are measured, and no traces. With --predict nothing is measured:
every step is traced without the GPU, with the software of this machine, and predicted
(OUT/predictions.json, and OUT/traced.tar with the traces). Both become the folder of a blind test
(`lab.score.blind_torch`).
"""

from __future__ import annotations

import gzip
import importlib
import json
import os
import platform
import shutil
import sys
import tarfile
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from lab import needs
from lab.collect.turns import ENVIRONMENT, Turns
from lab.steps.timed_sets import NAMES, names_of
from wavecast.hardware.hosts import REFERENCE_HOST

LIBRARIES = ("torch", "triton", "torchvision", "transformers", "numpy")
PRELOADED = (
    "lab.collect.step_worker",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "transformers.modeling_utils",
    "transformers.generation",
)
"""What each process would import first."""
PRELOADING = {
    **ENVIRONMENT,
    "TORCH_WARM_POOL": "0",  # the process that is forked from compiles nothing
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # nor does it use the GPU
}
"""What must be set before torch is imported."""
GPU = "h200-sxm"
FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5)
"""How long the hosts take in multiples of the reference host. Our leases took 0.65 to 1.6."""
HOST_TIMES = 3
"""How often the host benchmark runs between the steps; once if the measurement is brief."""


def prediction_of(trace: Any, mode: str) -> dict[str, Any]:
    """What is predicted of a traced step, with the reference host and with others."""
    import wavecast

    prediction = wavecast.predict(trace, GPU, host=REFERENCE_HOST)
    hosts = {}
    for factor in FACTORS:
        host = replace(REFERENCE_HOST.scaled(factor), known=True)
        known = wavecast.predict(trace, GPU, host=host)
        hosts[str(factor)] = [known.seconds, known.low_s, known.high_s]
    return {
        "mode": mode,
        "seconds": prediction.seconds,
        "gpu_s": prediction.gpu_s,
        "low_s": prediction.low_s,
        "high_s": prediction.high_s,
        "peak_bytes": wavecast.memory(trace, GPU).peak_bytes,
        "hosts": hosts,
        "notes": [str(note) for note in trace.notes],
    }


def about() -> dict[str, Any]:
    """The machine and its software."""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "none"
    return {**versions, "python": platform.python_version(), "cores": os.cpu_count()}


def tasks_of(names: Sequence[str], host_times: int) -> deque[str]:
    """The tasks in order, with the host benchmark between the steps."""
    steps = [f"step {name}" for name in names]
    every = max(len(steps) // host_times, 1)
    for number in range(host_times):
        steps.insert((number + 1) * (every + 1) - 1, f"host {number}")
    return deque(steps)


def rows_in(folder: Path) -> list[Any]:
    """What was written of the tasks so far."""
    paths = sorted(folder.glob("*.row.gz"))
    return [json.loads(gzip.decompress(path.read_bytes())) for path in paths]


def move_measured(folder: Path, out: Path) -> None:
    """Move the rows of finished steps, and their traces if there are any, to the end of files."""
    for path in sorted(folder.glob("*.row.gz")):
        row = gzip.decompress(path.read_bytes())
        with gzip.open(out / "rows.jsonl.gz", "ab") as file:
            file.write(row + b"\n")
        path.unlink()
        if name := json.loads(row).get("trace"):
            with tarfile.open(out / "traces.tar", "a") as archive:
                archive.add(folder / name, name)


def collect(
    out: Path, seconds: float, count: int, tasks: deque[str], *, brief: bool, predict: bool
) -> None:
    """Measure, or predict, into a folder until the time is up."""
    begin = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="step-times-"))
    from lab.collect.step_worker import work

    turns = Turns(partial(work, folder=folder, brief=brief), folder, tasks, count, begin + seconds)
    if not predict:
        turns.after = partial(move_measured, folder, out)
    try:
        unfinished = turns.run()
        document = {
            "about": about(),
            "seconds": round(time.monotonic() - begin, 1),
            "done": turns.done,
            "failures": turns.failures,
            "unfinished": unfinished,
        }
        if predict:
            document["predictions"] = {row["traced"]: row for row in rows_in(folder)}
            with tarfile.open(out / "traced.tar", "w") as archive:
                for path in sorted(folder.glob("*.traced.json.gz")):
                    archive.add(path, path.name.replace(".traced", ""))
        name = "predictions.json" if predict else "about.json"
        (out / name).write_text(json.dumps(document, indent=1), encoding="utf-8")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(turns.done)} tasks in {document['seconds']} s; {len(turns.failures)} failed; "
          f"unfinished: {unfinished}")  # fmt: skip


def main(given: Sequence[str] = ()) -> None:
    """Measure a set of steps into a folder."""
    parser = needs.parser(__doc__)
    parser.add_argument("which", choices=NAMES, help="the set of steps")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write into")
    parser.add_argument("--seconds", type=float, default=250.0)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--brief", action="store_true", help="only times, memory and kernels")
    parser.add_argument("--predict", action="store_true", help="trace and predict, do not measure")
    parser.add_argument("--only", nargs="*", default=[], help="names of steps")
    args = parser.parse_args(given)
    if any(os.environ.get(name) != value for name, value in PRELOADING.items()):
        os.execve(sys.executable, sys.orig_argv, os.environ | PRELOADING)
    for module in PRELOADED:
        importlib.import_module(module)
    names = args.only or names_of(args.which)
    if args.predict:
        tasks = deque(f"trace {name}" for name in names)
    else:
        tasks = tasks_of(names, 1 if args.brief else HOST_TIMES)
    collect(
        args.out, args.seconds, args.workers, tasks, brief=args.brief, predict=args.predict
    )  # fmt: skip
