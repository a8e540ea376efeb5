"""`wavecast evaluate`: predictions between GPUs beside what was measured on them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wavecast.cli.app import JsonOption, app
from wavecast.cli.options.predictors import SetupName, SetupOption
from wavecast.cli.output.pages import HtmlOption, refuse_bad_places, write_page
from wavecast.cli.output.screen import print_json, show, waiting, width
from wavecast.cli.steps.sources import step_source
from wavecast.errors import InvalidInput
from wavecast.predictors.base import Scaler
from wavecast.report import evaluations as report
from wavecast.report.fields import record
from wavecast.targets.targets import Trait, resolve
from wavecast.traces.step import Trace

TracesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="[MODEL=]TRACE...",
        help="Measured traces, or torch.profiler files, of the same models from several GPUs. "
        "Traces named alike are of the same model; without a name, those with the same matmuls "
        "and convolutions are.",
    ),
]


@app.command()
def evaluate(
    traces: TracesArgument,
    setup: SetupOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare predictions between your GPUs with what you measured on them.

    Each measured step is taken to the GPU of every other trace of the same model: errors by model,
    GPU and op, beside the ratios of peak FLOPS and of memory bandwidth, and beside the prediction
    from the ops alone. It is the evaluation of the Habitat paper, on your own GPUs.

    \b
    wavecast evaluate resnet50=v100.json.gz resnet50=t4.json.gz gnmt=v100-gnmt.json.gz
    wavecast evaluate a100/*.json.gz h100/*.json.gz --html evaluation.html
    """
    from wavecast.analysis.evaluation import evaluate as evaluate_steps
    from wavecast.analysis.evaluation import measured_steps
    from wavecast.report.evaluations import evaluation_report

    refuse_bad_places(html)
    steps = measured_steps([_named(text) for text in traces])
    with waiting(f"comparing {len(steps)} measured steps"):
        found = evaluate_steps(steps, _scaler(setup))
    write_page(html, lambda: evaluation_report(found))
    if as_json:
        print_json(record(found))
    else:
        show(report.evaluation_text(found, width()))


def _named(text: str) -> tuple[str, str, Trace]:
    """The model, the file and the trace of one argument."""
    model, found, file = text.partition("=")
    if not found or Path(text).exists():
        model, file = "", text
    target = resolve(file)
    if Trait.MEASURED not in target.traits:
        raise InvalidInput(
            f"{file} was not measured, so there is nothing to compare with; give traces from "
            "wavecast measure, or torch.profiler files"
        )
    return model, file, step_source(target).on()


def _scaler(setup: SetupName | None) -> Scaler | None:
    if setup is None:
        return None
    from wavecast.predictors.habitat import published_setup

    return published_setup(setup).scaler()
