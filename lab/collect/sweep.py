"""How long do single layers of many shapes take? Records them on this machine's GPU, op by op.

    python -m lab.collect.sweep OUT [--seconds N] [--tuned | --last]

Needs a GPU and only torch. Typical layers are drawn with a fixed seed (`lab.steps.drawn_layers`):
common sizes and sizes near them, four precisions, both layouts. A chunk of layers runs once to warm
up and is then recorded like a step. Writes one trace for each chunk to the folder OUT; chunks that
OUT already has are not measured again. `--tuned` measures only convolutions, for which cuDNN first
searches for the fastest algorithm (`cudnn.benchmark`). `--last` measures only convolutions of
common networks in channels last, the layout into which torch.compile puts them. The traces are the
campaign `sweep`, which `lab/measured/op_data.py` reads like all campaigns.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from lab.collect.gpu_steps import folder_and_seconds
from lab.steps.drawn_layers import (
    LAYER_WEIGHTS,
    Layer,
    ShapeDraw,
    TooLarge,
    convolution,
    network_convolution,
)
from wavecast.frameworks.pytorch.measurement.iteration import (
    recording_iteration,
    software,
    trace_of,
)
from wavecast.frameworks.pytorch.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording_modes import RecordingMode
from wavecast.frameworks.pytorch.structure import Structure
from wavecast.traces.step import Measurement

CHUNK = 120
"""The layers of one trace."""
LAYERS = 7200
TUNED_CHUNK = 40
"""The layers of one trace with `--tuned`: fewer, because cuDNN's search takes long."""
PRECISIONS = {"fp32": 32, "tf32": 13, "bf16": 40, "fp16": 15}
"""The weight with which each precision is drawn."""


ALL, TUNED, LAST = "", "tuned-", "last-"
"""What is measured, as the names of traces begin: all layers, convolutions for which cuDNN searches
for an algorithm, or convolutions in channels last."""
TURNS = {TUNED: ("fp16", "fp32", "bf16", "tf32"), LAST: ("bf16", "tf32", "fp32")}
"""Precisions that take turns where there are few chunks."""
KINDS = {ALL: LAYER_WEIGHTS, TUNED: ((convolution, 1),), LAST: ((network_convolution, 1),)}
SIZES = {ALL: CHUNK, TUNED: TUNED_CHUNK, LAST: CHUNK}


def chunk(number: int, what: str = ALL) -> Iterator[Layer]:
    """The layers of a chunk, which depend only on its number and on what is measured."""
    pick = random.Random(f"{what.rstrip('-')} {number}" if what else number)
    precision = pick.choices(list(PRECISIONS), list(PRECISIONS.values()))[0]
    if what:
        precision = TURNS[what][number % len(TURNS[what])]
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = what == TUNED
    kinds = KINDS[what]
    made = 0
    while made < SIZES[what]:
        make = pick.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        layout = "nhwc" if what == LAST else pick.choice(("nchw", "nhwc"))
        try:
            layer = make(ShapeDraw(pick, precision, layout))
            layer()
        except TooLarge:
            continue
        except (RuntimeError, ValueError) as error:  # a layer does not accept these sizes
            print(f"chunk {number}, {make.__name__}: {str(error)[:100]}", flush=True)
            continue
        made += 1
        yield layer


def record(number: int, path: Path, what: str = ALL) -> None:
    """Run a chunk of layers and write its measured trace."""
    layers = list(chunk(number, what))
    torch.cuda.synchronize()
    recorder = OpRecorder(Structure())
    with RecordingMode(recorder), recording_iteration(recorder) as recorded:
        for layer in layers:
            layer()
    measurement = Measurement(gpu=torch.cuda.get_device_name(), software=software())
    trace = replace(trace_of(recorded(), measurement), allocations=())
    trace.save(path)


def main() -> None:
    """Record the chunks that the folder lacks, until the time is up."""
    parser = folder_and_seconds(__doc__, float("inf"))
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--tuned", action="store_true", help="only convolutions, tuned by cuDNN")
    only.add_argument("--last", action="store_true", help="only convolutions in channels last")
    given = parser.parse_args()
    what = TUNED if given.tuned else LAST if given.last else ALL
    given.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + given.seconds
    for number in range(LAYERS // CHUNK):
        path = given.out / f"{what}{number:03d}.json.gz"
        if path.exists():
            continue
        if time.monotonic() > until:
            break
        begin = time.monotonic()
        record(number, path, what)
        torch.cuda.empty_cache()
        print(f"chunk {number}: {time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
