"""The benchmark suite and its results as tables in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType

from wavecast.report.tables import Column, fitting, remarks, table, titled
from wavecast.report.units import UNKNOWN, count, duration, memory, or_unknown, percent, quantity
from wavecast.runs.suite_results import SuiteResult
from wavecast.suite import Benchmark

if TYPE_CHECKING:
    from wavecast.suite.demonstrations import SmallTraining


def suite(models: Sequence[Benchmark], width: int) -> RenderableType:
    """The models of the suite, by domain."""
    columns = [
        Column("name", [model.name for model in models], left=True),
        Column("domain", [model.domain for model in models], 1, left=True),
        Column("parameters", [quantity(model.published_parameters) for model in models], 2),
        Column("default batch", [str(model.default_batch) for model in models], 3),
        Column("throughput unit", [model.unit for model in models], 4, left=True),
        Column("TBD's name", [model.tags.tbd for model in models], 6, left=True),
        Column("data set", [model.tags.dataset for model in models], 7, left=True),
        Column("layers", [model.tags.layers for model in models], 8),
        Column("reference", [model.reference for model in models], 5, left=True),
    ]
    return table(fitting(columns, width))


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
    return titled(title, table(fitting(result_columns(results), width)), "", *remarks(lines))


def trainings(rows: Sequence[SmallTraining], width: int) -> RenderableType:
    """One row for each small training: what it learned, and how well."""
    columns = [
        Column("domain", [row.domain for row in rows], left=True),
        Column("model", [row.model for row in rows], left=True),
        Column("task", [row.task for row in rows], 3, left=True),
        Column("steps", [str(row.steps) for row in rows], 2),
        Column("quality", [row.measure for row in rows], 1, left=True),
        Column("before", [f"{row.before:.2f}" for row in rows]),
        Column("after", [f"{row.reached:.2f}" for row in rows]),
        Column("needed", [f"{row.needed:.2f}" for row in rows]),
        Column("learned", ["yes" if row.learned else "no" for row in rows], left=True),
    ]
    lines = ["quality: measured on data that was not trained on; 1 is the best"]
    return titled(
        "small models of the suite, trained on made-up tasks on the CPU",
        *(table(fitting(columns, width)), ""),
        *remarks(lines),
    )


def result_columns(rows: Sequence[SuiteResult]) -> list[Column]:
    """The columns of suite results, in a terminal and on a page."""

    def sizes(name: str) -> list[str]:
        return [or_unknown(getattr(row, f"{name}_bytes"), memory) for row in rows]

    return [
        Column("model", [row.model for row in rows], left=True),
        Column("batch", [str(row.batch) for row in rows]),
        Column("precision", [row.precision for row in rows], left=True),
        Column("step", [_step(row) for row in rows]),
        Column("throughput", [_throughput(row) for row in rows], 1),
        *([Column("tokens/s", [_tokens(row) for row in rows], 6)] if _any_tokens(rows) else []),
        Column("GPU use", [or_unknown(row.gpu_utilisation, percent) for row in rows], 2),
        Column("FP32 use", [or_unknown(row.fp32_utilisation, percent) for row in rows], 3),
        Column("tensor-core use", [or_unknown(row.tensor_utilisation, percent) for row in rows], 3),
        Column("CPU use", [or_unknown(row.cpu_utilisation, percent) for row in rows], 7),
        Column("weights", sizes("weights"), 5),
        Column("gradients", sizes("weight_gradients"), 6),
        Column("feature maps", sizes("feature_maps"), 4),
        Column("workspace", sizes("workspace"), 6),
        Column("dynamic", sizes("dynamic"), 6),
        Column("peak memory", sizes("peak"), 4),
    ]


def _step(row: SuiteResult) -> str:
    """The step's time, or why there is none."""
    if row.seconds is not None:
        return duration(row.seconds) + ("*" if row.settled is False else "")
    return "out of memory" if row.status == "oom" else row.status


def _any_tokens(rows: Sequence[SuiteResult]) -> bool:
    """Whether some model counts tokens beside another unit."""
    return any(row.tokens_per_s is not None and row.unit != "tokens" for row in rows)


def _tokens(row: SuiteResult) -> str:
    return "" if row.tokens_per_s is None else count(row.tokens_per_s)


def _throughput(row: SuiteResult) -> str:
    rate = row.throughput_per_s
    return UNKNOWN if rate is None else f"{count(rate)} {row.unit}/s"
