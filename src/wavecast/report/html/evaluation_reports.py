"""The page about predictions between GPUs beside measurements, with bars as Habitat has them."""

from __future__ import annotations

from collections.abc import Sequence

from wavecast.report import evaluations as texts
from wavecast.report.fields import columns
from wavecast.report.html.axes import bar
from wavecast.report.html.colors import key
from wavecast.report.html.documents import Report, Section
from wavecast.report.html.markup import Html, bullets, element, joined, table
from wavecast.report.tables import Column
from wavecast.report.units import duration, percent
from wavecast.steps.evaluation import MeanError, PairEvaluation

_COLORS = dict(zip(texts.METHODS.values(), ("c0", "c2", "c4", "c7"), strict=True))
"""The color of each method."""


def evaluation_report(evaluation: PairEvaluation) -> Report:
    """All pairs of measured steps: errors by model, GPU and op."""
    sections = [_means(heading, rows) for heading, rows in texts.means(evaluation).items() if rows]
    if evaluation.pairs:
        sections += [_ops(evaluation), _pairs(evaluation)]
    else:
        sections = []
    steps = table(columns(evaluation.steps), caption="Each step, predicted from its ops alone")
    sections.append(
        Section(
            "steps",
            "Each step, predicted from its ops alone",
            steps,
            "On the GPU that it was measured on; nothing measured was used.",
            "from nothing",
        )
    )
    sections.append(Section("notes", "Notes", bullets([texts.HABITAT, *evaluation.notes])))
    return Report("Predictions beside measurements", _verdict(evaluation), tuple(sections))


def _verdict(evaluation: PairEvaluation) -> Html:
    overall = evaluation.overall
    if overall.error is None or overall.worst is None:
        return joined(["No model was measured on two GPUs, so there is no pair to compare."])
    parts: list[str | Html] = [
        f"Over {overall.pairs} pairs, steps scaled from one GPU to another are off by ",
        *(element("strong", percent(overall.error, 1)), " on average and "),
        f"{percent(overall.worst, 1)} at worst",
    ]
    if overall.flops_error is not None and overall.bandwidth_error is not None:
        parts.append(
            f"; the ratio of peak FLOPS is off by {percent(overall.flops_error, 1)}, that of "
            f"memory bandwidths by {percent(overall.bandwidth_error, 1)}"
        )
    return joined([*parts, "."])


def _means(heading: str, rows: Sequence[MeanError]) -> Section:
    """Bars of the mean error of each method, all of one scale, as in figures 1 and 3 of Habitat."""
    errors = [getattr(row, name) for row in rows for name in texts.METHODS]
    largest = max((error for error in errors if error is not None), default=0.0)
    cells = columns(rows)

    def drawn(column: Column, row: int) -> Html | None:
        name = next((name for name, title in texts.METHODS.items() if title == column.name), "")
        error = getattr(rows[row], name) if name else None
        return None if error is None else _bar(error, largest, _COLORS[column.name])

    content = joined([key(_COLORS), table(cells, caption=f"Mean errors {heading}", drawn=drawn)])
    lead = "Mean absolute errors of the step's time; all bars have one scale."
    return Section(heading.replace(" ", "-"), f"Errors {heading}", content, lead, heading)


def _bar(value: float, largest: float, class_: str) -> Html:
    return bar([(value / largest if largest else 0.0, class_, percent(value, 1))], "")


def _ops(evaluation: PairEvaluation) -> Section:
    """Bars of the error of each op and of its share of the time, as in Habitat's figure 4."""
    rows = evaluation.by_op[: texts.OPS_SHOWN]
    largest = {
        "error": max((row.error or 0.0 for row in rows), default=0.0),
        "share of time": max((row.share for row in rows), default=0.0),
    }

    def drawn(column: Column, row: int) -> Html | None:
        if column.name not in largest:
            return None
        one = rows[row]
        value = one.error if column.name == "error" else one.share
        color = "c0" if column.name == "error" else "c9"
        return None if value is None else _bar(value, largest[column.name], color)

    shown = table(texts.op_columns(evaluation), caption="Errors of ops", drawn=drawn)
    lead = "The error of an op's GPU time, and its share of the GPU time that was measured."
    return Section("ops", "Errors by op", shown, lead, "by op")


def _pairs(evaluation: PairEvaluation) -> Section:
    """Bars of what was measured and what is predicted, as in Habitat's figure 3."""
    rows = evaluation.pairs
    colors = {"measured": "c9", "predicted": "c0"}

    def drawn(column: Column, row: int) -> Html | None:
        if column.name not in colors:
            return None
        one = rows[row]
        seconds = one.measured_s if column.name == "measured" else one.scaled_s
        if seconds is None:
            return None
        share = seconds / max(one.measured_s, one.scaled_s or 0.0)
        return bar([(share, colors[column.name], duration(seconds))], "")

    shown = table(columns(rows), caption="Each model from one GPU to another", drawn=drawn)
    lead = (
        "The two bars of a row have one scale. Errors are (predicted - measured) / measured: "
        "below 0 is too short."
    )
    return Section("pairs", "Each model from one GPU to another", shown, lead, "pairs")
