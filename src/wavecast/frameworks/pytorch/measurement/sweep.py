"""Single layers of random sizes, recorded on this machine's GPU until the time is up.

They show how fast the libraries of this GPU are at shapes that no step of the user has had. Layers
of common networks (`frameworks.pytorch.drawn`) are drawn with a fixed seed, in the precisions that
the GPU has and in both layouts. A chunk of layers runs once to warm up and is then recorded like a
step, op by op and kernel by kernel.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count

import torch

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.drawn.network_layers import (
    LAYER_WEIGHTS,
    Layer,
    ShapeDraw,
    TooLarge,
)
from wavecast.frameworks.pytorch.drawn.newer_layers import NEWER, ODD, SOUNDS
from wavecast.frameworks.pytorch.measurement.iteration import (
    recording_iteration,
    require_gpu,
    software,
    trace_of,
)
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder, RecordingMode
from wavecast.frameworks.pytorch.recording.structure import Structure
from wavecast.frameworks.pytorch.recording.switches import switches_restored
from wavecast.traces.step import Measurement, Trace

Kinds = Sequence[tuple[Callable[[ShapeDraw], Layer], int]]
"""Kinds of layers, and the weights with which they are drawn."""
CHUNK = 60
"""The layers of one trace."""
TURNS = ("bf16", "fp16", "tf32", "bf16", "fp32", "fp16")
"""Precisions that take turns."""
PLAIN_TURNS = ("fp32", "fp16")
"""The same on GPUs that have neither bfloat16 nor TF32: before compute capability 8."""
CHANNELS_LAST = 0.75
"""The share of images in channels-last."""
SETS: dict[str, Kinds] = {
    "networks": LAYER_WEIGHTS, "newer": NEWER, "odd": ODD, "sounds": SOUNDS,
}  # fmt: skip
"""Layers by the networks that have them."""
SET_WEIGHTS = {"networks": 60, "newer": 17, "odd": 16, "sounds": 7}
MIXED: Kinds = tuple(
    (make, weight * 1000 * SET_WEIGHTS[name] // sum(w for _, w in kinds))
    for name, kinds in SETS.items()
    for make, weight in kinds
)
"""The layers of a sweep."""
SEARCHING = 7
"""In one of so many chunks, cuDNN searches for the fastest algorithm of each convolution."""
_FULL = 0.5
"""A chunk ends when its layers hold this share of the GPU's memory."""


def sweep(seconds: float, report: Callable[[int], object] | None = None) -> list[Trace]:
    """Recorded chunks of layers, each a trace, as many as begin within some seconds.

    Args:
        report: called with the number of ops after each chunk.

    Raises:
        CaptureError: torch sees no GPU here, or none of the layers runs on it.
    """
    require_gpu()
    newer = torch.cuda.get_device_capability() >= (8, 0) or torch.version.hip
    turns = TURNS if newer else PLAIN_TURNS
    traces: list[Trace] = []
    until = time.monotonic() + seconds
    for number in count():
        if traces and time.monotonic() >= until:
            return traces
        searching = number % SEARCHING == SEARCHING - 1
        pick, precision = random.Random(f"sweep {number}"), turns[number % len(turns)]
        with switches_restored():
            traces.append(recorded_chunk(MIXED, pick, precision, searching=searching))
        torch.cuda.empty_cache()
        if report is not None:
            report(sum(map(len, traces)))
    raise AssertionError("the numbers of chunks do not end")


def recorded_chunk(
    kinds: Kinds,
    pick: random.Random,
    precision: str,
    *,
    searching: bool = False,
    channels_last: float = CHANNELS_LAST,
) -> Trace:
    """The measured trace of layers that run one after another.

    Args:
        searching: whether cuDNN searches for the fastest algorithms.
        channels_last: the share of images in channels-last.
    """
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = searching
    layers = list(drawn(kinds, pick, precision, channels_last=channels_last))
    if not layers:
        raise CaptureError("none of the layers that were drawn runs on this GPU")
    return record(layers)


def drawn(
    kinds: Kinds,
    pick: random.Random,
    precision: str,
    device: str = "cuda",
    *,
    channels_last: float = CHANNELS_LAST,
) -> Iterator[Layer]:
    """The layers of a chunk, each of which has run once."""
    makers, weights = zip(*kinds, strict=True)
    count = 0
    most = torch.cuda.mem_get_info()[1] * _FULL if device == "cuda" else 0.0
    while count < CHUNK and (device != "cuda" or torch.cuda.memory_allocated() <= most):
        make = pick.choices(makers, weights)[0]
        layout = "nhwc" if pick.random() < channels_last else "nchw"
        try:
            layer = make(ShapeDraw(pick, precision, layout, device))
            layer()
        except TooLarge:
            continue
        except (RuntimeError, ValueError):  # it does not accept these sizes, or memory is short
            count += 1
            continue
        count += 1
        yield layer


def record(layers: Sequence[Layer]) -> Trace:
    """The measured trace of layers that have run before. It has no values and no memory."""
    torch.cuda.synchronize()
    recorder = OpRecorder(Structure())
    with RecordingMode(recorder), recording_iteration(recorder) as recorded:
        for layer in layers:
            layer()
    measurement = Measurement(gpu=torch.cuda.get_device_name(), software=software())
    trace = trace_of(recorded(), measurement)
    calls = tuple(replace(call, reads=(), writes=()) for call in trace)
    return replace(trace, calls=calls, allocations=(), values=())
