"""The time of a step at a batch that was not traced, from a line through smaller batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import RenderableType

from wavecast.hardware.device import Device
from wavecast.report.caveats import not_ranked, unpredicted_ops
from wavecast.report.fields import Field, columns, describe
from wavecast.report.tables import fitting, left_out, remarks, table, titled, warnings
from wavecast.report.units import count, duration, time_range
from wavecast.steps.larger_batch import LargerBatch
from wavecast.steps.prediction import Prediction


def larger_batches(
    rows: Mapping[Device, LargerBatch],
    unit: str,
    width: int,
    points: Sequence[Prediction] = (),
) -> RenderableType:
    """The step time at a larger batch, extrapolated on each GPU from predictions, the points."""
    first = next(iter(rows.values()))
    sizes = ", ".join(map(str, first.points))
    lines = ["range: 90% range of the straight line; the error of each prediction is not in it"]
    answers = [GpuLargerBatch(gpu.id, larger) for gpu, larger in rows.items()]
    every = columns(answers, unit)
    kept = fitting(every, width)
    return titled(
        f"a batch of {first.batch} {unit}, extrapolated from batches of {sizes}",
        table(kept),
        "",
        *warnings([*unpredicted_ops(points), *not_ranked(points)]),
        *remarks([*left_out(every, kept), *lines]),
    )


def larger_by_gpu(
    rows: Mapping[Device, LargerBatch], points: Mapping[Device, Mapping[int, Prediction]]
) -> list[GpuLargerBatch]:
    """The step at a larger batch on each GPU, with what was not predicted of its points."""
    return [
        GpuLargerBatch(gpu.id, larger, max(p.unpredicted_share for p in points[gpu].values()))
        for gpu, larger in rows.items()
    ]


@dataclass(frozen=True)
class GpuLargerBatch:
    """The time of a step at a larger batch on one GPU, extrapolated from predictions."""

    gpu: str
    larger: LargerBatch
    unpredicted_share: float = 0.0
    """How much of the step could not be predicted, from 0 to 1."""


def _positive(seconds: float) -> str:
    return duration(max(seconds, 0.0))


def _line_range(larger: LargerBatch) -> str:
    return time_range(larger.low_s, larger.high_s)


describe(
    LargerBatch,
    Field("batch", title="batch"),
    Field("seconds", title="step"),
    Field("", _line_range, title="range", rank=2, left=False),
    Field("throughput_per_s", "throughput", title="{unit}/s", rank=1),
    Field("fixed_s", title="fixed part", rank=3, text=_positive),
    Field("per_sample_s", title="per sample", rank=4, text=_positive),
    *map(Field, ("low_s", "high_s", "points")),
)
describe(
    GpuLargerBatch,
    Field("gpu", title="GPU"),
    Field("", "larger.seconds", title="step", text=duration),
    Field("", "larger", title="range", rank=2, text=_line_range),
    Field("", "larger.throughput", title="{unit}/s", rank=1, text=count),
    Field("", "larger.fixed_s", title="fixed part", rank=3, text=_positive),
    Field("", "larger.per_sample_s", title="per sample", rank=4, text=_positive),
    Field("", "larger", inline=True),
    "unpredicted_share",
)
