"""How long do single layers of many shapes take? Records them on this machine's GPU, op by op.

    python -m lab collect sweep SET OUT [--seconds N]

Needs a GPU and only torch. The set `mixed` is what `wavecast calibrate --ops` measures. The others
are layers of one kind of network (`wavecast.frameworks.pytorch.measurement.sweep`), of what
revisited steps showed (`lab.steps.filter_layers`), of passes over memory
(`lab.steps.memory_layers`), of waves and volumes (`lab.steps.wave_layers`) and of attention over
long sequences (`lab.steps.attention_layers`), drawn with a fixed seed: four precisions, images
mostly in channels-last. A chunk of layers runs once to warm up and is then recorded like a step.
Writes one trace for each chunk into the tar file OUT/sweep.tar. The traces are the campaigns of
these names, which `lab/measured/op_data.py` reads.
"""

from __future__ import annotations

import random
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from lab import needs
from lab.steps.attention_layers import ATTENTION
from lab.steps.filter_layers import FILTERS
from lab.steps.lookup_layers import MEMORY
from lab.steps.wave_layers import WAVES
from wavecast.frameworks.pytorch.measurement import sweep as shipped
from wavecast.frameworks.pytorch.measurement.sweep import TURNS, recorded_chunk, sweep
from wavecast.traces.step import Trace

CHUNKS = 40
"""The most chunks of one set."""
PRECISIONS = {"attention": ("bf16", "bf16", "fp16")}
"""Precisions that take turns by campaign, where they are not those of all others."""
SETS = {**shipped.SETS, "filters": FILTERS, "memory": MEMORY, "waves": WAVES,
        "attention": ATTENTION}  # fmt: skip
"""Layers by the name of their campaign."""
CHANNELS_LAST = {"filters": 0.55, "memory": 0.5}
"""The share of images in channels-last by campaign, where it is not that of all others."""


def chunks(which: str, seconds: float) -> Iterator[Trace]:
    """The recorded chunks of a set until the time is up; they depend only on set and number."""
    until = time.monotonic() + seconds
    slowest_s = 0.0
    share = CHANNELS_LAST.get(which, shipped.CHANNELS_LAST)
    for number in range(CHUNKS):
        begin = time.monotonic()
        if begin + slowest_s > until:
            return
        turns = PRECISIONS.get(which, TURNS)
        pick, precision = random.Random(f"{which} {number}"), turns[number % len(turns)]
        yield recorded_chunk(SETS[which], pick, precision, channels_last=share)
        torch.cuda.empty_cache()
        slowest_s = max(slowest_s, time.monotonic() - begin)
        print(f"chunk {number}: {time.monotonic() - begin:.1f} s", flush=True)


def told(ops: int) -> None:
    """Say how many ops are recorded."""
    print(f"{ops} ops", flush=True)


def main(given: Sequence[str] = ()) -> None:
    """Record chunks into a folder until the time is up."""
    parser = needs.parser(__doc__)
    parser.add_argument("which", choices=("mixed", *SETS), help="the layers")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write into")
    parser.add_argument("--seconds", type=float, default=120.0)
    args = parser.parse_args(given)
    args.out.mkdir(parents=True, exist_ok=True)
    mixed = args.which == "mixed"
    traces = sweep(args.seconds, told) if mixed else chunks(args.which, args.seconds)
    with (
        tempfile.TemporaryDirectory() as folder,
        tarfile.open(args.out / "sweep.tar", "w") as archive,
    ):
        for number, trace in enumerate(traces):
            path = Path(folder) / f"{args.which}-{number:03d}.json.gz"
            trace.save(path)
            archive.add(path, path.name)
