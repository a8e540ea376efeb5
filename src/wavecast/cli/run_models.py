"""`wavecast fit --runs`, `predict --from` and `design`: whole runs, predicted from past ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import wavecast
from wavecast.cli.app import JsonOption, app
from wavecast.cli.screen import print_json, show
from wavecast.errors import InvalidInput
from wavecast.files import write_whole

if TYPE_CHECKING:
    from wavecast import Estimate
    from wavecast.regression.end_to_end import RunModel
    from wavecast.regression.extrapolation import ScalingModel

FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="Predict a whole run from past runs: a log, a table, a store (file or URL), or "
        '"runs" for your own store.',
    ),
]
MethodOption = Annotated[
    str,
    typer.Option(
        "--method",
        help="The least-squares fit: ordinary, relative, non-negative, relative non-negative or "
        "proportional non-negative.",
    ),
]
DEFAULT_METHOD = "relative non-negative"


def fit_runs(
    source: str, model: str | None, phase: str, method: str, plot: Path | None, as_json: bool
) -> None:
    """Fit an end-to-end model to past runs, and print it."""
    from wavecast.report import records
    from wavecast.report import run_models as report

    if plot is not None and (plot.suffix != ".svg" or not plot.parent.is_dir()):
        raise InvalidInput(f"a plot is saved as FILE.svg in a folder that exists, not {plot}")
    fitted = _end_to_end(source, model, phase, method)
    title = f"{model or 'runs'} from {source}, {phase}"
    if plot is not None:
        write_whole(plot, report.scatter_plot(title, fitted))
    if as_json:
        print_json(records.run_model(fitted))
    else:
        show(report.run_model(title, fitted))


@dataclass(frozen=True)
class RunQuestion:
    """The run to predict. A value of None means the same as in the past runs."""

    batch: int | None
    iterations: int | None
    phase: str
    method: str
    gpus: int | None
    """How many GPUs."""
    gpu: list[str] | None
    """The name of the GPU, as a list of one."""
    inner_modules: int | None


def predict_run(source: str, model: str | None, question: RunQuestion, as_json: bool) -> None:
    """Predict a run from past ones, and print it. A new GPU, GPU count or depth is extrapolated."""
    from wavecast.report import records
    from wavecast.report import run_models as report
    from wavecast.runs.sources import opened_runs

    axes = {"gpus": question.gpus, "power": question.gpu, "inner_modules": question.inner_modules}
    beyond = [name for name, value in axes.items() if value]
    fitted: RunModel | ScalingModel
    if not beyond:
        fitted = _end_to_end(source, model, question.phase, question.method)
        estimate, notes = fitted.predict(question.batch, question.iterations), []
    elif len(beyond) > 1:
        raise InvalidInput(f"extrapolate along one of {', '.join(beyond)} at a time")
    else:
        with opened_runs(source, model, question.phase) as runs:
            fitted = wavecast.Extrapolation(beyond[0], question.phase).fit(runs)
        estimate, notes = _extrapolated(fitted, question), [fitted.reason]
    if as_json:
        print_json(records.forecast(estimate, fitted))
    else:
        title = f"{model or 'runs'} from {source}, {question.phase}"
        show(report.forecast(title, estimate, notes))


def _extrapolated(fitted: ScalingModel, question: RunQuestion) -> Estimate:
    if question.batch is None or question.iterations is None:
        raise InvalidInput("give --batch and --iterations of the run to predict")
    if len(question.gpu or ()) > 1:
        raise InvalidInput("--from predicts one run; give one --gpu")
    return fitted.predict(
        batch=question.batch,
        iterations=question.iterations,
        gpus=question.gpus,
        gpu=question.gpu[0] if question.gpu else None,
        inner_modules=question.inner_modules,
    )


BatchesOption = Annotated[
    str, typer.Option("--batches", help="The batches that you could run, such as 8,16,32.")
]
LengthsOption = Annotated[
    str, typer.Option("--iterations", help="The numbers of iterations, such as 100,200,500.")
]
BudgetOption = Annotated[
    float, typer.Option("--budget", help="GPU-seconds that all runs may take together.")
]
CountsOption = Annotated[
    str, typer.Option("--gpus", help="The numbers of GPUs that you could use.")
]
CostsOption = Annotated[
    str | None,
    typer.Option("--from", help="Past runs to estimate times from (file or store)."),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="The model of these past runs.")
]
StartupOption = Annotated[
    float, typer.Option("--startup", help="Without --from: seconds before the iterations.")
]
IterationOption = Annotated[
    float, typer.Option("--iteration", help="Without --from: fixed seconds of each iteration.")
]
SampleOption = Annotated[
    float, typer.Option("--sample", help="Without --from: seconds that each sample adds to it.")
]
CriterionOption = Annotated[
    str,
    typer.Option(
        "--criterion",
        help="What should become most certain: all coefficients together (D), each coefficient "
        "(A), or the predictions (I).",
    ),
]
RepeatsOption = Annotated[
    int, typer.Option("--repeats", min=1, help="How often one run may be repeated.")
]
MostOption = Annotated[
    int | None, typer.Option("--most", help="The largest number of runs to choose.")
]


@app.command()
def design(
    batches: BatchesOption,
    iterations: LengthsOption,
    budget: BudgetOption,
    gpus: CountsOption = "1",
    source: CostsOption = None,
    model: ModelOption = None,
    startup: StartupOption = 0.0,
    iteration: IterationOption = 0.0,
    sample: SampleOption = 0.0,
    criterion: CriterionOption = "D",
    repeats: RepeatsOption = 1,
    most: MostOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose the runs to make to learn the most within a budget.

    A model that is fitted to these runs is as certain as the budget allows.

    \b
    wavecast design --batches 8,16,32,64 --iterations 100,200,500 --budget 600 \\
        --startup 5 --iteration 0.02 --sample 0.002
    """
    from wavecast.regression import design as designs
    from wavecast.report import records
    from wavecast.report import run_models as report

    if source is not None:
        seconds_of = _seconds_of(_end_to_end(source, model, "training", DEFAULT_METHOD))
    elif iteration or sample:
        seconds_of = designs.linear_seconds(startup, iteration, sample)
    else:
        raise InvalidInput(
            "say how long a run takes: --from past runs, or --iteration and --sample"
        )
    space = designs.configurations(
        _numbers("--batches", batches),
        _numbers("--iterations", iterations),
        seconds_of,
        _numbers("--gpus", gpus),
    )
    chosen = designs.design(space, budget, criterion=criterion, repeats=repeats, most_runs=most)
    if as_json:
        print_json(records.design(chosen))
    else:
        show(report.design(chosen))


def _seconds_of(fitted: RunModel) -> Callable[[int, int], float]:
    return lambda batch, iterations: fitted.predict(batch, iterations).seconds


def _end_to_end(source: str, model: str | None, phase: str, method: str) -> RunModel:
    from wavecast.regression.least_squares import Method
    from wavecast.runs.sources import opened_runs

    if method not in list(Method):
        raise InvalidInput(f'a method is one of {", ".join(Method)}, not "{method}"')
    with opened_runs(source, model, phase) as runs:
        return wavecast.EndToEnd(method, phase).fit(runs)


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise InvalidInput(f'{option} takes whole numbers such as 8,16,32, not "{text}"') from None
