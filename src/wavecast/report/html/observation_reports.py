"""TBD's observations as a page, with figures like the paper's figures 4 to 9."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from wavecast.report.fields import columns
from wavecast.report.html.axes import bar
from wavecast.report.html.colors import key
from wavecast.report.html.documents import Report, Section
from wavecast.report.html.markup import Html, bullets, element, joined, table
from wavecast.report.tables import Column
from wavecast.report.units import count, memory, percent
from wavecast.runs.suite_observations import Observation, peak_flops, scaled_results
from wavecast.runs.suite_results import SuiteResult

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
    title: str, seen: Sequence[Observation], results: Sequence[SuiteResult]
) -> Report:
    """The observations with TBD's printed figures beside them, and the figures behind them."""
    single = [row for row in results if row.gpus == 1 and row.seconds is not None]
    parts = [_table_of(seen), *(_drawn(figure, single) for figure in _FIGURES), _gpus(single)]
    parts += [_memory(single), _scaling(results)]
    held = sum(one.holds is True for one in seen)
    judged = sum(one.holds is not None for one in seen)
    some = sum(one.holds is False and bool(one.agreeing) for one in seen)
    verdict = joined(
        [
            f"Claims of TBD's observations that these results can judge: {judged}. Of them ",
            *(element("strong", str(held)), f" hold in all models, and {some} in some."),
        ]
    )
    return Report(title, verdict, tuple(part for part in parts if part is not None))


def _table_of(seen: Sequence[Observation]) -> Section:
    missing = [
        f"{one.number}. {one.claim}: not in {', '.join(one.others)}" for one in seen if one.others
    ]
    shown = joined([table(columns(seen), caption="TBD's observations"), bullets(missing)])
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
    return table(cells, caption=caption, drawn=drawn)


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
    return Section("gpus", title, table(cells, caption=title, drawn=drawn), short="GPUs")


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
    found = scaled_results(rows)
    if not found:
        return None

    def drawn(column: Column, index: int) -> Html | None:
        if column.name != "speed of each GPU":
            return None
        share = found[index].efficiency
        return bar([(share, "c0", percent(share))], "")

    cells = [
        *_names([one.row for one in found]),
        Column("GPUs", [str(one.row.gpus) for one in found]),
        Column("machines", [str(one.row.nodes) for one in found]),
        Column("speed of each GPU", [percent(one.efficiency) for one in found]),
    ]
    title = "Several GPUs (figure 9)"
    lead = "The speed of each GPU, relative to that of one alone with the same batch."
    return Section("scaling", title, table(cells, caption=title, drawn=drawn), lead, "scaling")
