"""How long do single layers of many shapes take? Records them on this machine's GPU, op by op.

    python -m lab collect sweep (newer | sounds | odd | filters | memory) OUT [--seconds N]

Needs a GPU and only torch. Layers of newer networks (`lab.steps.newer_layers`), of speech and
segmentation (`lab.steps.sound_layers`), of what blind tests (`lab.steps.odd_layers`) and revisited
steps (`lab.steps.filter_layers`) showed, or of passes over memory (`lab.steps.memory_layers`) are
drawn with a fixed seed: four precisions, images mostly in channels-last. A chunk of layers runs
once to warm up and is then recorded like a step. Writes one trace for each chunk into the tar file
OUT/sweep.tar. The traces are the campaigns of these names, which `lab/measured/op_data.py` reads.
"""

from __future__ import annotations

import random
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lab import needs
from lab.steps.drawn_layers import Layer, ShapeDraw, TooLarge
from lab.steps.filter_layers import FILTERS
from lab.steps.lookup_layers import MEMORY
from lab.steps.newer_layers import NEWER
from lab.steps.odd_layers import ODD
from lab.steps.sound_layers import SOUNDS
from wavecast.frameworks.pytorch.measurement.iteration import (
    recording_iteration,
    software,
    trace_of,
)
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.recording_modes import RecordingMode
from wavecast.frameworks.pytorch.recording.structure import Structure
from wavecast.traces.step import Measurement

CHUNK = 60
"""The layers of one trace."""
CHUNKS = 40
TURNS = ("bf16", "fp16", "tf32", "bf16", "fp32", "fp16")
"""Precisions that take turns."""
SETS = {"newer": NEWER, "sounds": SOUNDS, "odd": ODD, "filters": FILTERS, "memory": MEMORY}
"""Layers by the name of their campaign."""
CHANNELS_LAST = {"filters": 0.55, "memory": 0.5}
"""The share of images in channels-last by campaign; three quarters in others."""


def chunk(which: str, number: int) -> Iterator[Layer]:
    """The layers of a chunk, which depend only on its campaign and its number."""
    pick = random.Random(f"{which} {number}")
    precision = TURNS[number % len(TURNS)]
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    kinds, weights = zip(*SETS[which], strict=True)
    share = CHANNELS_LAST.get(which, 0.75)
    made = 0
    while made < CHUNK:
        make = pick.choices(kinds, weights)[0]
        layout = "nhwc" if pick.random() < share else "nchw"
        try:
            layer = make(ShapeDraw(pick, precision, layout))
            layer()
        except TooLarge:
            continue
        except (RuntimeError, ValueError) as error:  # a layer does not accept these sizes
            print(f"chunk {number}, {make.__name__}: {str(error)[:100]}", flush=True)
            made += 1
            continue
        made += 1
        yield layer


def record(which: str, number: int, path: Path) -> None:
    """Run a chunk of layers and write its measured trace."""
    layers = list(chunk(which, number))
    torch.cuda.synchronize()
    recorder = OpRecorder(Structure())
    with RecordingMode(recorder), recording_iteration(recorder) as recorded:
        for layer in layers:
            layer()
    measurement = Measurement(gpu=torch.cuda.get_device_name(), software=software())
    trace = trace_of(recorded(), measurement)
    calls = tuple(replace(call, reads=(), writes=()) for call in trace)
    trace = replace(trace, calls=calls, allocations=(), values=())
    trace.save(path)


def main(given: Sequence[str] = ()) -> None:
    """Record chunks into a folder until the time is up."""
    parser = needs.parser(__doc__)
    parser.add_argument("which", choices=SETS, help="the layers")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write into")
    parser.add_argument("--seconds", type=float, default=120.0)
    args = parser.parse_args(given)
    args.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + args.seconds
    slowest_s = 0.0
    with (
        tempfile.TemporaryDirectory() as folder,
        tarfile.open(args.out / "sweep.tar", "w") as archive,
    ):
        for number in range(CHUNKS):
            begin = time.monotonic()
            if begin + slowest_s > until:
                break
            path = Path(folder) / f"{args.which}-{number:03d}.json.gz"
            record(args.which, number, path)
            archive.add(path, path.name)
            torch.cuda.empty_cache()
            slowest_s = max(slowest_s, time.monotonic() - begin)
            print(f"chunk {number}: {time.monotonic() - begin:.1f} s", flush=True)
