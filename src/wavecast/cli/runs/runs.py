"""`wavecast runs`: the store of past runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import wavecast
from wavecast.cli.app import Commands, JsonOption, app
from wavecast.cli.options.steps import PrecisionOption
from wavecast.cli.output.screen import counting_items, print_json, print_text, show, warn, width
from wavecast.errors import InvalidInput, WavecastError
from wavecast.report import outputs
from wavecast.report.results import run_models as report
from wavecast.report.units import runs as runs_in_words
from wavecast.suite import PRECISIONS

if TYPE_CHECKING:
    from wavecast.runs.readers.timing import Given
    from wavecast.runs.run import Imported, Run

runs_app = Commands(
    help="Keep past runs: import logs, list and export them; predict the next run from them.",
    no_args_is_help=True,
)
app.add_typer(runs_app, name="runs")

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        "-s",
        help="A file for SQLite, or postgresql://USER:PASSWORD@HOST/DATABASE. The default is "
        "$WAVECAST_RUNS, else a file in your data folder.",
    ),
]
ModelOption = Annotated[str | None, typer.Option("--model", "-m", help="Only this model.")]
GpuOption = Annotated[
    str | None, typer.Option("--gpu", "-g", help="Only this GPU, by its name in the runs.")
]
PhaseOption = Annotated[str | None, typer.Option("--phase", help='Only "training" or "testing".')]


MetricOption = Annotated[
    str | None,
    typer.Option("--metric", help="The metric whose times to use, if there are several."),
]


def checked_phase(phase: str | None) -> str | None:
    """The phase as given; raises InvalidInput for a word that is none."""
    from wavecast.runs.run import PHASES

    if phase is not None and phase not in PHASES:
        raise InvalidInput(f'a phase is {" or ".join(PHASES)}, not "{phase}"')
    return phase


def _tell(line: str) -> None:
    """Say at once that the store is locked and that the command waits."""
    warn([line])


@runs_app.command()
def add(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Logs, or folders with logs.")
    ],
    store: StoreOption = None,
    format: Annotated[
        str | None,
        typer.Option("--format", "-f", help="The format of the logs; detected by default."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="The model that was trained.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", "-b", help="The batch of all GPUs together.")
    ] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", "-g", help="The GPU.")] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", help="The number of GPUs.")] = None,
    precision: PrecisionOption = None,
    inner_modules: Annotated[
        int | None, typer.Option("--inner-modules", help="The depth within a family of CNNs.")
    ] = None,
    warm_up: Annotated[
        int | None,
        typer.Option("--warm-up", help="Iterations to drop as warm-up; detected by default."),
    ] = None,
    metric: MetricOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be added, and add nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Add the runs of logs to the store. A run that is added again is stored once.

    Reads Caffe logs, CSV and JSON tables of runs, TensorBoard events, trainer_state.json,
    Lightning's metrics.csv, MLflow file stores and dllogger logs. The options supply what a log
    does not say. If an import is interrupted, start it again: it continues where it stopped.

    \b
    wavecast runs add train.log --gpu v100-sxm-32gb
    wavecast runs add mlruns/ --store postgresql://me@host/runs
    """
    from wavecast.runs.readers import find_files, make_given

    if precision is not None and precision not in PRECISIONS:
        raise InvalidInput(f"unknown precision {precision!r}; known: {', '.join(PRECISIONS)}")
    given = make_given(
        {
            **{"model": model, "batch": batch, "gpu": gpu, "gpus": gpus, "precision": precision},
            **{"inner_modules": inner_modules, "warm_up": warm_up, "metric": metric},
        }
    )
    files = [file for path in paths for file in find_files(path, format)]
    if dry_run and store is not None:
        raise InvalidInput("--dry-run adds nothing, so --store would change nothing; leave it out")
    if dry_run:
        _show_read(files, given, format, as_json)
    else:
        _add(files, given, format, store, as_json)


@runs_app.command(name="list")
def list_(
    store: StoreOption = None,
    model: ModelOption = None,
    gpu: GpuOption = None,
    phase: PhaseOption = None,
    last: Annotated[int, typer.Option("--last", min=1, help="How many runs to list.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the runs that were added to the store last.

    \b
    wavecast runs list --model AlexNet --last 50
    """
    checked_phase(phase)
    with wavecast.RunStore(store, read_only=True, told=_tell) as opened:
        runs = list(opened.runs(model=model, gpu=gpu, phase=phase, last=last))
        total = opened.count(model=model, gpu=gpu, phase=phase)
    if as_json:
        print_json(runs)
        return
    show(report.past_runs(runs, width()) if runs else None)
    print_text(f"{len(runs):,} of {runs_in_words(total)} in {opened.name}")


@runs_app.command()
def export(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="FILE.csv or FILE.jsonl.")],
    store: StoreOption = None,
    model: ModelOption = None,
    gpu: GpuOption = None,
    phase: PhaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write runs of the store into a table.

    `wavecast runs add` reads it back exactly.

    \b
    wavecast runs export alexnet.csv --model AlexNet
    """
    from wavecast.runs.store.store import export as write_table
    from wavecast.runs.store.store import refuse_other_suffix

    checked_phase(phase)
    refuse_other_suffix(out)
    with wavecast.RunStore(store, read_only=True, told=_tell) as opened:
        count = write_table(opened.runs(model=model, gpu=gpu, phase=phase), out)
    if as_json:
        print_json(outputs.ExportedRuns(str(out), count, opened.name))
    else:
        print_text(f"{out} has {runs_in_words(count)} of {opened.name}")


def _add(
    files: list[Path], given: Given, format: str | None, place: str | None, as_json: bool
) -> None:
    """Add file by file. A file that cannot be read does not keep the others out."""
    added: list[Imported] = []
    failed: list[str] = []
    warnings: list[str] = []
    with wavecast.RunStore(place, told=_tell) as store:
        from wavecast.runs.store.store import add_file

        for file in files:
            try:
                with counting_items(f"adding {file.name}") as progress:
                    imported = add_file(
                        store, file, given, format=format, told=warnings.append, progress=progress
                    )
            except InvalidInput as error:
                failed.append(str(error))
            else:
                added.append(imported)
                if not as_json:
                    print_text(report.imported_file(imported))
            if not as_json:
                warn(warnings)
                warnings.clear()
    if as_json:
        print_json(outputs.StoredRuns(store.name, added, warnings, failed))
    else:
        print_text(report.imported_files(added, store.name))
    _refuse_files(failed, len(files), as_json)


def _refuse_files(failed: list[str], count: int, as_json: bool) -> None:
    """End with an error if files were refused; many are listed, one per line."""
    if not failed:
        return
    if len(failed) == 1:
        raise WavecastError(failed[0])
    if not as_json:
        warn(failed, "refused")
    raise WavecastError(f"{len(failed)} of {count} files were refused")


def _show_read(files: list[Path], given: Given, format: str | None, as_json: bool) -> None:
    from wavecast.runs.readers import iterate_runs

    warnings: list[str] = []
    failed: list[str] = []
    runs: list[Run] = []
    for file in files:
        try:
            runs += iterate_runs(file, given, format=format, told=warnings.append)
        except InvalidInput as error:
            failed.append(str(error))
    if as_json:
        print_json(outputs.ReadRuns(runs, warnings, failed))
    else:
        show(report.past_runs(runs, width()) if runs else None)
        warn(warnings)
    _refuse_files(failed, len(files), as_json)
