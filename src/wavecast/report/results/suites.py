"""The benchmark suite and its results."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from wavecast.report.fields import Described, Field, columns, describe, output, some
from wavecast.report.html.documents import Report, Section, filled, template
from wavecast.report.html.markup import Html, bar, bullets, element, html_table, joined, key
from wavecast.report.tables import ANY_WIDTH, Column, fitting, line, listed, shown, titled
from wavecast.report.units import UNKNOWN, count, duration, memory, one_line, percent, quantity
from wavecast.runs.suite_results import (
    Observation,
    SuiteResult,
    gpu_name,
    peak_flops,
    scaled_results,
)
from wavecast.suite import Benchmark

if TYPE_CHECKING:
    from wavecast.suite.demonstrations import SmallTraining, TrainingToQuality


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


def _cost(training: TrainingToQuality) -> str:
    """The predicted and the actual cost, in cents of a dollar."""
    if training.predicted_usd is None or training.usd is None:
        return UNKNOWN
    return f"{100 * training.predicted_usd:.3g} and {100 * training.usd:.3g} ct"


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
    from wavecast.suite.demonstrations import TrainingToQuality

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
        f"{result.row.model} b{result.row.batch} {result.row.precision} on {result.row.gpus} GPUs"
        f"{f' of {result.row.nodes} machines' if result.row.nodes > 1 else ''}: "
        f"{result.efficiency:.0%} of as many single GPUs"
        for result in scaled_results(results)
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


# The page of the benchmark suite.


_BARS = {
    "GPU use": "gpu_utilisation",
    "FP32 use": "fp32_utilisation",
    "tensor-core use": "tensor_utilisation",
}
"""The columns of suite results that are drawn as bars, and the values that they show."""


def suite_page(title: str, results: Sequence[SuiteResult]) -> str:
    """The results of the benchmark suite as a table that sorts by any column."""
    columns = fitting(result_columns(results), ANY_WIDTH)

    def share(column: Column, row: int) -> float | None:
        name = _BARS.get(column.name)
        return getattr(results[row], name) if name else None

    values = {"title": html.escape(one_line(title)), "table": _table(columns, share)}
    return filled("suite.html", {**values, "style": template("style.css")})


def _table(
    columns: Sequence[Column],
    share: Callable[[Column, int], float | None] = lambda column, row: None,
) -> str:
    """The columns as a table of HTML; cells with a share get a bar of that length."""

    def cell(column: Column, row: int) -> str:
        text, part = html.escape(column.cells[row]), share(column, row)
        if part is None:
            return f'<td class="{_side(column)}">{text}</td>'
        return f'<td class="number bar" style="--share:{min(100.0, 100 * part):.1f}%">{text}</td>'

    head = "".join(f'<th class="{_side(c)}">{html.escape(c.name)}</th>' for c in columns)
    body = "\n".join(
        f"<tr>{''.join(cell(column, row) for column in columns)}</tr>"
        for row in range(len(columns[0].cells) if columns else 0)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _side(column: Column) -> str:
    return "text" if column.left else "number"


# TBD's observations on results of the suite.


def count_of(observation: Observation) -> str:
    """In how many cases an observation holds: `45 of 46`."""
    total = len(observation.agreeing) + len(observation.others)
    return f"{len(observation.agreeing)} of {total}" if total else UNKNOWN


describe(
    Observation,
    Field("number", title="no.", text=str),
    Field("claim", title="observation of 2018", folds=True),
    Field("", count_of, title="holds in"),
    Field("figure", title="here", rank=1, folds=True),
    Field("printed", title="TBD (P4000)", rank=2, folds=True),
    *map(Field, ("holds", "share", "agreeing", "others")),
)
OBSERVED = output(
    "TBD's observations on results of the suite.",
    Field("gpus", kind=Sequence[str], meaning="The GPUs that the results are of."),
    Field("observations", kind=Sequence[Observation], meaning="All twelve, in TBD's order."),
    Field("results", kind=Sequence[SuiteResult], meaning="The results."),
)


def observations(title: str, every: Sequence[Observation]) -> RenderableType:
    """Each observation: in how many cases it holds, the figures here, and what TBD prints."""
    parts: list[RenderableType] = []
    for observation in every:
        parts += [
            "",
            line(f"{observation.number}. {observation.claim}: {_verdict(observation)}", "bold"),
        ]
        parts += [line(f"   here: {observation.figure}"), line(f"   TBD:  {observation.printed}")]
        if observation.agreeing and observation.others:
            parts.append(line(f"   not in {listed(observation.others)}"))
    return titled(title, *parts)


def _verdict(observation: Observation) -> str:
    if observation.holds is None:
        return "not judged"
    return f"holds in {count_of(observation)}"


# TBD's observations as a page, with figures like the paper's figures 4 to 9.


_KINDS = {
    "weights": ("weights_bytes", "c0"),
    "weight gradients": ("weight_gradients_bytes", "c4"),
    "feature maps": ("feature_maps_bytes", "c2"),
    "workspace": ("workspace_bytes", "c1"),
    "dynamic": ("dynamic_bytes", "c7"),
}
"""TBD's kinds of memory: their column, and their color."""


@dataclass(frozen=True)
class _Figure:
    """A figure of bars over models and batches."""

    identity: str
    title: str
    value: Callable[[SuiteResult], float | None]
    shown: Callable[[SuiteResult], str]
    class_: str
    relative: bool = False
    """Whether bars are relative to the model's largest value, as models count different things."""


_FIGURES = (
    _Figure(
        "throughput",
        "Throughput (figure 4)",
        lambda row: row.throughput_per_s,
        lambda row: f"{count(row.throughput_per_s or 0)} {row.unit}/s",
        "c0",
        relative=True,
    ),
    _Figure(
        "gpu",
        "GPU utilisation (figure 5)",
        lambda row: row.gpu_utilisation,
        lambda row: percent(row.gpu_utilisation or 0.0),
        "c2",
    ),
    _Figure(
        "fp32",
        "FP32 utilisation (figure 6)",
        lambda row: row.fp32_utilisation,
        lambda row: percent(row.fp32_utilisation or 0.0),
        "c4",
    ),
    _Figure(
        "cpu",
        "CPU utilisation (equation 3)",
        lambda row: row.cpu_utilisation,
        lambda row: percent(row.cpu_utilisation or 0.0),
        "c7",
    ),
)


def observation_report(
    title: str, every: Sequence[Observation], results: Sequence[SuiteResult]
) -> Report:
    """The observations with TBD's printed figures beside them, and the figures behind them."""
    single = [row for row in results if row.gpus == 1 and row.seconds is not None]
    parts = [_table_of(every), *(_drawn(figure, single) for figure in _FIGURES), _gpus(single)]
    parts += [_memory(single), _scaling(results)]
    held = sum(observation.holds is True for observation in every)
    judged = sum(observation.holds is not None for observation in every)
    in_some = sum(
        observation.holds is False and bool(observation.agreeing) for observation in every
    )
    verdict = joined(
        [
            f"Claims of TBD's observations that these results can judge: {judged}. Of them ",
            *(element("strong", str(held)), f" hold in all models, and {in_some} in some."),
        ]
    )
    return Report(title, verdict, tuple(part for part in parts if part is not None))


def _table_of(every: Sequence[Observation]) -> Section:
    missing = [
        f"{observation.number}. {observation.claim}: not in {', '.join(observation.others)}"
        for observation in every
        if observation.others
    ]
    shown = joined([html_table(columns(every), caption="TBD's observations"), bullets(missing)])
    lead = "The last column is what the paper prints, for a Quadro P4000 of 2018."
    return Section("observations", "The observations", shown, lead, "observations")


def _steps(rows: Sequence[SuiteResult]) -> list[SuiteResult]:
    return sorted(rows, key=lambda row: (row.model, row.precision, row.gpu, row.batch))


def _names(rows: Sequence[SuiteResult]) -> list[Column]:
    return [
        Column("model", [f"{row.model} {row.precision}" for row in rows], left=True),
        Column("batch", [str(row.batch) for row in rows]),
        Column("GPU", [row.gpu for row in rows], left=True),
    ]


def _drawn(figure: _Figure, rows: Sequence[SuiteResult]) -> Section | None:
    known = [row for row in _steps(rows) if figure.value(row) is not None]
    if not known:
        return None
    most = _most_of_models(known, lambda row: figure.value(row) or 0.0)

    def drawn(row: SuiteResult) -> Html:
        whole = most[row.model] if figure.relative else 1.0
        share = (figure.value(row) or 0.0) / whole if whole else 0.0
        return bar([(share, figure.class_, figure.shown(row))], "")

    lead = "Bars are relative to the best of the model." if figure.relative else ""
    shown = _sweep_table(known, figure.title, figure.shown, drawn)
    return Section(figure.identity, figure.title, shown, lead, figure.identity)


def _most_of_models(
    rows: Sequence[SuiteResult], value: Callable[[SuiteResult], float]
) -> dict[str, float]:
    most: dict[str, float] = {}
    for row in rows:
        most[row.model] = max(most.get(row.model, 0.0), value(row))
    return most


def _sweep_table(
    rows: Sequence[SuiteResult],
    caption: str,
    text: Callable[[SuiteResult], str],
    draw: Callable[[SuiteResult], Html],
) -> Html:
    """A line for each model, with its batches side by side, as the paper's figures have them."""
    sweeps = [
        list(sweep)
        for _, sweep in groupby(rows, key=lambda row: (row.model, row.precision, row.gpu))
    ]
    places = range(max(map(len, sweeps)))
    batches = [
        Column(
            "smallest batch" if place == 0 else "",
            [
                f"{sweep[place].batch}: {text(sweep[place])}" if place < len(sweep) else ""
                for sweep in sweeps
            ],
        )
        for place in places
    ]
    places_of = {id(column): place for place, column in enumerate(batches)}

    def drawn(column: Column, index: int) -> Html | None:
        place = places_of.get(id(column), len(sweeps[index]))
        return draw(sweeps[index][place]) if place < len(sweeps[index]) else None

    cells = [
        Column("model", [f"{sweep[0].model} {sweep[0].precision}" for sweep in sweeps], left=True),
        Column("GPU", [sweep[0].gpu for sweep in sweeps], left=True),
        *batches,
    ]
    return html_table(cells, caption=caption, drawn=drawn)


def _gpus(rows: Sequence[SuiteResult]) -> Section | None:
    """Each step on a GPU beside the same step on the weakest one."""
    order = sorted({row.gpu for row in rows}, key=peak_flops)
    if len(order) < 2:
        return None
    base = {row.configuration: row for row in rows if row.gpu == order[0]}
    pairs = [
        (base[row.configuration], row)
        for row in _steps(rows)
        if row.gpu != order[0] and row.configuration in base
    ]

    def change(name: str) -> list[str]:
        return [
            f"{percent(getattr(a, name) or 0.0)} -> {percent(getattr(b, name) or 0.0)}"
            for a, b in pairs
        ]

    ratios = [(b.throughput_per_s or 0.0) / (a.throughput_per_s or 1.0) for a, b in pairs]
    largest = max(ratios, default=1.0)

    def drawn(column: Column, index: int) -> Html | None:
        if column.name != "throughput":
            return None
        return bar([(ratios[index] / largest, "c0", f"{ratios[index]:.2f} x")], "")

    cells = [
        *_names([row for _, row in pairs]),
        Column("throughput", [f"{ratio:.2f} x" for ratio in ratios]),
        Column("GPU use", change("gpu_utilisation")),
        Column("FP32 use", change("fp32_utilisation")),
    ]
    title = f"Other GPUs beside the {order[0]} (figure 7)"
    return Section("gpus", title, html_table(cells, caption=title, drawn=drawn), short="GPUs")


def _memory(rows: Sequence[SuiteResult]) -> Section | None:
    known = [row for row in _steps(rows) if row.feature_maps_bytes is not None]
    if not known:
        return None

    def sizes(row: SuiteResult) -> list[int]:
        return [getattr(row, name) or 0 for name, _ in _KINDS.values()]

    most = _most_of_models(known, lambda row: max(1, sum(sizes(row))))

    def drawn(row: SuiteResult) -> Html:
        parts = [
            (size / most[row.model], class_, f"{kind}: {memory(size)}")
            for size, (kind, (_, class_)) in zip(sizes(row), _KINDS.items(), strict=True)
        ]
        return bar(parts, "")

    def text(row: SuiteResult) -> str:
        whole = sum(sizes(row))
        return f"{memory(whole)}, {percent((row.feature_maps_bytes or 0) / max(1, whole))}"

    colors = key({kind: class_ for kind, (_, class_) in _KINDS.items()})
    title = "Memory by kind (figure 8)"
    lead = (
        "The most that each kind ever had, and the share of feature maps. "
        "Bars are relative to the largest of the model."
    )
    shown = joined([colors, _sweep_table(known, title, text, drawn)])
    return Section("memory", title, shown, lead, "memory")


def _scaling(rows: Sequence[SuiteResult]) -> Section | None:
    scaled = scaled_results(rows)
    if not scaled:
        return None

    def drawn(column: Column, index: int) -> Html | None:
        if column.name != "speed of each GPU":
            return None
        share = scaled[index].efficiency
        return bar([(share, "c0", percent(share))], "")

    cells = [
        *_names([result.row for result in scaled]),
        Column("GPUs", [str(result.row.gpus) for result in scaled]),
        Column("machines", [str(result.row.nodes) for result in scaled]),
        Column("speed of each GPU", [percent(result.efficiency) for result in scaled]),
    ]
    title = "Several GPUs (figure 9)"
    lead = "The speed of each GPU, relative to that of one alone with the same batch."
    return Section("scaling", title, html_table(cells, caption=title, drawn=drawn), lead, "scaling")
