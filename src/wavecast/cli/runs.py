"""The commands of the run store."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

import wavecast
from wavecast.cli.app import JsonOption, app
from wavecast.cli.screen import advancing, print_json, show, width
from wavecast.errors import InvalidInput, WavecastError
from wavecast.runs.run import Run, record

if TYPE_CHECKING:
    from wavecast.runs.readers.facts import Given
    from wavecast.runs.store.imports import Imported

runs_app = typer.Typer(
    help="Past runs: read them from logs, keep them in a store, take them out again.",
    no_args_is_help=True,
)
app.add_typer(runs_app, name="runs")

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        "-s",
        help="A file for SQLite, or postgresql://USER:PASSWORD@HOST/DATABASE. If not given: "
        "$WAVECAST_RUNS, or a file among the user's data.",
    ),
]
ModelOption = Annotated[str | None, typer.Option("--model", "-m", help="Only of this model.")]
GpuOption = Annotated[
    str | None, typer.Option("--gpu", "-g", help="Only of this GPU, as the runs call it.")
]
PhaseOption = Annotated[str | None, typer.Option("--phase", help='Only "training" or "testing".')]


@runs_app.command()
def add(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Logs, or folders with logs.")
    ],
    store: StoreOption = None,
    format: Annotated[
        str | None, typer.Option("--format", "-f", help="Of the logs; found out if not given.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="What was trained.")] = None,
    batch: Annotated[int | None, typer.Option("--batch", "-b", help="Over all GPUs.")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", "-g", help="On which GPU.")] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", help="On how many.")] = None,
    precision: Annotated[
        str | None, typer.Option("--precision", "-p", help="fp32, tf32, fp16 or bf16.")
    ] = None,
    inner_modules: Annotated[
        int | None, typer.Option("--inner-modules", help="The depth within a family of CNNs.")
    ] = None,
    warm_up: Annotated[
        int | None, typer.Option("--warm-up", help="Iterations to drop; found if not given.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option("--metric", help="Whose times to take, where there are several.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be added, and add nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Add the runs of logs to the store: each once, however often it is added.

    Reads Caffe logs, CSV and JSON tables of runs, TensorBoard events, trainer_state.json,
    Lightning's metrics.csv, MLflow file stores and logs of dllogger. What a log does not say, the
    options do. Killed at any moment and started again, it goes on where it was.

    \b
    wavecast runs add train.log --gpu v100-sxm-32gb
    wavecast runs add mlruns/ --store postgresql://me@host/runs
    """
    from wavecast.runs.readers import find_files, make_given

    given = make_given(
        {
            **{"model": model, "batch": batch, "gpu": gpu, "gpus": gpus, "precision": precision},
            **{"inner_modules": inner_modules, "warm_up": warm_up, "metric": metric},
        }
    )
    files = [file for path in paths for file in find_files(path, format)]
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
    last: Annotated[int, typer.Option("--last", min=1, help="How many of those added last.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List runs of the store, those added last.

    \b
    wavecast runs list --model AlexNet --last 50
    """
    with wavecast.RunStore(store) as opened:
        found = list(opened.runs(model=model, gpu=gpu, phase=phase, last=last))
        there = opened.count(model=model, gpu=gpu, phase=phase)
    if as_json:
        print_json([record(run) for run in found])
        return
    _show(found)
    print(f"{len(found):,} of {_runs(there)} in {opened.name}")


@runs_app.command()
def export(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="FILE.csv or FILE.jsonl.")],
    store: StoreOption = None,
    model: ModelOption = None,
    gpu: GpuOption = None,
    phase: PhaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write runs of the store as a table, which `runs add` reads back exactly.

    \b
    wavecast runs export alexnet.csv --model AlexNet
    """
    with wavecast.RunStore(store) as opened:
        from wavecast.runs.store.export import export as write_table

        count = write_table(opened.runs(model=model, gpu=gpu, phase=phase), out)
    if as_json:
        print_json({"file": str(out), "runs": count, "store": opened.name})
    else:
        print(f"{out} has {_runs(count)} of {opened.name}")


def _add(
    files: list[Path], given: Given, format: str | None, place: str | None, as_json: bool
) -> None:
    """Add file by file; one that is wrong keeps no other from being added."""
    done: list[Imported] = []
    failed: list[str] = []
    told: list[str] = []
    with wavecast.RunStore(place) as store:
        from wavecast.runs.store.imports import add_file

        for file in files:
            try:
                with advancing(f"adding {file.name}") as progress:
                    found = add_file(
                        store, file, given, format=format, told=told.append, progress=progress
                    )
            except InvalidInput as error:
                failed.append(str(error))
            else:
                done.append(found)
                if not as_json:
                    print(_sentence(found))
            if not as_json:
                _warn(told)
                told.clear()
    if as_json:
        print_json(
            {
                **{"store": store.name, "files": [asdict(each) for each in done]},
                **{"warnings": told, "failed": failed},
            }
        )
    else:
        new, runs = sum(each.new for each in done), sum(each.runs for each in done)
        print(f"{new:,} new of {_runs(runs)}, in {store.name}")
    if failed:
        raise WavecastError("; ".join(failed))


def _show_read(files: list[Path], given: Given, format: str | None, as_json: bool) -> None:
    from wavecast.runs.readers import iterate_runs

    told: list[str] = []
    found = [
        run for file in files for run in iterate_runs(file, given, format=format, told=told.append)
    ]
    if as_json:
        print_json({"runs": [record(run) for run in found], "warnings": told})
        return
    _show(found)
    _warn(told)


def _show(found: list[Run]) -> None:
    from wavecast.report import runs

    if found:
        show(runs.runs(found, width()))


def _sentence(found: Imported) -> str:
    before = f", resumed after {found.resumed_at:,}" if 0 < found.resumed_at < found.runs else ""
    return f"{found.file}: {_runs(found.runs)}, {found.new:,} new{before}"


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count:,} runs"


def _warn(told: list[str]) -> None:
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    for doubt in told:
        console.print(f"warning: {doubt}", markup=False, style="yellow")
