"""The benchmark suite and its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from wavecast.report.fields import Described, Field, columns, describe, some
from wavecast.report.tables import Column, shown, titled
from wavecast.report.units import UNKNOWN, count, duration, quantity
from wavecast.runs.suite_observations import scaled_results
from wavecast.runs.suite_results import SuiteResult, gpu_name
from wavecast.suite import Benchmark

if TYPE_CHECKING:
    from wavecast.suite.demonstrations import SmallTraining
    from wavecast.suite.quality import TrainingToQuality

describe(
    Benchmark,
    Field("name", title="name"),
    Field("domain", title="domain", rank=1),
    Field("published_parameters", title="parameters", rank=2, text=quantity),
    Field("default_batch", title="default batch", rank=3, text=str),
    Field("unit", title="throughput unit", rank=4),
    Field("", "tags.tbd", title="TBD's name", rank=6),
    Field("", "tags.dataset", title="data set", rank=7),
    Field("", "tags.layers", title="layers", rank=8, left=False),
    Field("reference", title="reference", rank=5),
    *map(Field, ("title", "module", "units_per_sample", "smallest_batch")),
    Field("", "tags", inline=True),
)


_GPUS, _MACHINES = "GPUs", "machines"


def _step(row: SuiteResult) -> str:
    """The step's time, or why there is none."""
    if row.seconds is not None:
        return duration(row.seconds) + ("*" if row.settled is False else "")
    return "out of memory" if row.status == "oom" else row.status


def _throughput(row: SuiteResult) -> str | None:
    rate = row.throughput_per_s
    return None if rate is None else f"{count(rate)} {row.unit}/s"


describe(
    SuiteResult,
    Field("model", title="model"),
    Field("batch", title="batch", text=str),
    Field("precision", title="precision"),
    Field("gpus", title=_GPUS, text=str),
    Field("nodes", title=_MACHINES, rank=1, text=str),
    Field("", _step, title="step", left=False),
    Field("", _throughput, title="throughput", rank=1, left=False),
    Field("tokens_per_s", title="tokens/s", rank=6, absent=""),
    Field("gpu_utilisation", title="GPU use", rank=2),
    Field("fp32_utilisation", title="FP32 use", rank=3),
    Field("tensor_utilisation", title="tensor-core use", rank=3),
    Field("cpu_utilisation", title="CPU use", rank=7),
    Field("weights_bytes", title="weights", rank=5),
    Field("weight_gradients_bytes", title="gradients", rank=6),
    Field("feature_maps_bytes", title="feature maps", rank=4),
    Field("workspace_bytes", title="workspace", rank=6),
    Field("dynamic_bytes", title="dynamic", rank=6),
    Field("peak_bytes", title="peak memory", rank=4),
    *map(Field, ("gpu", "status", "unit", "seconds", "throughput_per_s", "gpu_s", "host_s")),
    *map(Field, ("reserved_bytes", "warm_up", "iterations", "software", "settled")),
)
_TRAINING = some(
    Field("domain", title="domain"),
    Field("model", title="model"),
    Field("task", title="task", rank=3),
    Field("steps", title="steps", rank=2, text=str),
    Field("measure", title="quality", rank=1),
    Field("before", title="before", text="{:.2f}".format),
    Field("reached", title="after", text="{:.2f}".format),
    Field("needed", title="needed", text="{:.2f}".format),
    Field("learned", title="learned"),
)


def small_trainings() -> Described:
    """The fields of a small training; its class is imported late, as it needs torch."""
    from wavecast.suite.demonstrations import SmallTraining

    return Described(SmallTraining, _TRAINING)


def _cost(one: TrainingToQuality) -> str:
    """The predicted and the actual cost, in cents of a dollar."""
    if one.predicted_usd is None or one.usd is None:
        return UNKNOWN
    return f"{100 * one.predicted_usd:.3g} and {100 * one.usd:.3g} ct"


_TO_QUALITY = some(
    Field("domain", title="domain", rank=2),
    Field("model", title="model"),
    Field("measure", title="quality", rank=4),
    Field("needed", title="needed", rank=1, text="{:.2f}".format),
    Field("reached", title="reached", rank=1, text="{:.2f}".format),
    Field("device"),
    Field("usual_steps", title="usual steps", text=str),
    Field("steps", title="steps", text=str),
    Field("startup_s", title="start-up", rank=3),
    Field("step_s"),
    Field("few_steps_s", title="a step", rank=1),
    Field("test_s", title="a test", rank=3),
    Field("predicted_s", title="predicted"),
    Field("seconds", title="took"),
    Field("error", title="error", text="{:+.0%}".format),
    Field("step_error", title="error if the steps were known", rank=3, text="{:+.0%}".format),
    Field("", _cost, title="cost, predicted and actual", rank=2, left=False),
    *map(Field, ("usd_per_h", "predicted_usd", "usd", "learned")),
)


def trainings_to_quality() -> Described:
    """The fields of a training to a quality; its class is imported late, as it needs torch."""
    from wavecast.suite.quality import TrainingToQuality

    return Described(TrainingToQuality, _TO_QUALITY)


def to_quality(rows: Sequence[TrainingToQuality], width: int) -> RenderableType:
    """One row for each training: the time to its quality, predicted and actual."""
    lines = [
        "predicted: the usual steps (the median of five other seeds), times the median of 20 first "
        "steps with their batches; the start-up and the tests",
        "error: (predicted - actual) / actual; most of it is the number of steps, which differs "
        "from seed to seed",
    ]
    return titled(
        f"time to quality on {gpu_name(rows[0].device)}",
        *shown(trainings_to_quality().columns(rows), width, lines),
    )


def suite(models: Sequence[Benchmark], width: int) -> RenderableType:
    """The models of the suite, by domain."""
    return Group(*shown(columns(models), width))


def suite_results(title: str, results: Sequence[SuiteResult], width: int) -> RenderableType:
    """One row for each step of the suite."""
    lines = [
        "GPU use: share of the step in which the GPU is busy; FP32 and tensor-core use: share of "
        "peak FLOP/s while the GPU is busy"
    ]
    restless = [f"{r.model} b{r.batch} {r.precision}" for r in results if r.settled is False]
    if restless:
        lines.append(
            f"* not settled: no end of warm-up was found in {', '.join(restless)}, so the time is "
            "the median of the last two thirds; measure longer (--again, --iterations)"
        )
    lines += [
        f"{one.row.model} b{one.row.batch} {one.row.precision} on {one.row.gpus} GPUs"
        f"{f' of {one.row.nodes} machines' if one.row.nodes > 1 else ''}: "
        f"{one.efficiency:.0%} of as many single GPUs"
        for one in scaled_results(results)
    ]
    return titled(title, *shown(result_columns(results), width, lines))


def result_columns(rows: Sequence[SuiteResult]) -> list[Column]:
    """The columns of suite results.

    Tokens are shown if some model counts them beside another unit, GPUs and machines if there are
    several.
    """
    needed = {
        "tokens/s": any(row.tokens_per_s is not None and row.unit != "tokens" for row in rows),
        _GPUS: any(row.gpus > 1 for row in rows),
        _MACHINES: any(row.nodes > 1 for row in rows),
    }
    return [column for column in columns(rows) if needed.get(column.name, True)]


def trainings(rows: Sequence[SmallTraining], width: int) -> RenderableType:
    """One row for each small training: what it learned, and how well."""
    lines = ["quality: measured on data that was not trained on; 1 is the best"]
    return titled(
        "small models of the suite, trained on made-up tasks on the CPU",
        *shown(small_trainings().columns(rows), width, lines),
    )
