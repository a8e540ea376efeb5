"""Commands that learn from past runs: fit them, predict others, say which to make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import wavecast
from wavecast.cli.app import JsonOption, app
from wavecast.cli.screen import print_json, show
from wavecast.errors import InvalidInput
from wavecast.files import write_whole
from wavecast.runs.run import Run

if TYPE_CHECKING:
    from wavecast import Estimate
    from wavecast.regression.end_to_end import RunModel
    from wavecast.regression.extrapolation import ScalingModel

STORE = "runs"
"""What `--from` says for the user's own store."""

FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        help='Predict a whole run from past ones: a log, a table, a store (file or URL), or "runs" '
        "for your own store.",
    ),
]
MethodOption = Annotated[
    str,
    typer.Option(
        "--method",
        help="ordinary, relative, non-negative, relative non-negative or proportional "
        "non-negative.",
    ),
]
DEFAULT_METHOD = "relative non-negative"


@contextmanager
def opened(source: str, model: str | None, phase: str) -> Iterator[Iterator[Run]]:
    """The runs of a source, of one model if it is named; a store is read as they are asked for."""
    if source == STORE or "://" in source or _is_store(Path(source)):
        with wavecast.RunStore(None if source == STORE else source) as store:
            if model is not None and not store.count(model=model):
                raise InvalidInput(
                    f"{store.name} has no run of {model}; wavecast runs list shows what it has"
                )
            yield store.runs(model=model, phase=phase)
        return
    found = wavecast.read_runs(source)
    names = {run.model for run in found}
    if model is not None and model not in names:
        raise InvalidInput(f"{source} has no run of {model}; it has {', '.join(sorted(names))}")
    yield (run for run in found if model in (None, run.model))


def _is_store(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(15) == b"SQLite format 3"
    except OSError:
        return False


def fit_runs(
    source: str, model: str | None, phase: str, method: str, plot: Path | None, as_json: bool
) -> None:
    """Fit an end-to-end model and show it."""
    from wavecast.report import fits

    if plot is not None and (plot.suffix != ".svg" or not plot.parent.is_dir()):
        raise InvalidInput(f"a plot is saved as FILE.svg in a folder that exists, not {plot}")
    found = _end_to_end(source, model, phase, method)
    title = f"{model or 'runs'} from {source}, {phase}"
    if plot is not None:
        write_whole(plot, fits.scatter(title, found))
    if as_json:
        print_json(fits.run_record(found))
    else:
        show(fits.run_model(title, found))


@dataclass(frozen=True)
class Asked:
    """What is asked about a run; None: as in the past runs."""

    batch: int | None
    iterations: int | None
    phase: str
    method: str
    gpus: int | None
    gpu: list[str] | None
    inner_modules: int | None


def predict_run(source: str, model: str | None, asked: Asked, as_json: bool) -> None:
    """Predict a run from past ones, by the model that what is asked needs."""
    from wavecast.report import fits

    axes = {"gpus": asked.gpus, "power": asked.gpu, "inner_modules": asked.inner_modules}
    axis = [name for name, value in axes.items() if value]
    found: RunModel | ScalingModel
    if not axis:
        found = _end_to_end(source, model, asked.phase, asked.method)
        estimate, notes = found.predict(asked.batch, asked.iterations), []
    elif len(axis) > 1:
        raise InvalidInput(f"extrapolate along one of {', '.join(axis)} at a time")
    else:
        with opened(source, model, asked.phase) as runs:
            found = wavecast.Extrapolation(axis[0], asked.phase).fit(runs)
        estimate, notes = _extrapolated(found, asked), [found.reason]
    if as_json:
        print_json(fits.forecast_record(estimate, found))
    else:
        show(fits.forecast(f"{model or 'runs'} from {source}, {asked.phase}", estimate, notes))


def _extrapolated(found: ScalingModel, asked: Asked) -> Estimate:
    if asked.batch is None or asked.iterations is None:
        raise InvalidInput("say --batch and --iterations of the run to predict")
    if len(asked.gpu or ()) > 1:
        raise InvalidInput("--from predicts one run: give one --gpu")
    return found.predict(
        batch=asked.batch,
        iterations=asked.iterations,
        gpus=asked.gpus,
        gpu=asked.gpu[0] if asked.gpu else None,
        inner_modules=asked.inner_modules,
    )


@app.command()
def design(
    batches: Annotated[str, typer.Option("--batches", help="Batches one could run: 8,16,32.")],
    iterations: Annotated[str, typer.Option("--iterations", help="Likewise: 100,200,500.")],
    budget: Annotated[float, typer.Option("--budget", help="GPU-seconds for all runs.")],
    gpus: Annotated[str, typer.Option("--gpus", help="Numbers of GPUs one could use.")] = "1",
    source: Annotated[
        str | None,
        typer.Option("--from", help="Past runs that tell what a run costs (file or store)."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Of these runs.")] = None,
    startup: Annotated[
        float, typer.Option("--startup", help="Or a guess: seconds before iterations.")
    ] = 0.0,
    iteration: Annotated[
        float, typer.Option("--iteration", help="Seconds an iteration takes whatever the batch.")
    ] = 0.0,
    sample: Annotated[
        float, typer.Option("--sample", help="Seconds it takes for each sample of the batch.")
    ] = 0.0,
    criterion: Annotated[
        str, typer.Option("--criterion", help="D, A (coefficients) or I (predictions).")
    ] = "D",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Of one configuration.")] = 1,
    most: Annotated[int | None, typer.Option("--most", help="Runs in all.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say which runs to make, so that a fit on them is surest for their cost.

    \b
    wavecast design --batches 8,16,32,64 --iterations 100,200,500 --budget 600 \\
        --startup 5 --iteration 0.02 --sample 0.002
    """
    from wavecast.regression.design import configurations
    from wavecast.regression.design import design as choose
    from wavecast.report import fits

    if source is not None:
        fitted = _end_to_end(source, model, "training", DEFAULT_METHOD)

        def seconds_of(batch: int, length: int) -> float:
            return fitted.predict(batch, length).seconds

    elif iteration + sample > 0 and min(startup, iteration, sample) >= 0:

        def seconds_of(batch: int, length: int) -> float:
            return startup + length * (iteration + batch * sample)

    else:
        raise InvalidInput("say what a run costs: --from past runs, or --iteration and --sample")
    space = configurations(
        _numbers("--batches", batches),
        _numbers("--iterations", iterations),
        seconds_of,
        _numbers("--gpus", gpus),
    )
    found = choose(space, budget, criterion=criterion, repeats=repeats, most_runs=most)
    if as_json:
        print_json(fits.design_record(found))
    else:
        show(fits.designed(found))


def _end_to_end(source: str, model: str | None, phase: str, method: str) -> RunModel:
    from wavecast.regression.least_squares import Method

    if method not in list(Method):
        raise InvalidInput(f'a method is one of {", ".join(Method)}, not "{method}"')
    with opened(source, model, phase) as runs:
        return wavecast.EndToEnd(method, phase).fit(runs)


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise InvalidInput(f'{option} takes whole numbers such as 8,16,32, not "{text}"') from None
