"""Predictions between GPUs beside measurements: errors by model, GPU and op."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

from rich.console import RenderableType

from wavecast.analysis.evaluation import MeanError, OpError, PairError, PairEvaluation, StepError
from wavecast.campaigns.progress import CampaignRun, CampaignStatus, NodeWork
from wavecast.report.fields import Field, columns, describe, output
from wavecast.report.html.markup import Html, bar, bullets, key
from wavecast.report.tables import Column, line, remarks, shown, titled, warnings
from wavecast.report.units import duration, long_duration, percent
from wavecast.report.views import Strong, View, ViewPart

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


_COLORS = dict(zip(METHODS.values(), ("c0", "c2", "c4", "c7"), strict=True))
"""The color of each method in bars, which pages have as Habitat's figures do."""


def evaluation_view(evaluation: PairEvaluation) -> View:
    """All pairs of measured steps: errors by model, GPU and op."""
    pairs = evaluation.pairs
    errors = [*_means(evaluation), _ops(evaluation)] if pairs else []
    about = "errors are (predicted - measured) / measured; means are of their sizes"
    return View(
        "Predictions beside measurements",
        _verdict(evaluation),
        (
            *([_pairs(evaluation, in_terminal=True)] if pairs else []),
            *errors,
            *([_pairs(evaluation, in_terminal=False)] if pairs else []),
            ViewPart(
                "Each step, predicted from its ops alone",
                "each step predicted from its ops alone",
                columns(evaluation.steps),
                identity="steps",
                lead="On the GPU that it was measured on; nothing measured was used.",
                short="from nothing",
            ),
            ViewPart("Notes", chart=lambda: bullets([HABITAT, *evaluation.notes])),
        ),
        heading="",
        has_verdict_line=False,
        notes=[about, HABITAT, *evaluation.notes],
    )


def _verdict(evaluation: PairEvaluation) -> Sequence[str]:
    overall = evaluation.overall
    if overall.error is None or overall.worst is None:
        return ["No model was measured on two GPUs, so there is no pair to compare."]
    parts = [
        f"Over {overall.pairs} pairs, steps scaled from one GPU to another are off by ",
        *(Strong(percent(overall.error, 1)), " on average and "),
        f"{percent(overall.worst, 1)} at worst",
    ]
    if overall.flops_error is not None and overall.bandwidth_error is not None:
        parts.append(
            f"; the ratio of peak FLOPS is off by {percent(overall.flops_error, 1)}, that of "
            f"memory bandwidths by {percent(overall.bandwidth_error, 1)}"
        )
    return [*parts, "."]


def _means(evaluation: PairEvaluation) -> list[ViewPart]:
    """The mean error of each method, with bars of one scale, as in figures 1 and 3 of Habitat."""
    groups = {
        "by model": (*evaluation.by_model, evaluation.overall),
        "by the GPU measured on": evaluation.by_origin,
        "by the GPU predicted": evaluation.by_target,
    }
    return [_mean_errors(heading, rows) for heading, rows in groups.items()]


def _mean_errors(heading: str, rows: Sequence[MeanError]) -> ViewPart:
    errors = [getattr(row, name) for row in rows for name in METHODS]
    largest = max((error for error in errors if error is not None), default=0.0)

    def drawn(column: Column, number: int) -> Html | None:
        name = next((name for name, title in METHODS.items() if title == column.name), "")
        error = getattr(rows[number], name) if name else None
        return None if error is None else _bar(error, largest, _COLORS[column.name])

    return ViewPart(
        f"Errors {heading}",
        f"mean error {heading}",
        columns(rows),
        identity=heading.replace(" ", "-"),
        lead="Mean absolute errors of the step's time; all bars have one scale.",
        short=heading,
        caption=f"Mean errors {heading}",
        drawn=drawn,
        chart=lambda: key(_COLORS),
    )


def _bar(value: float, largest: float, class_: str) -> Html:
    return bar([(value / largest if largest else 0.0, class_, percent(value, 1))], "")


def _ops(evaluation: PairEvaluation) -> ViewPart:
    """The error of each op and its share of the time, as in Habitat's figure 4."""
    rows = evaluation.by_op[:OPS_SHOWN]
    fields = {"error": ("error", "c0"), "share of time": ("share", "c9")}
    largest = {
        title: max((getattr(row, name) or 0.0 for row in rows), default=0.0)
        for title, (name, _) in fields.items()
    }

    def drawn(column: Column, number: int) -> Html | None:
        if column.name not in fields:
            return None
        name, color = fields[column.name]
        value = getattr(rows[number], name)
        return None if value is None else _bar(value, largest[column.name], color)

    return ViewPart(
        "Errors by op",
        "error of ops, by their share of the measured time",
        columns(rows),
        identity="ops",
        lead="The error of an op's GPU time, and its share of the GPU time that was measured.",
        short="by op",
        caption="Errors of ops",
        drawn=drawn,
    )


def _pairs(evaluation: PairEvaluation, *, in_terminal: bool) -> ViewPart:
    """What was measured and what is predicted, as in Habitat's figure 3; a page has it last."""
    rows = evaluation.pairs
    if in_terminal:
        return ViewPart(heading="each model from one GPU to another", columns=columns(rows))
    colors = {"measured": "c9", "predicted": "c0"}

    def drawn(column: Column, number: int) -> Html | None:
        if column.name not in colors:
            return None
        pair = rows[number]
        seconds = pair.measured_s if column.name == "measured" else pair.scaled_s
        if seconds is None:
            return None
        share = seconds / max(pair.measured_s, pair.scaled_s or 0.0)
        return bar([(share, colors[column.name], duration(seconds))], "")

    return ViewPart(
        "Each model from one GPU to another",
        columns=columns(rows),
        identity="pairs",
        lead="The two bars of a row have one scale. Errors are (predicted - measured) / measured: "
        "below 0 is too short.",
        short="pairs",
        drawn=drawn,
    )


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
    Field("verdict", lambda campaign: status_verdict(campaign), kind=str, meaning="How far it is."),
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
    Field("verdict", lambda start: run_verdict(start), kind=str, meaning="What this start did."),
    Field("tasks", meaning="How many tasks it has."),
    *map(Field, ("done", "new", "failed", "unplaced", "lost")),
    Field("seconds", meaning="How long this start took."),
)
EXPORTED = output(
    "The files with the results of a campaign.",
    Field("campaign", kind=str, meaning="The name of the campaign."),
    Field("files", kind=Sequence[str], meaning="The files, one for each kind of task and GPU."),
)


def run_verdict(start: CampaignRun) -> str:
    """What a start did, in a sentence."""
    lost = f" Workers died {start.lost} times; their tasks ran again." if start.lost else ""
    return (
        f"{start.done} of {start.tasks} tasks have a result, {start.new} of them new, in "
        f"{long_duration(start.seconds)}.{lost}"
    )


def status_verdict(campaign: CampaignStatus) -> str:
    """How far a campaign is, in a sentence."""
    if campaign.done == campaign.tasks:
        return f"All {campaign.tasks} tasks have a result."
    rest = (
        ""
        if campaign.remaining_s is None
        else f", about {long_duration(campaign.remaining_s)} left"
    )
    return f"{campaign.done} of {campaign.tasks} tasks have a result{rest}."


def run_text(start: CampaignRun) -> RenderableType:
    """What a start did, and what is left."""
    left = [f"no worker has {gpu}: {number} tasks left" for gpu, number in start.unplaced.items()]
    return titled(
        start.name, line(run_verdict(start)), *warnings(left), *warnings(_failures(start.failed))
    )


def status_text(campaign: CampaignStatus, width: int) -> RenderableType:
    """How far a campaign is, and what each node did."""
    kinds = [f"{kind}: {done} of {total}" for kind, (done, total) in campaign.kinds.items()]
    if campaign.attempts_failed:
        kinds.append(f"attempts that failed or were lost: {campaign.attempts_failed}")
    parts = shown(columns(campaign.nodes), width) if campaign.nodes else []
    return titled(
        campaign.name,
        line(status_verdict(campaign)),
        "",
        *parts,
        *([""] if parts else []),
        *remarks(kinds),
        *warnings(_failures(campaign.failed)),
    )


def _failures(failed: Mapping[str, str]) -> list[str]:
    lines = [f"failed: {name}: {error}" for name, error in list(failed.items())[:_MOST_FAILURES]]
    more = len(failed) - len(lines)
    return [*lines, f"{more} more failed"] if more > 0 else lines
