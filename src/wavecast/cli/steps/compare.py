"""`wavecast compare`: two steps side by side on the same GPUs, or each of them compiled, too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import wavecast
from wavecast.analysis.comparison import compare as compare_predictions
from wavecast.analysis.comparison import summary_of
from wavecast.cli.app import JsonOption, app
from wavecast.cli.options.predictors import (
    NO_HOST_OPTIONS,
    HostOptions,
    SetupName,
    SetupOption,
    host_options,
    precision_scaler,
)
from wavecast.cli.options.steps import (
    NO_STEP_OPTIONS,
    ParallelOption,
    StepOptions,
    as_compiled,
    gpu_option,
    named_gpus,
    refuse_all,
    step_options,
)
from wavecast.cli.output.pages import HtmlOption, refuse_bad_places, write_page, write_view
from wavecast.cli.output.screen import print_json, show, waiting, width
from wavecast.cli.steps.predicted import exit_if_incomplete
from wavecast.cli.steps.sources import step_source, with_largest
from wavecast.errors import InvalidInput
from wavecast.frameworks.target_files import FORMS
from wavecast.predictors.base import Scaler
from wavecast.report.fields import record
from wavecast.report.results import comparisons as report
from wavecast.report.results.comparisons import (
    SIDE_BY_SIDE,
    StepsOnGpu,
    difference_report,
    side_by_side,
    side_by_side_report,
)
from wavecast.report.results.evaluations import evaluation_view
from wavecast.report.views import text_of
from wavecast.steps.prediction import Prediction
from wavecast.targets.targets import Target, Trait, resolve, strategy_of
from wavecast.traces.step import Trace

BeforeArgument = Annotated[
    str, typer.Argument(metavar="A", help=f"The step to compare with: {FORMS}.")
]
AfterArgument = Annotated[str, typer.Argument(metavar="B", help="The other step, in a form of A.")]
GpusOption = Annotated[list[str], gpu_option("A GPU to compare the steps on; repeat for more.")]
OtherBatchOption = Annotated[
    int | None, typer.Option("--batch-b", help="The batch of B, if it has another than A.")
]
OtherPrecisionOption = Annotated[
    str | None, typer.Option("--precision-b", help="The precision of B, if it has another than A.")
]


@app.command()
@host_options
@step_options(both=True)
def compare(
    before: BeforeArgument,
    after: AfterArgument,
    gpu: GpusOption,
    other_batch: OtherBatchOption = None,
    other_precision: OtherPrecisionOption = None,
    parallel: ParallelOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    step: StepOptions = NO_STEP_OPTIONS,
    issuing: HostOptions = NO_HOST_OPTIONS,
) -> None:
    """Compare two steps: time, memory, and what was added or is gone.

    A and B are saved or measured traces, models of the suite, functions or scripts. Tables show
    which kinds of ops, ops and modules take more or less of the GPU's time. With --compile both,
    steps of torch stand there as written and compiled, beside those of JAX.

    \b
    wavecast compare before.json.gz after.json.gz --gpu l4
    wavecast compare train.py:make_step experiment.py:make_step --gpu a100-sxm-80gb
    wavecast compare "train.py --width 512" "train.py --width 1024" --gpu l4
    wavecast compare resnet50 resnet50 --batch 64 --precision-b bf16 --gpu h100-sxm-80gb
    wavecast compare gpt2 jax:gpt2 --batch 8 --precision bf16 --compile both --gpu h100-sxm-80gb
    """
    refuse_all(gpu, "compare", f"predict {before}")
    refuse_bad_places(html)
    after_step = replace(
        step, batch=other_batch or step.batch, precision=other_precision or step.precision
    )
    asked = [(before, step), (after, after_step)]
    steps = _steps(asked, both=step.compile is False)
    devices = named_gpus(gpu)
    spread = parallel or (None if step.ranks is None else f"data={step.ranks}")
    predicted: list[list[Prediction]] = []
    for target, (text, options) in steps:
        source = step_source(target)
        traces = source.families(devices)
        alone = {"predictor": precision_scaler(target, options.precision)}
        several = {"parallel": strategy_of(spread or "", text, options.options)}
        how: dict[str, Any] = alone if spread is None else several
        how |= issuing.arguments()
        rows_of_step = (wavecast.predict(traces, on, **how) for on in devices)
        predicted.append(with_largest(rows_of_step, source))
    names = [target.name for target, _ in steps]
    show_steps = _show_all if len(steps) > 2 else _show_two
    show_steps(names, predicted, html, as_json)
    exit_if_incomplete([step for row in predicted for step in row])


_Asked = tuple[str, StepOptions]


def _steps(asked: list[_Asked], *, both: bool) -> list[tuple[Target, _Asked]]:
    """The steps to predict; if both ways are asked for, those of torch as written and compiled."""
    steps = []
    for text, options in asked:
        target = options.target(text, fixed=())
        steps.append((target, (text, options)))
        if both and Trait.JAX not in target.traits:
            steps.append((as_compiled(target), (text, options)))
    return steps


def _show_two(
    names: list[str], predicted: list[list[Prediction]], html: Path | None, as_json: bool
) -> None:
    before, after = names
    rows = [compare_predictions(old, new) for old, new in zip(*predicted, strict=True)]
    write_page(html, lambda: difference_report(before, after, rows))
    if as_json:
        print_json(report.COMPARED.record({"a": before, "b": after, "comparisons": rows}))
    else:
        show(report.comparisons(before, after, rows, width()))


def _show_all(
    names: list[str], predicted: list[list[Prediction]], html: Path | None, as_json: bool
) -> None:
    rows = [
        StepsOnGpu(steps[0].device.id, tuple(names), tuple(map(summary_of, steps)))
        for steps in zip(*predicted, strict=True)
    ]
    write_page(html, lambda: side_by_side_report(rows))
    if as_json:
        print_json(SIDE_BY_SIDE.record({"targets": names, "gpus": rows}))
    else:
        show(side_by_side(rows))


# `wavecast evaluate`: predictions between GPUs beside what was measured on them.


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

    refuse_bad_places(html)
    steps = measured_steps([_named(text) for text in traces])
    with waiting(f"comparing {len(steps)} measured steps"):
        errors = evaluate_steps(steps, _scaler(setup))
    view = evaluation_view(errors)
    write_view(html, view)
    if as_json:
        print_json(record(errors))
    else:
        show(text_of(view, width()))


def _named(text: str) -> tuple[str, str, Trace]:
    """The model, the file and the trace of one argument."""
    model, separator, file = text.partition("=")
    if not separator or Path(text).exists():
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
