"""The commands of the benchmark suite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import wavecast
from wavecast import suite as models
from wavecast.cli.app import JsonOption, app
from wavecast.cli.measuring import require_gpu
from wavecast.cli.screen import counted, print_json, show, width
from wavecast.errors import InvalidInput, WavecastError
from wavecast.files import write_whole

if TYPE_CHECKING:
    from wavecast.runs.suite_results import SuiteResult, SuiteStep

suite_app = typer.Typer(
    help="The benchmark suite: list it, run it on a GPU, predict it on any.", no_args_is_help=True
)
app.add_typer(suite_app, name="suite")

ModelOption = Annotated[
    list[str] | None, typer.Option("--model", "-m", help="A model of the suite; all if not given.")
]
PrecisionsOption = Annotated[
    list[str] | None, typer.Option("--precision", "-p", help="fp32 and bf16 if not given.")
]
ScaleOption = Annotated[
    list[float] | None,
    typer.Option("--scale", help="Parts of the default batch; 0.25, 0.5 and 1 if not given."),
]
PageOption = Annotated[
    Path | None, typer.Option("--html", help="Write the results as a page of HTML, too.")
]


@suite_app.command(name="list")
def list_(as_json: JsonOption = False) -> None:
    """List the models of the suite."""
    from wavecast.report import suites

    if as_json:
        print_json([asdict(each) for each in models.benchmarks()])
    else:
        show(suites.suite(models.benchmarks(), width()))


@suite_app.command()
def run(
    out: Annotated[Path, typer.Option("--out", "-o", help="The CSV file to fill or continue.")],
    model: ModelOption = None,
    precision: PrecisionsOption = None,
    scale: ScaleOption = None,
    seconds: Annotated[float, typer.Option(help="How long to sample each step.")] = 20.0,
    traces: Annotated[
        Path | None, typer.Option("--traces", help="A folder for the measured traces, too.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Sample rows of too few stable iterations once more.")
    ] = False,
    page: PageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the suite on this machine's GPU; killed and started again, it goes on.

    \b
    wavecast suite run -o suite-h200.csv --html suite-h200.html
    """
    from wavecast.campaigns import suite_runs

    require_gpu()
    from wavecast.frameworks.pytorch.measurement.layers import gpu_id

    device = wavecast.device(gpu_id())
    wanted = _configurations(model, precision, scale)
    failures: list[str] = []

    def again_apart(row: SuiteResult) -> SuiteResult:
        return suite_runs.run_apart(suite_runs.time_again, row, seconds)

    with counted("measuring the suite", len(wanted)) as update:
        found = suite_runs.run(
            wanted,
            out,
            lambda each: suite_runs.run_apart(
                suite_runs.measure_here, each, device, seconds, traces
            ),
            gpu=device.id,
            again=again_apart if again else None,
            progress=lambda now: update(now.done, now.remaining_s),
            failed=lambda each, error: failures.append(
                f"{each.model}, batch {each.batch}, {each.precision}: {error}"
            ),
        )
    _finish(f"the suite on {device.name}, measured", found, page, as_json)
    if failures:
        raise WavecastError("\n".join(("these steps failed; run again to retry:", *failures)))


@suite_app.command(name="show")
def show_(
    results: Annotated[Path, typer.Argument(metavar="FILE", help="What `suite run` wrote.")],
    page: PageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the results in a file of `suite run`, as a table or a page.

    \b
    wavecast suite show suite-h200.csv --html suite-h200.html
    """
    from wavecast.runs.suite_results import read_results

    found = read_results(results)
    gpus = ", ".join(dict.fromkeys(wavecast.device(each.gpu).name for each in found))
    _finish(f"the suite on {gpus}, measured", found, page, as_json)


@suite_app.command()
def predict(
    gpu: Annotated[str, typer.Option("--gpu", "-g", help="The GPU to predict for.")],
    model: ModelOption = None,
    precision: PrecisionsOption = None,
    scale: ScaleOption = None,
    page: PageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict the suite on a GPU you do not have.

    \b
    wavecast suite predict --gpu l4 --precision bf16 --scale 1
    """
    from wavecast.campaigns import suite_runs
    from wavecast.hardware.host_files import find_host

    device = wavecast.device(gpu)
    wanted = _configurations(model, precision, scale)
    issued_by = find_host(None).name
    with counted("predicting the suite", len(wanted)) as update:
        found = []
        for number, each in enumerate(wanted, start=1):
            found.append(suite_runs.predict_there(each, device))
            update(number, 0.0)
    _finish(
        f"the suite on {device.name}, predicted, issued by the {issued_by}", found, page, as_json
    )


def _configurations(
    model: list[str] | None, precision: list[str] | None, scale: list[float] | None
) -> tuple[SuiteStep, ...]:
    from wavecast.campaigns import suite_runs

    for each in precision or ():
        if each not in models.PRECISIONS:
            known = ", ".join(models.PRECISIONS)
            raise InvalidInput(f"unknown precision {each!r}; known: {known}")
    if scale and min(scale) <= 0:
        raise InvalidInput(f"a part of the batch is above 0, not {min(scale):g}")
    return suite_runs.configurations(
        model or (), precision or ("fp32", "bf16"), scale or (0.25, 0.5, 1.0)
    )


def _finish(title: str, found: Sequence[SuiteResult], page: Path | None, as_json: bool) -> None:
    from wavecast.report import suites

    if page is not None:
        write_whole(page, suites.page(title, found))
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        show(suites.results(title, found, width()))
