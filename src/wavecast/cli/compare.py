"""`wavecast compare`: two steps side by side on the same GPUs."""

from __future__ import annotations

from typing import Annotated

import typer

import wavecast
from wavecast.cli.app import BatchOption, JsonOption, PrecisionOption, app, gpu_names
from wavecast.cli.assumptions import AssumeOption, assuming
from wavecast.cli.predict import GraphOption, HostOption, exit_if_incomplete
from wavecast.cli.predictor_choice import precision_scaler
from wavecast.cli.screen import print_json, show, width
from wavecast.cli.steps import family_traces, named_gpus, refuse_all
from wavecast.frameworks.targets import FORMS, Target, resolve
from wavecast.report import comparisons as report
from wavecast.steps.comparison import StepComparison
from wavecast.steps.comparison import compare as compare_predictions
from wavecast.steps.prediction import Prediction

BeforeArgument = Annotated[
    str, typer.Argument(metavar="A", help=f"The step to compare with: {FORMS}.")
]
AfterArgument = Annotated[str, typer.Argument(metavar="B", help="The other step, in a form of A.")]
GpusOption = Annotated[
    list[str],
    typer.Option(
        "--gpu",
        "-g",
        autocompletion=gpu_names,
        help="A GPU to compare the steps on; repeat for more.",
    ),
]
OtherBatchOption = Annotated[
    int | None, typer.Option("--batch-b", help="The batch of B, if it has another than A.")
]
OtherPrecisionOption = Annotated[
    str | None, typer.Option("--precision-b", help="The precision of B, if it has another than A.")
]


@app.command()
def compare(
    before: BeforeArgument,
    after: AfterArgument,
    gpu: GpusOption,
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    other_batch: OtherBatchOption = None,
    other_precision: OtherPrecisionOption = None,
    host: HostOption = None,
    cuda_graph: GraphOption = False,
    assume: AssumeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two steps: time, memory, and what was added or is gone.

    A and B are saved or measured traces, models of the suite, or functions. Tables show which
    kinds of ops, ops and modules take more or less of the GPU's time.

    \b
    wavecast compare before.json.gz after.json.gz --gpu l4
    wavecast compare train.py:make_step experiment.py:make_step --gpu a100-sxm-80gb
    wavecast compare resnet50 resnet50 --batch 64 --precision-b bf16 --gpu h100-sxm-80gb
    """
    refuse_all(gpu, "compare", f"predict {before}")
    of_after = other_batch or batch, other_precision or precision
    steps = [
        _step(before, batch, precision, assume),
        _step(after, *of_after, assume),
    ]
    devices = named_gpus(gpu)
    predicted: list[list[Prediction]] = []
    for step, wanted in zip(steps, (precision, of_after[1]), strict=True):
        traces, scaler = family_traces(step, devices), precision_scaler(step, wanted)
        predicted.append(
            [
                wavecast.predict(traces, on, predictor=scaler, host=host, graphed=cuda_graph)
                for on in devices
            ]
        )
    rows = [compare_predictions(old, new) for old, new in zip(*predicted, strict=True)]
    _print(steps, rows, as_json)
    exit_if_incomplete([step for row in predicted for step in row])


def _step(text: str, batch: int | None, precision: str | None, assume: list[str] | None) -> Target:
    return assuming(resolve(text, batch, precision), assume)


def _print(steps: list[Target], rows: list[StepComparison], as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "a": steps[0].name,
                "b": steps[1].name,
                "comparisons": [report.comparison_record(row) for row in rows],
            }
        )
    else:
        show(report.comparisons(steps[0].name, steps[1].name, rows, width()))
