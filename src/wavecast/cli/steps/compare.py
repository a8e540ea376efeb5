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
from wavecast.cli.output.pages import HtmlOption, refuse_bad_places, write_page
from wavecast.cli.output.screen import print_json, show, width
from wavecast.cli.steps.predicted import exit_if_incomplete
from wavecast.cli.steps.sources import step_source, with_largest
from wavecast.frameworks.target_files import FORMS
from wavecast.report import comparisons as report
from wavecast.report.comparisons import (
    SIDE_BY_SIDE,
    StepsOnGpu,
    difference_report,
    side_by_side,
    side_by_side_report,
)
from wavecast.steps.prediction import Prediction
from wavecast.targets.targets import Target, Trait, strategy_of

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
    wanted = [(before, step), (after, after_step)]
    steps = _steps(wanted, both=step.compile is False)
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


def _steps(wanted: list[_Asked], *, both: bool) -> list[tuple[Target, _Asked]]:
    """The steps to predict; if both ways are asked for, those of torch as written and compiled."""
    found = []
    for text, options in wanted:
        target = options.target(text, fixed=())
        found.append((target, (text, options)))
        if both and Trait.JAX not in target.traits:
            found.append((as_compiled(target), (text, options)))
    return found


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
