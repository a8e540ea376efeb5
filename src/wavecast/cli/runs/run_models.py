"""`wavecast fit --runs`, `runs predict` and `design`: whole runs, predicted from past ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import wavecast
from wavecast.cli.app import JsonOption, app
from wavecast.cli.options.steps import PrecisionOption
from wavecast.cli.output.pages import refuse_bad_places
from wavecast.cli.output.screen import counting_down, print_json, show
from wavecast.cli.runs.runs import checked_phase, runs_app
from wavecast.errors import InvalidInput, WavecastError, needing_extra
from wavecast.files import write_whole
from wavecast.runs.regression import end_to_end as published

if TYPE_CHECKING:
    from wavecast import Estimate, Run
    from wavecast.campaigns.run_grids import Start
    from wavecast.runs.regression.end_to_end import RunModel, Split, SplitScore
    from wavecast.runs.regression.extrapolation import ScalingModel
    from wavecast.runs.regression.least_squares import Method


MethodOption = Annotated[
    str | None,
    typer.Option(
        "--method",
        help="The least-squares fit: ordinary, relative, non-negative, relative non-negative (the "
        "default) or proportional non-negative.",
    ),
]
TimeOption = Annotated[
    str | None,
    typer.Option(
        "--time",
        help="The time to learn: total (whole runs, with start-up and tests; the default if every "
        "run says it) or iterations (the timed iterations).",
    ),
]
SplitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--split",
        help="Fit the runs up to a batch and a number of iterations (such as 16,150), and judge by "
        'those beyond; repeat for more, or "published" for the three of the paper.',
    ),
]
_DEFAULT_METHOD = "relative non-negative"
_PUBLISHED_METHOD = "ordinary"
_DEFAULT_PHASE = "training"


def fit_runs(
    source: str,
    model: str | None,
    phase: str | None,
    method: str | None,
    time: str | None,
    plot: Path | None,
    as_json: bool,
    split: Sequence[str] = (),
) -> None:
    """Fit an end-to-end model to past runs, and print it beside the fit of the paper."""
    from wavecast.report.results import run_models as report

    if plot is not None and (plot.suffix != ".svg" or not plot.parent.is_dir()):
        raise InvalidInput(f"a plot is saved as FILE.svg in a folder that exists, not {plot}")
    phase = checked_phase(phase) or _DEFAULT_PHASE
    fitted = _end_to_end(source, model, phase, method, time)
    other = _DEFAULT_METHOD if fitted.fit.method == _PUBLISHED_METHOD else _PUBLISHED_METHOD
    both = (fitted, fitted.by_method(other))
    title = f"{model or 'runs'} from {source}, {phase}"
    scores = _split_scores(
        source, model, phase, [model_fit.fit.method for model_fit in both], time, split
    )
    if plot is not None:
        write_whole(plot, report.scatter_plot(title, fitted))
    if as_json:
        done = {"model": fitted, "other_fits": both[1:]}
        print_json(report.FITTED.record(done | ({"splits": scores} if split else {})))
        return
    show(report.run_model(title, both))
    if split:
        beyond = "fitted on small runs, judged by larger ones"
        show("", report.split_scores(beyond, scores, fitted.table.time))


def _split_scores(
    source: str,
    model: str | None,
    phase: str,
    methods: Sequence[Method],
    time: str | None,
    split: Sequence[str],
) -> tuple[SplitScore, ...]:
    """The errors of fits up to each threshold; none if no threshold was given."""
    from wavecast.runs.readers import opened_runs
    from wavecast.runs.regression.end_to_end import judge

    if not split:
        return ()
    with opened_runs(source, model, phase) as runs:
        return judge(runs, read_splits(split), methods, phase=phase, time=time)


def read_splits(texts: Sequence[str]) -> list[Split]:
    """The thresholds that `--split` names."""
    from wavecast.runs.regression.end_to_end import SPLITS, Split

    if "published" in texts:
        if len(texts) > 1:
            raise InvalidInput("--split published has the paper's three thresholds; give no other")
        return list(SPLITS)
    splits = []
    for text in texts:
        pair = numbers("--split", text)
        if len(pair) != 2 or min(pair) < 1:
            raise InvalidInput(
                f'--split takes a batch and a number of iterations, such as 16,150, not "{text}"'
            )
        splits.append(Split(*pair))
    return splits


@dataclass(frozen=True)
class RunQuestion:
    """The run to predict. A value of None means the same as in the past runs."""

    batch: int | None
    iterations: int | None
    gpus: int | None
    """How many GPUs."""
    gpu: str | None
    """The name of the GPU."""
    inner_modules: int | None
    by_law: bool = False
    """Whether a law is chosen even if only the batch is new."""

    @property
    def axes(self) -> dict[str, str]:
        """The options that ask for a run unlike the past ones, by the axis of the extrapolation."""
        options = {
            "gpus": ("--gpus", self.gpus),
            "power": ("--gpu", self.gpu),
            "inner_modules": ("--inner-modules", self.inner_modules),
            "batch": ("--law", self.by_law or None),
        }
        return {axis: option for axis, (option, value) in options.items() if value is not None}

    def axes_beyond(self, runs: Sequence[Run]) -> tuple[str, ...]:
        """The axes along which past runs vary and the question may go beyond them."""
        sizes = {run.batch for run in runs}
        larger = self.batch is not None and len(sizes) > 1 and self.batch > max(sizes)
        return (*self.axes, *(("batch",) if larger and not self.by_law else ()))


@runs_app.command()
def predict(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="The model of the past runs; all runs by default."),
    ] = None,
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help='The past runs: a log, a table, a store (file or URL), or "runs" for your own '
            "store.",
        ),
    ] = "runs",
    batch: Annotated[
        int | None, typer.Option("--batch", "-b", help="The batch of all GPUs together.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option("--iterations", "-n", help="The iterations of the run.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", "-g", help="Another GPU, to extrapolate to.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", help="Another number of GPUs, to extrapolate to.")
    ] = None,
    inner_modules: Annotated[
        int | None, typer.Option("--inner-modules", help="Another depth, to extrapolate to.")
    ] = None,
    by_law: Annotated[
        bool, typer.Option("--law", help="Choose a law even if only the batch is new.")
    ] = False,
    phase: Annotated[
        str | None, typer.Option("--phase", help="training (the default) or testing.")
    ] = None,
    method: MethodOption = None,
    time: TimeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict the time of a whole run from past runs.

    --gpu, --gpus and --inner-modules, alone or together, ask for a run beyond the past ones; the
    law that extrapolates to it is then chosen by how well it does on the largest past runs. A
    batch larger than all past ones is then one more direction.

    \b
    wavecast runs predict alexnet --from runs.csv --batch 64 --iterations 90000
    wavecast runs predict resnet50 --batch 1024 --iterations 50000 --gpus 8
    wavecast runs predict resnet50 --batch 1024 --iterations 50000 --gpus 8 --gpu v100-sxm-32gb
    """
    question = RunQuestion(batch, iterations, gpus, gpu, inner_modules, by_law)
    learned = PastRuns(source, model, checked_phase(phase) or _DEFAULT_PHASE, method, time)
    _predict_run(learned, question, as_json)


@dataclass(frozen=True)
class PastRuns:
    """The past runs to learn from, and how."""

    source: str
    model: str | None
    phase: str
    method: str | None
    time: str | None
    """The time to learn."""


def _predict_run(learned: PastRuns, question: RunQuestion, as_json: bool) -> None:
    """Predict a run from past ones, and print it. A new GPU, GPU count or depth is extrapolated."""
    from wavecast.report.results import run_models as report
    from wavecast.runs.readers import opened_runs

    source, model, phase = learned.source, learned.model, learned.phase
    fitted: RunModel | ScalingModel
    if not question.axes:
        fitted = _end_to_end(source, model, phase, learned.method, learned.time)
        estimate = fitted.predict(question.batch, question.iterations)
        notes = report.time_lines(fitted)
    else:
        _refuse_choices(learned, question)
        with opened_runs(source, model, phase) as past:
            runs = list(past)
        fitted = wavecast.Extrapolation(question.axes_beyond(runs), phase).fit(runs)
        estimate = _extrapolated(fitted, question)
        notes = [fitted.reason, f"time: {report.ITERATIONS}"]
    if as_json:
        print_json(report.forecast_record(estimate, fitted))
    else:
        title = f"{model or 'runs'} from {source}, {phase}"
        show(report.forecast(title, estimate, notes))


def _refuse_choices(learned: PastRuns, question: RunQuestion) -> None:
    option = " and ".join(question.axes.values())
    if learned.method is not None:
        raise InvalidInput(
            f"--method chooses the fit of runs like the past ones; with {option} the law is "
            "chosen by its errors, so leave --method out"
        )
    if learned.time not in (None, "iterations"):
        raise InvalidInput(
            f"with {option} a law of the time of an iteration is chosen; leave --time out"
        )


def _extrapolated(fitted: ScalingModel, question: RunQuestion) -> Estimate:
    if question.batch is None or question.iterations is None:
        raise InvalidInput("give --batch and --iterations of the run to predict")
    return fitted.predict(
        batch=question.batch,
        iterations=question.iterations,
        gpus=question.gpus,
        gpu=question.gpu,
        inner_modules=question.inner_modules,
    )


BatchesOption = Annotated[
    str, typer.Option("--batches", help="The batches that you could run, such as 8,16,32.")
]
LengthsOption = Annotated[
    str, typer.Option("--iterations", help="The numbers of iterations, such as 100,200,500.")
]
BudgetOption = Annotated[
    float, typer.Option("--budget", help="GPU-seconds that all runs may take together.")
]
CountsOption = Annotated[
    str, typer.Option("--gpus", help="The numbers of GPUs that you could use.")
]
CostsOption = Annotated[
    str | None,
    typer.Option("--from", help="Past runs to estimate times from (file or store)."),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="The model of these past runs.")
]
StartupOption = Annotated[
    float | None, typer.Option("--startup", help="Without --from: seconds before the iterations.")
]
IterationOption = Annotated[
    float | None,
    typer.Option("--iteration", help="Without --from: fixed seconds of each iteration."),
]
SampleOption = Annotated[
    float | None,
    typer.Option("--sample", help="Without --from: seconds that each sample adds to it."),
]
CriterionOption = Annotated[
    str,
    typer.Option(
        "--criterion",
        help="What should become most certain: all coefficients together (D), each coefficient "
        "(A), or the predictions (I).",
    ),
]
RepeatsOption = Annotated[
    int, typer.Option("--repeats", min=1, help="How often one run may be repeated.")
]
MostOption = Annotated[
    int | None, typer.Option("--most", help="The largest number of runs to choose.")
]


@app.command()
def design(
    batches: BatchesOption,
    iterations: LengthsOption,
    budget: BudgetOption,
    gpus: CountsOption = "1",
    source: CostsOption = None,
    model: ModelOption = None,
    startup: StartupOption = None,
    iteration: IterationOption = None,
    sample: SampleOption = None,
    criterion: CriterionOption = "D",
    repeats: RepeatsOption = 1,
    most: MostOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose the runs to make to learn the most within a budget.

    A model that is fitted to these runs is as certain as the budget allows.

    \b
    wavecast design --batches 8,16,32,64 --iterations 100,200,500 --budget 600 \\
        --startup 5 --iteration 0.02 --sample 0.002
    """
    from wavecast.report.results import run_models as report
    from wavecast.runs.regression import design as designs

    guessed = {"--startup": startup, "--iteration": iteration, "--sample": sample}
    if source is not None:
        for option, seconds in guessed.items():
            if seconds is not None:
                raise InvalidInput(
                    f"--from learns the times from past runs, so {option} would change nothing; "
                    "leave one of them out"
                )
        seconds_of = _seconds_of(_end_to_end(source, model, _DEFAULT_PHASE, None, None))
    elif model is not None:
        raise InvalidInput("--model names the model of past runs; give them (--from)")
    elif iteration or sample:
        seconds_of = designs.linear_seconds(startup or 0.0, iteration or 0.0, sample or 0.0)
    else:
        raise InvalidInput(
            "say how long a run takes: --from past runs, or --iteration and --sample"
        )
    space = designs.configurations(
        numbers("--batches", batches),
        numbers("--iterations", iterations),
        seconds_of,
        numbers("--gpus", gpus),
    )
    chosen = designs.design(space, budget, criterion=criterion, repeats=repeats, most_runs=most)
    if as_json:
        print_json(chosen)
    else:
        show(report.design(chosen))


def _seconds_of(fitted: RunModel) -> Callable[[int, int], float]:
    return lambda batch, iterations: fitted.predict(batch, iterations).seconds


def _end_to_end(
    source: str, model: str | None, phase: str, method: str | None, time: str | None
) -> RunModel:
    from wavecast.runs.readers import opened_runs
    from wavecast.runs.regression.least_squares import Method

    method = method or _DEFAULT_METHOD
    if method not in list(Method):
        raise InvalidInput(f'a method is one of {", ".join(Method)}, not "{method}"')
    with opened_runs(source, model, phase) as runs:
        return wavecast.EndToEnd(method, phase, time=time).fit(runs)


def numbers(option: str, text: str) -> list[int]:
    """The whole numbers of an option, such as 8,16,32."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise InvalidInput(f'{option} takes whole numbers such as 8,16,32, not "{text}"') from None


# `wavecast runs campaign`: a grid of whole runs, measured here and judged as in the paper.


ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model", "-m", help="A model of the suite; repeat for more. Default: the paper's three."
    ),
]
GridBatchesOption = Annotated[
    str | None, typer.Option("--batches", help="The batches; 8,16,...,64 by default.")
]
GridLengthsOption = Annotated[
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
    batches: GridBatchesOption = None,
    iterations: GridLengthsOption = None,
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
    from wavecast.report.results import run_models as report
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
        thresholds = [run_grids.scaled_split(split_at, share) for split_at in thresholds]
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
