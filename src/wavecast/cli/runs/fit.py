"""`wavecast collect` and `fit`: models of your own, from layer times or from past runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from wavecast.cli.app import JsonOption, app
from wavecast.cli.output.screen import counting_down, print_json, print_text, telling_stages
from wavecast.cli.runs.run_models import MethodOption, SplitOption, TimeOption, fit_runs
from wavecast.errors import InvalidInput, needing_extra
from wavecast.report import outputs

KINDS = "conv2d, lstm, bmm or linear"
_BOTH = "forward+backward"
PASSES = f"forward, backward or {_BOTH}"
_WIDTH, _EPOCHS = 1024, 80
_LAYERS, _TRIAL_LAYERS = 1000, 20

PhaseOption = Annotated[
    str | None, typer.Option("--phase", help="With --runs: training (the default) or testing.")
]
PassOption = Annotated[
    str | None, typer.Option("--target", help=f"The pass to fit: {PASSES} (the default).")
]
WidthOption = Annotated[
    int | None,
    typer.Option("--width", min=1, help=f"Neurons of each hidden layer; {_WIDTH} by default."),
]
EpochsOption = Annotated[
    int | None, typer.Option("--epochs", min=1, help=f"Passes over the data; {_EPOCHS} by default.")
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help='Fit on "cpu" (the default) or "cuda".')
]


@app.command()
def collect(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"The kind of layer: {KINDS}.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The CSV file to write or continue.")],
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            "-n",
            min=1,
            help=f"How many layers to measure; {_LAYERS} by default, {_TRIAL_LAYERS} on a CPU.",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", help="Seed of the sample; use the same on every GPU.")
    ] = 0,
    device: Annotated[
        str, typer.Option("--device", help='"cuda", or "cpu" to try it out on small layers.')
    ] = "cuda",
    as_json: JsonOption = False,
) -> None:
    """Measure sample layers on this machine's GPU.

    `wavecast fit` fits a network to their times. If collecting is interrupted, start it again:
    it continues where it stopped.

    \b
    wavecast collect linear --count 2000 -o linear-h200.csv
    wavecast collect linear --device cpu -o trial.csv
    """
    from wavecast.campaigns.layer_times import collect as collect_layers
    from wavecast.predictors import mlp

    if device not in ("cuda", "cpu"):
        raise InvalidInput(f'the device is "cuda" or "cpu", not "{device}"')
    with needing_extra("collecting"):
        from wavecast.frameworks.pytorch.measurement.iteration import require_gpu
        from wavecast.frameworks.pytorch.measurement.layers import gpu_id, software, time_layer
    if device == "cuda":
        require_gpu()
    trial = device == "cpu"
    count = count or (_TRIAL_LAYERS if trial else _LAYERS)
    with counting_down(f"measuring {kind} layers", count) as update:
        rows = collect_layers(
            kind,
            # The layers of a trial are others than those of the seed on a GPU: most of those would
            # take a CPU minutes each.
            f"{seed}, small layers" if trial else seed,
            count,
            out,
            lambda layer: time_layer(layer, device),
            layers=mlp.small(kind, seed) if trial else None,
            gpu=gpu_id(device),
            software=software(),
            progress=lambda now: update(now.done, now.remaining_s),
        )
    if as_json:
        print_json(outputs.TimedLayers(kind, str(out), rows))
    else:
        print_text(f"{out} has {rows} of {count} {kind} layers")


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
    phase: PhaseOption = None,
    method: MethodOption = None,
    time: TimeOption = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="With --runs: plot actual against predicted (FILE.svg)."),
    ] = None,
    split: SplitOption = None,
    target: PassOption = None,
    width: WidthOption = None,
    epochs: EpochsOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fit a model to layer times or to past runs.

    Layer times (from wavecast collect) are fitted by one of Habitat's networks; --runs fits the
    time of whole runs.

    \b
    wavecast fit linear-h200.csv linear-t4.csv -o linear.npz
    wavecast predict measured.json.gz --gpu l4 --predictor habitat --model linear.npz
    wavecast fit --runs runs.csv --model alexnet --plot alexnet.svg
    wavecast fit --runs grid.csv --model alexnet --split 16,150 --split 32,200
    """
    if runs is not None:
        if files or out:
            raise InvalidInput("--runs fits past runs: it takes no other files and no --out")
        layers_only = {"target": target, "width": width, "epochs": epochs, "device": device}
        _refuse(layers_only, "is for layer times (FILE...), and --runs fits past runs")
        fit_runs(runs, model, phase, method, time, plot, as_json, split or ())
    elif not files or out is None:
        raise typer.BadParameter("say what to fit: FILE... and --out, or --runs")
    else:
        runs_only: dict[str, object] = {"model": model, "phase": phase, "method": method}
        others = {"plot": plot, "time": time, "split": split}
        _refuse(runs_only | others, "is for past runs (--runs), and FILE... are layer times")
        _fit_layers(
            *(files, out, target or _BOTH, width or _WIDTH, epochs or _EPOCHS, device or "cpu"),
            as_json,
        )


def _refuse(options: Mapping[str, object], why: str) -> None:
    """Refuse options of the other kind of fit."""
    for name, value in options.items():
        if value is not None:
            raise InvalidInput(f"--{name} {why}; leave one of them out")


def _fit_layers(
    files: list[Path],
    out: Path,
    target: str,
    width: int,
    epochs: int,
    device: str,
    as_json: bool,
) -> None:
    from wavecast.campaigns import layer_times
    from wavecast.campaigns.layer_times import read_rows
    from wavecast.predictors.mlp import write_model

    with needing_extra("fitting"):
        from wavecast.frameworks.pytorch.layers.mlp_fit import Recipe
    if device not in ("cuda", "cpu"):
        raise InvalidInput(f'a network is fitted on "cpu" or "cuda", not "{device}"')
    if out.suffix != ".npz" or not out.parent.is_dir():
        raise InvalidInput(f"a model is saved as FILE.npz in a folder that exists, not {out}")
    rows = [row for path in files for row in read_rows(path)]
    with telling_stages() as progress:
        fitted = layer_times.fit(
            rows, target, Recipe.sized(width, epochs), on=device, progress=progress
        )
    card = fitted.card
    write_model(out, fitted.network, card)
    if as_json:
        print_json(outputs.NETWORK_CARD.record(card))
        return
    print_text(
        f"{out}: {card['kind']}, {target}, {card['rows']} layers on {', '.join(card['gpus'])}"
    )
    print_text(f"mean error on layers not used in the fit: {card['configuration_error']} %")
    for gpu, percent in card["left_out"].items():
        print_text(f"mean error on {gpu}, if it is not used in the fit: {percent} %")
    if not card["left_out"]:
        print_text(
            "the error on other GPUs is unknown: all layers are from one GPU; collect on a second"
        )
