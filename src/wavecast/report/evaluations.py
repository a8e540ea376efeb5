"""Predictions between GPUs beside measurements: errors by model, GPU and op."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType

from wavecast.report.fields import Field, columns, describe
from wavecast.report.tables import Column, line, notes, shown
from wavecast.report.units import duration, percent
from wavecast.steps.evaluation import MeanError, OpError, PairError, PairEvaluation, StepError

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
