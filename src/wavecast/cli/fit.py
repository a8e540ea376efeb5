"""`wavecast collect` and `fit`: models of your own, from layer times or from past runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wavecast.cli.app import JsonOption, app
from wavecast.cli.run_models import DEFAULT_METHOD, MethodOption, fit_runs
from wavecast.cli.screen import counting_down, print_json, telling_stages
from wavecast.errors import InvalidInput, needing_extra

KINDS = "conv2d, lstm, bmm or linear"


@app.command()
def collect(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"The kind of layer: {KINDS}.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The CSV file to write or continue.")],
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, help="How many layers to measure.")
    ] = 1000,
    seed: Annotated[
        int, typer.Option("--seed", help="Seed of the sample; use the same on every GPU.")
    ] = 0,
    device: Annotated[
        str, typer.Option("--device", help='"cuda", or "cpu" to try it out.')
    ] = "cuda",
    as_json: JsonOption = False,
) -> None:
    """Measure sample layers on this machine's GPU.

    `wavecast fit` fits a network to their times. If collecting is interrupted, start it again:
    it continues where it stopped.

    \b
    wavecast collect linear --count 2000 -o linear-h200.csv
    """
    from wavecast.campaigns.layer_times import collect as collect_layers

    if device not in ("cuda", "cpu"):
        raise InvalidInput(f'the device is "cuda" or "cpu", not "{device}"')
    with needing_extra("collecting"):
        from wavecast.frameworks.pytorch.measurement.iteration import require_gpu
        from wavecast.frameworks.pytorch.measurement.layers import gpu_id, software, time_layer
    if device == "cuda":
        require_gpu()
    with counting_down(f"measuring {kind} layers", count) as update:
        rows = collect_layers(
            kind,
            seed,
            count,
            out,
            lambda layer: time_layer(layer, device),
            gpu=gpu_id(device),
            software=software(),
            progress=lambda now: update(now.done, now.remaining_s),
        )
    if as_json:
        print_json({"kind": kind, "file": str(out), "rows": rows})
    else:
        print(f"{out} has {rows} of {count} {kind} layers")


@app.command()
def fit(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE...]", help="Files that wavecast collect wrote."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file for the model (FILE.npz).")
    ] = None,
    runs: Annotated[
        str | None,
        typer.Option(
            "--runs",
            help='Fit past runs instead: a log, a table, a store, or "runs" for your own store.',
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="With --runs: only runs of this model.")
    ] = None,
    phase: Annotated[
        str, typer.Option("--phase", help="With --runs: training or testing.")
    ] = "training",
    method: MethodOption = DEFAULT_METHOD,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="With --runs: plot actual against predicted (FILE.svg)."),
    ] = None,
    target: Annotated[
        str,
        typer.Option("--target", help="The pass to fit: forward, backward or forward+backward."),
    ] = "forward+backward",
    width: Annotated[int, typer.Option(help="Neurons of each hidden layer.")] = 1024,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 80,
    device: Annotated[str, typer.Option("--device", help='Fit on "cpu" or "cuda".')] = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Fit a model to layer times or to past runs.

    Layer times (from wavecast collect) are fitted by one of Habitat's networks; --runs fits the
    time of whole runs.

    \b
    wavecast fit linear-h200.csv linear-t4.csv -o linear.npz
    wavecast predict measured.json.gz --gpu l4 --predictor habitat --model linear.npz
    wavecast fit --runs runs.csv --model alexnet --plot alexnet.svg
    """
    if runs is not None:
        if files or out:
            raise InvalidInput("--runs fits past runs: it takes no other files and no --out")
        fit_runs(runs, model, phase, method, plot, as_json)
    elif not files or out is None:
        raise typer.BadParameter("say what to fit: FILE... and --out, or --runs")
    else:
        _fit_layers(files, out, target, width, epochs, device, as_json)


def _fit_layers(
    files: list[Path],
    out: Path,
    target: str,
    width: int,
    epochs: int,
    device: str,
    as_json: bool,
) -> None:
    from wavecast.campaigns import layer_fits
    from wavecast.campaigns.layer_times import read_rows
    from wavecast.predictors.mlp.file import write_model

    with needing_extra("fitting"):
        from wavecast.frameworks.pytorch.mlp_fit import Recipe
    if out.suffix != ".npz" or not out.parent.is_dir():
        raise InvalidInput(f"a model is saved as FILE.npz in a folder that exists, not {out}")
    rows = [row for path in files for row in read_rows(path)]
    with telling_stages() as progress:
        fitted = layer_fits.fit(
            rows, target, Recipe.sized(width, epochs), on=device, progress=progress
        )
    card = fitted.card
    write_model(out, fitted.network, card)
    if as_json:
        print_json(dict(card))
        return
    print(f"{out}: {card['kind']}, {target}, {card['rows']} layers on {', '.join(card['gpus'])}")
    print(f"mean error on layers not used in the fit: {card['configuration_error']} %")
    for gpu, percent in card["left_out"].items():
        print(f"mean error on {gpu}, if it is not used in the fit: {percent} %")
    if not card["left_out"]:
        print(
            "the error on other GPUs is unknown: all layers are from one GPU; collect on a second"
        )
