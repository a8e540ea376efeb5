"""`wavecast suite`: the benchmark suite, listed, measured, predicted and trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import wavecast
from wavecast import suite as models
from wavecast.cli.app import Commands, JsonOption, app
from wavecast.cli.options.groups import option_group
from wavecast.cli.output.pages import refuse_bad_places, write_page
from wavecast.cli.output.screen import counting_down, print_json, print_text, show, width
from wavecast.cli.steps.sources import require_gpu
from wavecast.errors import InvalidInput, UnknownName, WavecastError, needing_extra
from wavecast.files import write_whole
from wavecast.report.results import suites as report

if TYPE_CHECKING:
    from wavecast.frameworks.pytorch.measurement.data_parallel import Machines
    from wavecast.runs.suite_results import SuiteResult, SuiteStep
    from wavecast.suite.demonstrations import Demonstration, SmallTraining, TrainingToQuality
    from wavecast.traces.step import Trace


# `wavecast suite run --gpus`: the suite measured on several GPUs, each with its own batch.


@dataclass(frozen=True)
class SpreadOptions:
    """On how many GPUs a step runs, and where."""

    gpus: int | None = None
    nodes: int = 1
    node_rank: int = 0
    rendezvous: str | None = None
    device: str = "cuda"


spread_options = option_group(
    "spread",
    SpreadOptions,
    {
        "gpus": "Measure on 1, 2, 4 ... up to so many GPUs, each with its own batch (torchrun).",
        "nodes": "Measure on so many machines; --gpus counts the GPUs of all of them.",
        "node_rank": "Which machine this is, from 0 on: start the command on each of them.",
        "rendezvous": "HOST:PORT of machine 0, where the machines meet.",
        "device": '"cuda", or "cpu" to try it out with processes of this CPU (gloo).',
    },
    "Several GPUs",
)


def refuse_alone(spread: SpreadOptions) -> None:
    """Refuse options of several GPUs without their number."""
    given = {"--nodes": spread.nodes != 1, "--node-rank": spread.node_rank != 0}
    given |= {"--rendezvous": spread.rendezvous is not None, "--device": spread.device != "cuda"}
    for option, is_given in given.items():
        if is_given and spread.gpus is None:
            raise InvalidInput(f"{option} is for several GPUs; say how many (--gpus)")


def run_spread(
    steps: Sequence[SuiteStep],
    out: Path,
    spread: SpreadOptions,
    seconds: float,
    iterations: int,
    failures: list[str],
) -> tuple[str, tuple[SuiteResult, ...]]:
    """Measure steps on several GPUs.

    Returns:
        The name of the machine's GPU, and all rows of the file; none on machines that only help.
    """
    from wavecast.campaigns import suite_runs
    from wavecast.runs.suite_results import gpu_name

    assert spread.gpus is not None
    gpu, machines = _checked(spread)
    every = suite_runs.spread_over(steps, spread.gpus, spread.nodes)
    measure = partial(
        suite_runs.measure_spread,
        gpu=gpu,
        machines=machines,
        device=spread.device,
        limit_s=seconds,
        iterations=iterations,
    )
    if spread.node_rank:
        for step in every:
            measure(step)
        print_text(f"machine {spread.node_rank} of {spread.nodes} is done; machine 0 has the rows")
        return gpu_name(gpu), ()

    def measure_first(step: SuiteStep) -> SuiteResult:
        result = measure(step)
        assert result is not None  # machine 0 has the times
        return result

    with counting_down("measuring the suite", len(every)) as update:
        results = suite_runs.run(
            every,
            out,
            measure_first,
            gpu=gpu,
            progress=lambda now: update(now.done, now.remaining_s),
            failed=lambda step, error: failures.append(
                f"{step.model}, batch {step.batch}, {step.precision}, {step.gpus} GPUs: {error}"
            ),
        )
    return gpu_name(gpu), results


def _checked(spread: SpreadOptions) -> tuple[str, Machines]:
    """The id of the GPU, and the machines; refuses what does not go together."""
    with needing_extra("measuring"):
        from wavecast.frameworks.pytorch.measurement.data_parallel import Machines
        from wavecast.frameworks.pytorch.measurement.iteration import require_gpu
        from wavecast.frameworks.pytorch.measurement.layers import gpu_count, gpu_id
    gpus, nodes = spread.gpus or 1, spread.nodes
    if spread.device not in ("cuda", "cpu"):
        raise InvalidInput(f'the device is "cuda" or "cpu", not "{spread.device}"')
    if gpus < 1 or nodes < 1:
        raise InvalidInput("--gpus and --nodes are at least 1")
    if not 0 <= spread.node_rank < nodes:
        raise InvalidInput(f"--node-rank is from 0 to {nodes - 1}, not {spread.node_rank}")
    meeting = spread.rendezvous or ""
    host, _, port = meeting.rpartition(":")
    if nodes > 1 and not (host and port.isdigit()):
        raise InvalidInput("several machines need --rendezvous HOST:PORT, the address of machine 0")
    if spread.device == "cuda":
        require_gpu()
        if gpus // nodes > (here := gpu_count()):
            raise InvalidInput(f"this machine has {here} GPUs, and {gpus // nodes} are needed")
    return gpu_id(spread.device), Machines(gpus, nodes, spread.node_rank, meeting)


suite_app = Commands(
    help="List, measure, predict or train the benchmark suite.",
    no_args_is_help=True,
)
app.add_typer(suite_app, name="suite")

ModelOption = Annotated[
    list[str] | None,
    typer.Option("--model", "-m", help="A model of the suite; repeat for more. Default: all."),
]
PrecisionsOption = Annotated[
    list[str] | None,
    typer.Option("--precision", "-p", help="A precision; repeat for more. Default: fp32, bf16."),
]
ScaleOption = Annotated[
    list[float] | None,
    typer.Option(
        "--scale", help="A share of the default batch; repeat for more. Default: 0.25, 0.5, 1."
    ),
]
IterationsOption = Annotated[
    int,
    typer.Option(help="Measure at least so many iterations of each step; TBD: hundreds.", min=0),
]
AgainOption = Annotated[
    bool,
    typer.Option("--again", help="Measure steps once more that did not settle, or not for long."),
]
ONE_GPU = SpreadOptions()
PageOption = Annotated[
    Path | None, typer.Option("--html", help="Also write the results as a page of HTML.")
]


@suite_app.command(name="list")
def list_(as_json: JsonOption = False) -> None:
    """List the models of the suite."""
    if as_json:
        print_json(models.benchmarks())
    else:
        show(report.suite(models.benchmarks(), width()))


@suite_app.command()
@spread_options
def run(
    out: Annotated[Path, typer.Option("--out", "-o", help="The CSV file to write or continue.")],
    model: ModelOption = None,
    precision: PrecisionsOption = None,
    scale: ScaleOption = None,
    seconds: Annotated[float, typer.Option(help="How long to measure each step.")] = 20.0,
    iterations: IterationsOption = 0,
    traces: Annotated[
        Path | None, typer.Option("--traces", help="A folder for the measured traces.")
    ] = None,
    again: AgainOption = False,
    page: PageOption = None,
    spread: SpreadOptions = ONE_GPU,
    as_json: JsonOption = False,
) -> None:
    """Measure the suite on this machine's GPU, or on several GPUs.

    If it is interrupted, start it again: it continues where it stopped.

    \b
    wavecast suite run -o suite-h200.csv --html suite-h200.html
    wavecast suite run -o faster.csv --model faster-rcnn --iterations 3000
    wavecast suite run -o scaling.csv --model resnet50 --precision fp32 --gpus 4
    """
    from wavecast.campaigns import suite_runs

    refuse_alone(spread)
    refuse_bad_places(out, page)
    if spread.gpus is not None:
        _run_on_several(
            _steps(model, precision, scale), out, spread, (seconds, iterations), page, as_json
        )
        return
    require_gpu()
    from wavecast.frameworks.pytorch.measurement.layers import gpu_id

    gpu = wavecast.device(gpu_id())
    steps = _steps(model, precision, scale)
    failures: list[str] = []

    def measure_apart(step: SuiteStep) -> SuiteResult:
        return suite_runs.run_apart(suite_runs.measure_here, step, gpu, seconds, traces, iterations)

    def measure_again_apart(row: SuiteResult) -> SuiteResult:
        return suite_runs.run_apart(suite_runs.time_again, row, seconds, iterations)

    with counting_down("measuring the suite", len(steps)) as update:
        results = suite_runs.run(
            steps,
            out,
            measure_apart,
            gpu=gpu.id,
            again=measure_again_apart if again else None,
            progress=lambda now: update(now.done, now.remaining_s),
            failed=lambda step, error: failures.append(
                f"{step.model}, batch {step.batch}, {step.precision}: {error}"
            ),
        )
    _finish(f"the suite on {gpu.name}, measured", results, page, as_json)
    _refuse_failed(failures)


def _run_on_several(
    steps: tuple[SuiteStep, ...],
    out: Path,
    spread: SpreadOptions,
    limits: tuple[float, int],
    page: Path | None,
    as_json: bool,
) -> None:
    failures: list[str] = []
    name, results = run_spread(steps, out, spread, *limits, failures)
    if results:
        _finish(f"the suite on {name}, measured", results, page, as_json)
    _refuse_failed(failures)


def _refuse_failed(failures: Sequence[str]) -> None:
    if failures:
        raise WavecastError("\n".join(("these steps failed; run again to retry:", *failures)))


@suite_app.command(name="show")
def show_(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `suite run` wrote.")],
    page: PageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the results of `suite run` as a table or a page.

    \b
    wavecast suite show suite-h200.csv --html suite-h200.html
    """
    from wavecast.runs.suite_results import gpu_name, read_results

    results = read_results(path)
    gpus = ", ".join(dict.fromkeys(gpu_name(row.gpu) for row in results))
    _finish(f"the suite on {gpus}, measured", results, page, as_json)


@suite_app.command()
def observe(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Files that `suite run` or `suite predict` wrote."),
    ],
    traces: Annotated[
        Path | None,
        typer.Option("--traces", help="The folder of `suite run --traces`, for observation 8."),
    ] = None,
    page: PageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say which of TBD's twelve observations hold in your results, with figures 4 to 9.

    Give results of two GPUs for observation 9, and of several GPUs for observation 12.

    \b
    wavecast suite observe suite-h200.csv --traces traces/ --html suites.html
    wavecast suite observe p4000.csv titan-xp.csv
    """
    from wavecast.runs.suite_results import gpu_name, observe_all, read_results

    refuse_bad_places(page)
    rows = [row for path in paths for row in read_results(path)]
    gpus = list(dict.fromkeys(row.gpu for row in rows))
    observations = observe_all(rows, _traces(traces))
    title = f"TBD's observations on {', '.join(gpu_name(gpu) for gpu in gpus)}"
    write_page(page, lambda: report.observation_report(title, observations, rows))
    if as_json:
        print_json(
            report.OBSERVED.record({"gpus": gpus, "observations": observations, "results": rows})
        )
    else:
        show(report.observations(title, observations))


def _traces(folder: Path | None) -> dict[str, Trace] | None:
    """The traces in a folder, by the names of their files."""
    if folder is None:
        return None
    files = sorted(folder.glob("*.json.gz")) if folder.is_dir() else []
    if not files:
        raise InvalidInput(
            f"there are no traces (*.json.gz) in {folder}; name the folder of suite run --traces"
        )
    return {file.name.removesuffix(".json.gz"): wavecast.load_trace(file) for file in files}


@suite_app.command()
def predict(
    gpu: Annotated[str, typer.Option("--gpu", "-g", help="The GPU to predict for.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Also write the results as CSV, for suite observe."),
    ] = None,
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
    from wavecast.hardware.kept_hosts import find_host
    from wavecast.runs.suite_results import write_results

    refuse_bad_places(out)
    device = wavecast.device(gpu)
    steps = _steps(model, precision, scale)
    results = []
    with counting_down("predicting the suite", len(steps)) as update:
        for number, step in enumerate(steps, start=1):
            results.append(suite_runs.predict_there(step, device))
            update(number, 0.0)
    if out is not None:
        write_results(out, results)
    title = f"the suite on {device.name}, predicted; host: {find_host(None, device).name}"
    _finish(title, results, page, as_json)


@suite_app.command()
def train(
    domain: Annotated[
        list[str] | None,
        typer.Option("--domain", "-d", help="A domain; repeat for more. Default: all six."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of weights and data.")] = 1,
    to_quality: Annotated[
        bool,
        typer.Option("--to-quality", help="Stop at the needed quality; predict the time first."),
    ] = False,
    device: Annotated[
        str, typer.Option("--device", help='With --to-quality: "cpu" (the default) or "cuda".')
    ] = "cpu",
    price: Annotated[
        float | None,
        typer.Option(
            "--price",
            min=0.0,
            help="With --to-quality: USD an hour; by default the cheapest offer of the GPU.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train a small model of each domain on the CPU until it has learned its task.

    The tasks are made up, and take seconds each. The command fails if a model does not reach the
    quality that its task asks for. With --to-quality, the time and the cost to that quality are
    predicted from 20 steps, and compared with what they come to.

    \b
    wavecast suite train
    wavecast suite train --domain "machine translation"
    wavecast suite train --to-quality --device cuda
    """
    from wavecast.suite.demonstrations import DEMONSTRATIONS
    from wavecast.suite.demonstrations import train as train_one

    known = [demonstration.domain for demonstration in DEMONSTRATIONS]
    if unknown := sorted(set(domain or ()) - set(known)):
        raise UnknownName(
            f"the suite trains nothing for {', '.join(unknown)}; known domains: {', '.join(known)}"
        )
    chosen = [training for training in DEMONSTRATIONS if training.domain in (domain or known)]
    if to_quality:
        _train_to_quality(chosen, seed, device, price, as_json)
        return
    if device != "cpu" or price is not None:
        raise InvalidInput("--device and --price are for --to-quality")
    trainings = []
    with counting_down("training the suite", len(chosen)) as update:
        for number, demonstration in enumerate(chosen, start=1):
            trainings.append(train_one(demonstration, seed=seed))
            update(number, 0.0)
    if as_json:
        print_json(report.small_trainings().records(trainings))
    else:
        show(report.trainings(trainings, width()))
    _refuse_unlearned(trainings)


def _train_to_quality(
    chosen: Sequence[Demonstration], seed: int, device: str, price: float | None, as_json: bool
) -> None:
    from wavecast.frameworks.pytorch.measurement.layers import gpu_id
    from wavecast.suite.demonstrations import train_to_quality

    if device not in ("cuda", "cpu"):
        raise InvalidInput(f'the device is "cuda" or "cpu", not "{device}"')
    if device == "cuda":
        require_gpu()
        offer = wavecast.price(gpu_id())
        price = offer.usd_per_hour if price is None and offer is not None else price
    trainings = []
    with counting_down("training the suite", len(chosen)) as update:
        for number, demonstration in enumerate(chosen, start=1):
            training = train_to_quality(demonstration, seed=seed, device=device, gpu=gpu_id(device))
            trainings.append(replace(training, usd_per_h=price))
            update(number, 0.0)
    if as_json:
        print_json(report.trainings_to_quality().records(trainings))
    else:
        show(report.to_quality(trainings, width()))
    _refuse_unlearned(trainings)


def _refuse_unlearned(trainings: Sequence[SmallTraining | TrainingToQuality]) -> None:
    if failed := [training.domain for training in trainings if not training.learned]:
        raise WavecastError(f"did not reach the needed quality: {', '.join(failed)}")


def _steps(
    model: list[str] | None, precision: list[str] | None, scale: list[float] | None
) -> tuple[SuiteStep, ...]:
    from wavecast.campaigns import suite_runs

    return suite_runs.configurations(
        model or (), precision or ("fp32", "bf16"), scale or (0.25, 0.5, 1.0)
    )


def _finish(title: str, results: Sequence[SuiteResult], page: Path | None, as_json: bool) -> None:
    if page is not None:
        write_whole(page, report.suite_page(title, results))
    if as_json:
        print_json(results)
    else:
        show(report.suite_results(title, results, width()))
