"""Predictions of a step as commands show them, on one GPU and on several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import typer
from rich.console import RenderableType

import wavecast
from wavecast.cli.app import INCOMPLETE
from wavecast.cli.options.predictors import By, HostOptions, SetupName
from wavecast.cli.output.pages import ReportFiles, write_prediction_files
from wavecast.cli.output.screen import show, waiting, width
from wavecast.errors import InvalidInput
from wavecast.planning.cost import (
    Ranged,
    TrainingCost,
    TrainingPlan,
    accumulating,
    exactly,
    mean_beyond,
    training_cost,
)
from wavecast.report.results import costs as cost_report
from wavecast.report.results import predictions as report
from wavecast.report.results.caveats import shares
from wavecast.report.results.predictions import generation, offer_for, predicted
from wavecast.report.views import text_of
from wavecast.steps.prediction import comparable, in_order, shares_by_line
from wavecast.targets.sources import ScriptSource, StepSource

if TYPE_CHECKING:
    from wavecast import FamilyTraces, Parallel, Prediction
    from wavecast.advice.proposals import StepAdvice
    from wavecast.analysis.generation import TextGeneration
    from wavecast.hardware.devices import Device
    from wavecast.planning.prices import PriceBook
from wavecast.steps.prediction import Share


@dataclass(frozen=True)
class PredictionOutput:
    """How predictions are printed and priced, and where else they are written."""

    files: ReportFiles
    as_json: bool
    plan: TrainingPlan | None
    book: PriceBook
    by: By | None = None
    depth: int = 2
    setup: SetupName | None = None
    several: bool = False
    """Whether the step is spread over several GPUs."""
    advice: StepAdvice | None = None
    """What would make the step better, if that was asked for."""
    generation: tuple[TextGeneration, ...] = ()
    """The steps in the words of those who serve models, if they generate text."""
    uneven: Mapping[str, Ranged] = field(default_factory=dict)
    """How much longer the mean of all steps is than the one predicted, by the GPU's id."""
    remarks: Sequence[str] = ()
    """What the time of a whole training has of steps that differ, or has not."""


def refuse_beside_several(given: Mapping[str, object]) -> None:
    """Refuse options that hold for one GPU alone, by their names."""
    for option, value in given.items():
        if value is not None:
            raise InvalidInput(
                f"{option} cannot be used with --parallel or --ranks; leave out one of them"
            )


def predict_spread(
    traces: FamilyTraces,
    gpus: Sequence[Device],
    strategy: Parallel,
    plan: TrainingPlan | None,
    issuing: HostOptions,
) -> list[Prediction]:
    """The step on several of each GPU; gradients accumulate to the plan's global batch."""
    spread = accumulating(strategy, plan, traces.traces[0].samples)
    how = issuing.arguments()
    with waiting(f"predicting on {len(gpus)} GPUs"):
        return [wavecast.predict(traces, gpu, parallel=spread, **how) for gpu in gpus]


def listed(rows: Iterable[Prediction], *, ranked: bool) -> list[Prediction]:
    """Predictions in the order of a table: as given, or from the fastest on."""
    return in_order(rows, lambda row: row, by_speed=ranked, bounds_last=ranked)


def print_predictions(
    title: str,
    rows: Sequence[Prediction],
    shown: PredictionOutput,
    heading: str | None = None,
    before: RenderableType | None = None,
) -> dict[str, Any]:
    """Print predictions as tables, or return them as data for JSON; and write their files."""
    costs = [_cost(row, shown) for row in rows]
    whole = None
    if shown.plan is not None:
        whole = cost_report.WholeTraining(shown.plan, costs, shown.remarks)
    how: dict[str, Any] = {"several": shown.several, "advice": shown.advice}
    how["generation"] = shown.generation
    write_prediction_files(shown.files, title, rows, shown.setup, whole, **how)
    if shown.as_json:
        trainings = None if shown.plan is None else costs
        by = "none" if shown.several else shown.by
        more = (trainings, shown.advice, shown.generation)
        return predicted(title, rows, by, shown.book, shown.depth, *more)
    if shown.several:
        from wavecast.report.results import parallel

        table = parallel.predictions(heading or title, rows, width())
    else:
        table = report.predictions(heading or title, rows, width(), shown.setup, shown.book)
    show(before, table)
    if shown.generation:
        show("", generation(shown.generation, width()))
    if shown.plan is not None:
        unit = rows[0].trace.unit
        show(cost_report.trainings(shown.plan, unit, costs, width(), shown.remarks))
    for row in rows if shown.by is not None else ():
        parts = _parts(row, shown.by, shown.depth)
        show(shares(f"{row.device.id}, by {shown.by}", parts, row.gpu_s))
    if shown.advice is not None:
        from wavecast.report.results.advice import advice_view

        show(text_of(advice_view(shown.advice), width()))
    return {}


def _parts(row: Prediction, by: By | None, depth: int) -> tuple[Share, ...]:
    if by is By.LINE:
        return shares_by_line(row.runs)
    return row.by_op() if by is By.OP else row.by_module(depth)


def naming_lines(by: By | None) -> AbstractContextManager[None]:
    """What surrounds the tracing of a step whose time is broken down so."""
    from wavecast.frameworks.pytorch.recording.user_lines import naming_all_lines

    return naming_all_lines() if by is By.LINE else nullcontext()


def _cost(row: Prediction, shown: PredictionOutput) -> TrainingCost | None:
    """What a training takes; None where the step does not fit or cannot be compared."""
    if shown.plan is None or row.fits is False or not comparable(row):
        return None
    uneven = shown.uneven.get(row.device.id, exactly(0.0))
    return training_cost(row, shown.plan, offer_for(row, shown.book), uneven=uneven)


def counting_uneven(
    shown: PredictionOutput, source: StepSource, rows: Sequence[Prediction], how: Mapping[str, Any]
) -> PredictionOutput:
    """What is shown, whose whole training also counts what only some steps of a script do."""
    if shown.plan is None or not isinstance(source, ScriptSource):
        return shown
    from wavecast.report.results.profiles import in_total

    run, uneven = source.runs[0], dict[str, Ranged]()
    for row in () if shown.several else rows:
        steps = source.uneven(row.device)
        others = ((wavecast.predict(step, row.device, **how), share) for step, share in steps)
        uneven[row.device.id] = mean_beyond(row, others)
    is_known = run.cycle is not None and not shown.several
    return replace(shown, uneven=uneven, remarks=in_total(run, averaged=is_known))


def exit_if_incomplete(predictions: Iterable[Prediction]) -> None:
    """Exit with `INCOMPLETE` if too much of a step could not be predicted on one of the GPUs."""
    if not all(map(comparable, predictions)):
        raise typer.Exit(INCOMPLETE)
