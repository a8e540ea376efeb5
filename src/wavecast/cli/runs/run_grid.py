"""`wavecast runs campaign`: a grid of whole runs, measured here and judged as in the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavecast.cli.app import JsonOption
from wavecast.cli.options.steps import PrecisionOption
from wavecast.cli.output.pages import refuse_bad_places
from wavecast.cli.output.screen import counting_down, print_json, show
from wavecast.cli.runs.run_models import SplitOption, numbers, read_splits
from wavecast.cli.runs.runs import checked_phase, runs_app
from wavecast.errors import InvalidInput, WavecastError, needing_extra
from wavecast.runs.regression import end_to_end as published

if TYPE_CHECKING:
    from wavecast import Run
    from wavecast.campaigns.run_grids import Start

ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model", "-m", help="A model of the suite; repeat for more. Default: the paper's three."
    ),
]
BatchesOption = Annotated[
    str | None, typer.Option("--batches", help="The batches; 8,16,...,64 by default.")
]
LengthsOption = Annotated[
    str | None,
    typer.Option("--iterations", help="The numbers of iterations; the paper's 20 by default."),
]
ShareOption = Annotated[
    float,
    typer.Option("--share", help="A share of the paper's iterations, such as 0.1 for a tenth."),
]
GraphOption = Annotated[
    bool,
    typer.Option("--graph", help="Run each iteration as one CUDA graph, so that no host waits."),
]
SeparateOption = Annotated[
    bool, typer.Option("--separate", help="Start every run anew, also those that are not fitted.")
]
DeviceOption = Annotated[
    str, typer.Option("--device", help='"cuda", or "cpu" to try it out with few small runs.')
]
ImageOption = Annotated[
    int | None, typer.Option("--image", min=1, help="Images of other sides, to try it out.")
]


@runs_app.command()
def campaign(
    out: Annotated[Path, typer.Option("--out", "-o", help="The CSV file to write or continue.")],
    model: ModelsOption = None,
    batches: BatchesOption = None,
    iterations: LengthsOption = None,
    share: ShareOption = 1.0,
    precision: PrecisionOption = None,
    phase: Annotated[
        str | None, typer.Option("--phase", help="training (the default) or testing.")
    ] = None,
    split: SplitOption = None,
    graph: GraphOption = False,
    separate: SeparateOption = False,
    device: DeviceOption = "cuda",
    image: ImageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a grid of whole runs, fit the small ones and judge by the large ones.

    Without options it is the experiment of Gianniti, Zhang and Ardagna 2019 (section 4.3 and table
    4): three networks, 160 runs each, fitted on 6, 12 and 20 of them. If it is interrupted, start
    it again: it continues where it stopped. `fit --runs` and `runs add` read the file.

    \b
    wavecast runs campaign -o grid.csv --precision fp32
    wavecast runs campaign -o tenth.csv --share 0.1 --model alexnet
    """
    from wavecast.campaigns import run_grids
    from wavecast.report import run_models as report
    from wavecast.runs.regression.end_to_end import tabulate

    refuse_bad_places(out)
    phase = checked_phase(phase) or "training"
    lengths, thresholds = _lengths(iterations, share, split)
    starts = run_grids.plan(
        model or published.NETS,
        numbers("--batches", batches) if batches else published.BATCHES,
        lengths,
        thresholds,
        precision=precision or "fp32",
        separate=separate,
    )
    failures: list[str] = []
    gpu = _machine(device, graph)
    options = {} if image is None else {"image": image}
    measured = _measured(starts, out, gpu, (device, graph, phase), options, failures)
    scores = [
        score
        for name in dict.fromkeys(start.model for start in starts)
        if (own := [run for run in measured if run.model == name])
        for score in published.judge(own, thresholds, phase=phase)
    ]
    time = tabulate(measured, phase).time
    if as_json:
        done = {"file": str(out), "runs": len(measured), "time": time, "scores": scores}
        print_json(report.CAMPAIGN.record(done | {"failed": failures}))
    else:
        show(report.split_scores(f"{len(measured)} runs of {out} on {gpu}, {phase}", scores, time))
    if failures:
        raise WavecastError("\n".join(("these runs failed; run again to retry:", *failures)))


def _lengths(
    iterations: str | None, share: float, split: Sequence[str] | None
) -> tuple[Sequence[int], Sequence[published.Split]]:
    """The numbers of iterations, and the thresholds; both scaled if they are the paper's."""
    from wavecast.campaigns import run_grids

    if iterations is not None and share != 1:
        raise InvalidInput("--share takes a share of the paper's iterations; leave out one of them")
    given = numbers("--iterations", iterations) if iterations else published.ITERATIONS
    thresholds = read_splits(split or ["published"])
    if not split:
        thresholds = [run_grids.scaled_split(one, share) for one in thresholds]
    return run_grids.scaled(given, share), thresholds


def _measured(
    starts: Sequence[Start],
    out: Path,
    gpu: str,
    how: tuple[str, bool, str],
    options: Mapping[str, Any],
    failures: list[str],
) -> list[Run]:
    """The runs of the campaign's phase and precision, with those that the file had."""
    from wavecast.campaigns import run_grids
    from wavecast.frameworks.pytorch.measurement import whole_runs

    device, graph, phase = how
    with counting_down("measuring runs", len(starts)) as update:
        runs = run_grids.run(
            starts,
            out,
            partial(run_grids.measure_here, device=device, graph=graph, phase=phase, **options),
            gpu=gpu,
            software=whole_runs.software(graph),
            phase=phase,
            progress=lambda now: update(now.done, now.remaining_s),
            failed=lambda start, error: failures.append(
                f"{start.model}, batch {start.batch}: {(str(error) or repr(error)).splitlines()[0]}"
            ),
        )
    precision = starts[0].precision
    return [run for run in runs if run.phase == phase and run.precision == precision]


def _machine(device: str, graph: bool) -> str:
    """The id of the GPU that measures, or "cpu"."""
    with needing_extra("measuring"):
        from wavecast.frameworks.pytorch.measurement.iteration import require_gpu
        from wavecast.frameworks.pytorch.measurement.layers import gpu_id

    if device not in ("cuda", "cpu"):
        raise InvalidInput(f'the device is "cuda" or "cpu", not "{device}"')
    if device == "cpu" and graph:
        raise InvalidInput("--graph is for GPUs: a CPU has no CUDA graphs")
    if device == "cuda":
        require_gpu()
    return gpu_id(device)
