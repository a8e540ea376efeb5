"""Campaign files: what to measure and to predict, as TOML.

```toml
name = "november"                 # the file's name by default
attempts = 3                      # how often a task may fail

[[predict]]                       # every combination
targets = ["resnet50", "gpt2"]
batches = [8, 16, 32]
precisions = ["bf16"]
gpus = ["l4", "h100-sxm-80gb"]    # ["all"] for all
parallel = ["", "data=8"]         # strategies; one GPU by default

[[layers]]                        # as wavecast collect
kind = "linear"
count = 1000
gpus = ["l4"]                     # measured on each; "cpu" to try it out

[[suite]]                         # as wavecast suite run
models = ["resnet50"]
gpus = ["l4"]

[[runs]]                          # whole runs, as wavecast runs campaign
models = ["alexnet"]
batches = [8, 16]
iterations = [100, 200]
gpus = ["l4"]

[[design]]                        # the whole runs that teach the most, as wavecast design
models = ["alexnet"]
batches = [8, 16, 32, 64]
iterations = [100, 200, 500]
budget = "10min"                  # of GPU time, for each model and GPU
startup = 5                       # seconds, as are the next two
iteration = 0.02
sample = 0.002
gpus = ["l4"]
```
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, product
from pathlib import Path
from typing import Annotated, Any

from wavecast.campaigns import run_grids, suite_runs
from wavecast.campaigns.work import ANYWHERE, CPU, CampaignTask, task
from wavecast.errors import InvalidInput, prefixed
from wavecast.files import toml_table
from wavecast.hardware.devices import device, devices
from wavecast.predictors import mlp
from wavecast.reading import (
    Check,
    listed,
    number,
    read_record,
    read_settings,
    refuse_unknown,
    tables_of,
    text,
    texts,
    time_s,
    whole,
    wholes,
)
from wavecast.runs.regression import design as designs
from wavecast.runs.run import PHASES
from wavecast.suite import PRECISIONS
from wavecast.targets.targets import parse_parallel

ALL = "all"
MOST_TASKS = 1_000_000
_ATTEMPTS = 3


@dataclass(frozen=True)
class Campaign:
    """Many tasks under one name."""

    name: str
    tasks: tuple[CampaignTask, ...]
    file: str
    """The text of its file."""
    attempts: int = _ATTEMPTS
    """How often a task may fail before it is left."""


def read_campaign(path: Path, name: str | None = None) -> Campaign:
    """The campaign of a file. Without a name it has the name in the file, else that of the file."""
    with prefixed(f"{path}: "):
        return make_campaign(read_settings(path), name or path.stem, given=name is not None)


def make_campaign(file: str, name: str, *, given: bool = True) -> Campaign:
    """The campaign that a text in TOML describes; a `given` name replaces the one in the text."""
    table = toml_table(file)
    refuse_unknown(table, ("name", "attempts", *_SECTIONS), "a campaign")
    own = text(table["name"], "name") if "name" in table and not given else name
    tasks: dict[str, CampaignTask] = {}
    for key, kind in _SECTIONS.items():
        for position, part in enumerate(tables_of(table, key), start=1):
            where = f"{key}[{position}]"
            section = read_record(kind, part, "such a section", f"{where}.")
            with prefixed(f"{where}: "):
                tasks |= {task.id: task for task in section.tasks()}
            if len(tasks) > MOST_TASKS:
                raise InvalidInput(f"has more than {MOST_TASKS} tasks; divide it")
    if not tasks:
        raise InvalidInput(f"has no tasks; write some of [[{']], [['.join(_SECTIONS)}]]")
    attempts = whole(table.get("attempts", _ATTEMPTS), "attempts")
    return Campaign(own, tuple(tasks.values()), file, attempts)


def _known(words: Sequence[str]) -> Check:
    def check(value: Any, where: str) -> str:
        word = str(text(value, where))
        if word not in words:
            raise InvalidInput(f"{where} is one of {', '.join(words)}, not {word!r}")
        return word

    return check


def _gpus(value: Any, where: str) -> tuple[str, ...]:
    """The ids of GPUs; all of them for ["all"]."""
    named = texts(value, where)
    if ALL in named:
        return tuple(gpu.id for gpu in devices())
    return tuple(dict.fromkeys(device(name).id for name in named))


def _measuring(value: Any, where: str) -> tuple[str, ...]:
    """The ids of GPUs that measure, or "cpu" to try it out."""
    named = texts(value, where)
    return tuple(dict.fromkeys(CPU if name == CPU else device(name).id for name in named))


def _strategies(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(way, str) for way in value):
        raise InvalidInput(f'{where} must be a list such as ["", "data=8"], not {value!r}')
    for way in value:
        parse_parallel(way)
    return tuple(value)


_precision = _known(PRECISIONS)
_precisions = listed(_precision, "texts in quotes")
_above_0 = number(above=True)
_MeasuringGpus = Annotated[tuple[str, ...], _measuring]
_Seconds = Annotated[float, time_s]


@dataclass(frozen=True, kw_only=True)
class _Predictions:
    """Predictions of every combination of its lists."""

    targets: Annotated[tuple[str, ...], texts]
    gpus: Annotated[tuple[str, ...], _gpus]
    batches: Annotated[tuple[int | None, ...], wholes] = (None,)
    precisions: Annotated[tuple[str | None, ...], _precisions] = (None,)
    parallel: Annotated[tuple[str, ...], _strategies] = ("",)
    host: str | None = None

    def tasks(self) -> Iterator[CampaignTask]:
        for target, batch, precision in product(self.targets, self.batches, self.precisions):
            step = {"target": target, "batch": batch, "precision": precision}
            for gpu, parallel in product(self.gpus, self.parallel):
                question = {**step, "gpu": gpu, "parallel": parallel, "host": self.host}
                yield task("predict", question, ANYWHERE, f"{target}, {batch}, {precision}")


@dataclass(frozen=True, kw_only=True)
class _Layers:
    kind: str
    count: int
    gpus: _MeasuringGpus
    seed: float = 0

    def tasks(self) -> Iterator[CampaignTask]:
        seed = int(self.seed)
        for gpu in self.gpus:
            # A CPU would take minutes for most layers of the sample.
            trial = gpu == CPU
            drawn = mlp.small(self.kind, seed) if trial else mlp.sample(self.kind, seed)
            for index, layer in enumerate(islice(drawn, self.count)):
                named = f"{seed}, small layers" if trial else str(seed)
                sizes = list(layer.features())
                question = {"layer": self.kind, "seed": named, "index": index, "sizes": sizes}
                yield task("layer", question, gpu)


@dataclass(frozen=True, kw_only=True)
class _Suite:
    gpus: _MeasuringGpus
    models: Annotated[tuple[str, ...], texts] = ()
    precisions: Annotated[tuple[str, ...], _precisions] = ("fp32", "bf16")
    scales: Annotated[tuple[float, ...], listed(_above_0, "numbers")] = (0.25, 0.5, 1.0)
    seconds: Annotated[float, _above_0] = 20.0
    iterations: int = 0

    def tasks(self) -> Iterator[CampaignTask]:
        if CPU in self.gpus:
            raise InvalidInput("the suite is measured on GPUs; [[runs]] can be tried out on a CPU")
        steps = suite_runs.configurations(self.models, self.precisions, self.scales)
        limits = {"limit_s": self.seconds, "least": self.iterations}
        for gpu, step in product(self.gpus, steps):
            sizes = {k: v for k, v in asdict(step).items() if k not in ("gpus", "nodes")}
            yield task("suite", {**sizes, **limits}, gpu)


@dataclass(frozen=True, kw_only=True)
class _Runs(ABC):
    """Whole runs of every combination of its lists."""

    models: Annotated[tuple[str, ...], texts]
    batches: Annotated[tuple[int, ...], wholes]
    iterations: Annotated[tuple[int, ...], wholes]
    gpus: _MeasuringGpus
    precision: Annotated[str, _precision] = "fp32"
    phase: Annotated[str, _known(PHASES)] = PHASES[0]
    graph: bool = False
    image: int | None = None

    def tasks(self) -> Iterator[CampaignTask]:
        options = {} if self.image is None else {"image": self.image}
        for gpu, start in product(self.gpus, self.starts()):
            question = {
                **asdict(start),
                "phase": self.phase,
                "graph": self.graph,
                "options": options,
            }
            yield task("run", question, gpu)

    @abstractmethod
    def starts(self) -> Sequence[run_grids.Start]: ...


@dataclass(frozen=True, kw_only=True)
class _Grid(_Runs):
    separate: bool = True

    def starts(self) -> Sequence[run_grids.Start]:
        return run_grids.plan(
            *(self.models, self.batches, self.iterations, ()),
            precision=self.precision,
            separate=self.separate,
        )


@dataclass(frozen=True, kw_only=True)
class _Design(_Runs):
    """The whole runs that teach the most within a budget of GPU time."""

    budget: _Seconds
    startup: _Seconds = 0.0
    iteration: _Seconds = 0.0
    sample: _Seconds = 0.0
    criterion: str = "D"

    def starts(self) -> Sequence[run_grids.Start]:
        seconds_of = designs.linear_seconds(self.startup, self.iteration, self.sample)
        space = designs.configurations(self.batches, self.iterations, seconds_of)
        chosen = designs.design(space, self.budget, criterion=self.criterion)
        return [
            run_grids.Start(model, run.batch, (run.iterations,), self.precision)
            for model in self.models
            for run in chosen.runs
        ]


_Section = _Predictions | _Layers | _Suite | _Grid | _Design
_SECTIONS: Mapping[str, type[_Section]] = {
    "predict": _Predictions,
    "layers": _Layers,
    "suite": _Suite,
    "runs": _Grid,
    "design": _Design,
}
"""The sections of a campaign file, by their names."""
