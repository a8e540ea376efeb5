"""Predictions between GPUs beside measurements: errors by model, GPU and op."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType

from wavecast.analysis.evaluation import MeanError, OpError, PairError, PairEvaluation, StepError
from wavecast.campaigns.progress import CampaignRun, CampaignStatus, NodeWork
from wavecast.report.fields import Field, columns, describe, output
from wavecast.report.html.axes import bar
from wavecast.report.html.documents import Report, Section
from wavecast.report.html.markup import Html, bullets, element, html_table, joined, key
from wavecast.report.tables import Column, line, notes, remarks, shown, titled, warnings
from wavecast.report.units import duration, long_duration, percent

OPS_SHOWN = 12
"""How many ops the table lists."""
HABITAT = (
    "Habitat (ATC 2021) had errors of 11.8% on average over five models and six GPUs (ResNet-50 "
    "13.4%, Inception v3 9.5%, Transformer 12.6%, GNMT 11.2%, DCGAN 12.3%)"
)
"""What the paper prints of its figure 3."""


def signed(error: float) -> str:
    """An error with its sign: below 0 is too short."""
    return f"{100 * error:+.1f}%"


def _size(error: float) -> str:
    return percent(error, 1)


METHODS = {
    "error": "scaled",
    "unmeasured_error": "from nothing",
    "flops_error": "peak FLOPS ratio",
    "bandwidth_error": "bandwidth ratio",
}
"""The methods that are compared: the attribute of their error, and their heading."""


def _method_fields(text: object) -> list[Field]:
    assert callable(text)
    return [
        Field(name, title=title, text=text, rank=0 if name == "error" else 1)
        for name, title in METHODS.items()
    ]


PAIRS = describe(
    PairError,
    Field("model", title="model", folds=True),
    Field("origin", title="from"),
    Field("target", title="to"),
    Field("measured_s", title="measured", text=duration),
    Field("scaled_s", title="predicted", text=duration),
    *_method_fields(signed),
    *("unmeasured_s", "flops_s", "bandwidth_s"),
)
describe(
    StepError,
    Field("model", title="model", folds=True),
    Field("gpu", title="GPU"),
    Field("measured_s", title="measured", text=duration),
    Field("unmeasured_s", title="from nothing", text=duration),
    Field("unmeasured_error", title="error", text=signed),
)
MEANS = describe(
    MeanError,
    Field("name", title="", folds=True),
    Field("pairs", title="pairs"),
    *_method_fields(_size),
    Field("worst", title="worst scaled", text=_size, rank=2),
)
describe(
    OpError,
    Field("op", title="op", folds=True),
    Field("pairs", title="pairs"),
    Field("error", title="error", text=_size),
    Field("share", title="share of time", text=_size),
)
describe(
    PairEvaluation,
    *map(Field, ("overall", "by_model", "by_origin", "by_target", "by_op")),
    *map(Field, ("pairs", "steps", "notes")),
    parts="pairs",
)


def means(evaluation: PairEvaluation) -> dict[str, Sequence[MeanError]]:
    """The mean errors by what the pairs are grouped by, with those of all pairs."""
    overall = (evaluation.overall,)
    return {
        "by model": (*evaluation.by_model, *overall),
        "by the GPU measured on": evaluation.by_origin,
        "by the GPU predicted": evaluation.by_target,
    }


def op_columns(evaluation: PairEvaluation, limit: int = OPS_SHOWN) -> list[Column]:
    """The errors of the ops that take most of the measured time."""
    return columns(evaluation.by_op[:limit])


def evaluation_text(evaluation: PairEvaluation, width: int) -> RenderableType:
    """The errors of all pairs as tables.

    Args:
        evaluation: the result.
        width: columns of the terminal.
    """
    parts: list[RenderableType] = []

    def add(heading: str, table: list[Column]) -> None:
        parts.extend(["", line(heading, "bold"), "", *shown(table, width)])

    if evaluation.pairs:
        add("each model from one GPU to another", columns(evaluation.pairs))
        for heading, rows in means(evaluation).items():
            add(f"mean error {heading}", columns(rows))
        add("error of ops, by their share of the measured time", op_columns(evaluation))
    add("each step predicted from its ops alone", columns(evaluation.steps))
    parts.append("")
    about = "errors are (predicted - measured) / measured; means are of their sizes"
    return Group(*parts[1:], *notes([about, HABITAT, *evaluation.notes]))


# The page about predictions between GPUs beside measurements, with bars as Habitat has them.


_COLORS = dict(zip(METHODS.values(), ("c0", "c2", "c4", "c7"), strict=True))
"""The color of each method."""


def evaluation_report(evaluation: PairEvaluation) -> Report:
    """All pairs of measured steps: errors by model, GPU and op."""
    sections = [_means(heading, rows) for heading, rows in means(evaluation).items() if rows]
    if evaluation.pairs:
        sections += [_ops(evaluation), _pairs(evaluation)]
    else:
        sections = []
    steps = html_table(columns(evaluation.steps), caption="Each step, predicted from its ops alone")
    sections.append(
        Section(
            "steps",
            "Each step, predicted from its ops alone",
            steps,
            "On the GPU that it was measured on; nothing measured was used.",
            "from nothing",
        )
    )
    sections.append(Section("notes", "Notes", bullets([HABITAT, *evaluation.notes])))
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
    errors = [getattr(row, name) for row in rows for name in METHODS]
    largest = max((error for error in errors if error is not None), default=0.0)
    cells = columns(rows)

    def drawn(column: Column, row: int) -> Html | None:
        name = next((name for name, title in METHODS.items() if title == column.name), "")
        error = getattr(rows[row], name) if name else None
        return None if error is None else _bar(error, largest, _COLORS[column.name])

    content = joined(
        [key(_COLORS), html_table(cells, caption=f"Mean errors {heading}", drawn=drawn)]
    )
    lead = "Mean absolute errors of the step's time; all bars have one scale."
    return Section(heading.replace(" ", "-"), f"Errors {heading}", content, lead, heading)


def _bar(value: float, largest: float, class_: str) -> Html:
    return bar([(value / largest if largest else 0.0, class_, percent(value, 1))], "")


def _ops(evaluation: PairEvaluation) -> Section:
    """Bars of the error of each op and of its share of the time, as in Habitat's figure 4."""
    rows = evaluation.by_op[:OPS_SHOWN]
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

    shown = html_table(op_columns(evaluation), caption="Errors of ops", drawn=drawn)
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

    shown = html_table(columns(rows), caption="Each model from one GPU to another", drawn=drawn)
    lead = (
        "The two bars of a row have one scale. Errors are (predicted - measured) / measured: "
        "below 0 is too short."
    )
    return Section("pairs", "Each model from one GPU to another", shown, lead, "pairs")


# Campaigns: what a start did, and where one stands.


_MOST_FAILURES = 10


def _clock(seconds: float) -> str:
    then = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return then.strftime("%Y-%m-%d %H:%M:%S UTC")


describe(
    NodeWork,
    Field("node", title="node", meaning="The name of the machine, and of the node if it has some."),
    Field("done", title="results", text=str, meaning="How many results it gave."),
    Field("busy_s", title="busy", text=long_duration),
    Field("last_s", title="last result", text=_clock, left=True),
)
_KIND = Mapping[str, Sequence[int]]
describe(
    CampaignStatus,
    Field("name", meaning="The name of the campaign."),
    Field("verdict", lambda one: status_verdict(one), kind=str, meaning="How far it is."),
    Field("tasks", meaning="How many tasks it has."),
    Field("done", meaning="How many of them have a result."),
    Field("kinds", kind=_KIND),
    Field("nodes", meaning="What each node did."),
    Field("failed"),
    Field("attempts_failed"),
    Field("remaining_s"),
)
describe(
    CampaignRun,
    Field("name", meaning="The name of the campaign."),
    Field("verdict", lambda one: run_verdict(one), kind=str, meaning="What this start did."),
    Field("tasks", meaning="How many tasks it has."),
    *map(Field, ("done", "new", "failed", "unplaced", "lost")),
    Field("seconds", meaning="How long this start took."),
)
EXPORTED = output(
    "The files with the results of a campaign.",
    Field("campaign", kind=str, meaning="The name of the campaign."),
    Field("files", kind=Sequence[str], meaning="The files, one for each kind of task and GPU."),
)


def run_verdict(one: CampaignRun) -> str:
    """What a start did, in a sentence."""
    lost = f" Workers died {one.lost} times; their tasks ran again." if one.lost else ""
    return (
        f"{one.done} of {one.tasks} tasks have a result, {one.new} of them new, in "
        f"{long_duration(one.seconds)}.{lost}"
    )


def status_verdict(one: CampaignStatus) -> str:
    """How far a campaign is, in a sentence."""
    if one.done == one.tasks:
        return f"All {one.tasks} tasks have a result."
    rest = "" if one.remaining_s is None else f", about {long_duration(one.remaining_s)} left"
    return f"{one.done} of {one.tasks} tasks have a result{rest}."


def run_text(one: CampaignRun) -> RenderableType:
    """What a start did, and what is left."""
    left = [f"no worker has {gpu}: {number} tasks left" for gpu, number in one.unplaced.items()]
    return titled(
        one.name, line(run_verdict(one)), *warnings(left), *warnings(_failures(one.failed))
    )


def status_text(one: CampaignStatus, width: int) -> RenderableType:
    """How far a campaign is, and what each node did."""
    kinds = [f"{kind}: {done} of {total}" for kind, (done, total) in one.kinds.items()]
    if one.attempts_failed:
        kinds.append(f"attempts that failed or were lost: {one.attempts_failed}")
    parts = shown(columns(one.nodes), width) if one.nodes else []
    return titled(
        one.name,
        line(status_verdict(one)),
        "",
        *parts,
        *([""] if parts else []),
        *remarks(kinds),
        *warnings(_failures(one.failed)),
    )


def _failures(failed: Mapping[str, str]) -> list[str]:
    lines = [f"failed: {name}: {error}" for name, error in list(failed.items())[:_MOST_FAILURES]]
    more = len(failed) - len(lines)
    return [*lines, f"{more} more failed"] if more > 0 else lines
