"""What compiling a step would gain on each GPU: `wavecast predict --compile both`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import typer

from wavecast.cli.app import INCOMPLETE
from wavecast.cli.compile_options import as_compiled
from wavecast.cli.screen import print_json, show
from wavecast.cli.steps import family_traces
from wavecast.frameworks.targets import Target
from wavecast.hardware.device import Device
from wavecast.planning.choice import comparable
from wavecast.report import compiled as report
from wavecast.report import records
from wavecast.steps.prediction import Prediction


def show_gains(
    target: Target,
    gpus: Sequence[Device],
    predict_on: Callable[..., Prediction],
    as_json: bool,
) -> None:
    """Predict a step as written and compiled, and print both for each GPU."""
    pairs = []
    steps = target, as_compiled(target, compiled=True)
    written, compiled = (family_traces(step, gpus) for step in steps)
    for gpu in gpus:
        pairs.append((predict_on(written, gpu), predict_on(compiled, gpu)))
    if as_json:
        print_json(
            {
                name: records.predictions(step.name, [pair[index] for pair in pairs])
                for index, (name, step) in enumerate(zip(("eager", "compiled"), steps, strict=True))
            }
        )
    else:
        show(report.gains(target.name, pairs))
    if not all(comparable(one) for pair in pairs for one in pair):
        raise typer.Exit(INCOMPLETE)
