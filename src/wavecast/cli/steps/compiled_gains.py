"""What compiling a step would gain on each GPU: `wavecast predict --compile both`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import typer

from wavecast.cli.app import INCOMPLETE
from wavecast.cli.options.steps import as_compiled
from wavecast.cli.output.screen import print_json, show
from wavecast.cli.steps.sources import step_source
from wavecast.hardware.devices import Device
from wavecast.planning.candidates import comparable
from wavecast.report import predictions as report
from wavecast.report.priced_steps import COMPILED, predicted
from wavecast.steps.prediction import Prediction
from wavecast.targets.targets import Target


def show_gains(
    target: Target,
    gpus: Sequence[Device],
    predict_on: Callable[..., Prediction],
    as_json: bool,
) -> None:
    """Predict a step as written and compiled, and print both for each GPU."""
    pairs = []
    steps = target, as_compiled(target)
    written, compiled = (step_source(step).families(gpus) for step in steps)
    for gpu in gpus:
        pairs.append((predict_on(written, gpu), predict_on(compiled, gpu)))
    if as_json:
        named = zip(steps, zip(*pairs, strict=True), strict=True)
        both = [predicted(step.name, rows) for step, rows in named]
        print_json(COMPILED.record({"eager": both[0], "compiled": both[1]}))
    else:
        show(report.gains(target.name, pairs))
    if not all(comparable(one) for pair in pairs for one in pair):
        raise typer.Exit(INCOMPLETE)
