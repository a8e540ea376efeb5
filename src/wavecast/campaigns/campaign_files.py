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

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

from wavecast.campaigns import run_grids, suite_runs
from wavecast.campaigns.work import ANYWHERE, CPU, CampaignTask, task
from wavecast.errors import InvalidInput, prefixed
from wavecast.files import toml_table
from wavecast.hardware.devices import device, devices
from wavecast.hardware.fact_files import refuse_unknown
from wavecast.planning.cost import (
    number,
    text,
    texts,
    time_s,
    whole,
    wholes,
    yes_or_no,
)
from wavecast.predictors import mlp
from wavecast.reading import read_settings
from wavecast.runs.regression import design as designs
from wavecast.runs.run import PHASES
from wavecast.runs.suite_results import SuiteStep
from wavecast.suite import PRECISIONS
from wavecast.targets.targets import parse_parallel

ALL = "all"
MOST_TASKS = 1_000_000
_ATTEMPTS = 3

Values = Mapping[str, Any]
Check = Callable[[Any, str], Any]


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
    """The campaign of a file.

    Args:
        path: the file.
        name: its name. None for the name in the file, else that of the file.

    Raises:
        InvalidInput: the file cannot be read, or a value is wrong; names the file and the key.
    """
    with prefixed(f"{path}: "):
        return make_campaign(read_settings(path), name or path.stem, given=name is not None)


def make_campaign(file: str, name: str, *, given: bool = True) -> Campaign:
    """The campaign that a text in TOML describes.

    Args:
        file: the text.
        name: its name.
        given: whether this name counts more than the one in the text.

    Raises:
        InvalidInput: a value is wrong; names the key.
    """
    table = toml_table(file)
    refuse_unknown(table, ("name", "attempts", *_SECTIONS), "a campaign")
    own = text(table["name"], "name") if "name" in table and not given else name
    found: dict[str, CampaignTask] = {}
    for key, section in _SECTIONS.items():
        listed = table.get(key, [])
        if not isinstance(listed, list):
            raise InvalidInput(f"{key} must be a list, written [[{key}]]")
        for position, part in enumerate(listed, start=1):
            with prefixed(f"{key}[{position}]"):
                found |= {one.id: one for one in section.tasks(part)}
            if len(found) > MOST_TASKS:
                raise InvalidInput(f"has more than {MOST_TASKS} tasks; divide it")
    if not found:
        raise InvalidInput(f"has no tasks; write some of [[{']], [['.join(_SECTIONS)}]]")
    attempts = whole(table.get("attempts", _ATTEMPTS), "attempts")
    return Campaign(own, tuple(found.values()), file, attempts)


@dataclass(frozen=True)
class _Section:
    """What a section of the file may say, and the tasks that follow."""

    needed: Mapping[str, Check]
    more: Mapping[str, Check]
    make: Callable[[Values], Iterable[CampaignTask]]

    def tasks(self, table: Any) -> Iterator[CampaignTask]:
        """The tasks of one such section."""
        if not isinstance(table, dict):
            raise InvalidInput(" must be a table")
        checks = {**self.needed, **self.more}
        refuse_unknown(table, checks, "such a section", ".")
        for key in self.needed:
            if key not in table:
                raise InvalidInput(f".{key} is missing")
        values = {key: checks[key](value, f".{key}") for key, value in table.items()}
        with prefixed(": "):
            yield from self.make(values)


def _precisions(value: Any, where: str) -> tuple[str, ...]:
    return tuple(_known(one, PRECISIONS, where) for one in texts(value, where))


def _precision(value: Any, where: str) -> str:
    return _known(text(value, where), PRECISIONS, where)


def _phase(value: Any, where: str) -> str:
    return _known(text(value, where), PHASES, where)


def _known(word: str, words: Iterable[str], where: str) -> str:
    if word not in words:
        raise InvalidInput(f"{where} is one of {', '.join(words)}, not {word!r}")
    return word


def _gpus(value: Any, where: str) -> tuple[str, ...]:
    """The ids of GPUs; all of them for ["all"]."""
    named = texts(value, where)
    if ALL in named:
        return tuple(one.id for one in devices())
    return tuple(dict.fromkeys(device(name).id for name in named))


def _measuring(value: Any, where: str) -> tuple[str, ...]:
    """The ids of GPUs that measure, or "cpu"."""
    named = texts(value, where)
    return tuple(dict.fromkeys(CPU if one == CPU else device(one).id for one in named))


def _scales(value: Any, where: str) -> tuple[float, ...]:
    if not isinstance(value, list) or not value:
        raise InvalidInput(f"{where} must be a list of numbers, not {value!r}")
    return tuple(number(above=True)(one, where) for one in value)


def _strategies(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InvalidInput(f'{where} must be a list such as ["", "data=8"], not {value!r}')
    for one in value:
        parse_parallel(one)
    return tuple(value)


def _predictions(given: Values) -> Iterator[CampaignTask]:
    steps = product(
        given["targets"], given.get("batches", (None,)), given.get("precisions", (None,))
    )
    for target, batch, precision in steps:
        step = {"target": target, "batch": batch, "precision": precision}
        for gpu, parallel in product(given["gpus"], given.get("parallel", ("",))):
            asked = {**step, "gpu": gpu, "parallel": parallel, "host": given.get("host")}
            yield task("predict", asked, ANYWHERE, f"{target}, {batch}, {precision}")


def _layers(given: Values) -> Iterator[CampaignTask]:
    kind, seed = given["kind"], int(given.get("seed", 0))
    for gpu in given["gpus"]:
        # A CPU would take minutes for most layers of the sample.
        trial = gpu == CPU
        drawn = mlp.small(kind, seed) if trial else mlp.sample(kind, seed)
        for index, layer in enumerate(islice(drawn, given["count"])):
            named = f"{seed}, small layers" if trial else str(seed)
            sizes = list(layer.features())
            asked = {"layer": kind, "seed": named, "index": index, "sizes": sizes}
            yield task("layer", asked, gpu)


def _suite(given: Values) -> Iterator[CampaignTask]:
    if CPU in given["gpus"]:
        raise InvalidInput("the suite is measured on GPUs; [[runs]] can be tried out on a CPU")
    steps = suite_runs.configurations(
        given.get("models", ()),
        given.get("precisions", ("fp32", "bf16")),
        given.get("scales", (0.25, 0.5, 1.0)),
    )
    limits = {"limit_s": given.get("seconds", 20.0), "least": given.get("iterations", 0)}
    for gpu, step in product(given["gpus"], steps):
        yield task("suite", {**_step(step), **limits}, gpu)


def _step(step: SuiteStep) -> dict[str, Any]:
    return {name: value for name, value in asdict(step).items() if name not in ("gpus", "nodes")}


def _whole_runs(given: Values) -> Iterator[CampaignTask]:
    starts = run_grids.plan(
        given["models"],
        given["batches"],
        given["iterations"],
        (),
        precision=given.get("precision", "fp32"),
        separate=given.get("separate", True),
    )
    yield from _starts(starts, given)


def _designed(given: Values) -> Iterator[CampaignTask]:
    seconds_of = designs.linear_seconds(
        given.get("startup", 0.0), given.get("iteration", 0.0), given.get("sample", 0.0)
    )
    space = designs.configurations(given["batches"], given["iterations"], seconds_of)
    chosen = designs.design(space, given["budget"], criterion=given.get("criterion", "D"))
    precision = given.get("precision", "fp32")
    starts = [
        run_grids.Start(model, one.batch, (one.iterations,), precision)
        for model in given["models"]
        for one in chosen.runs
    ]
    yield from _starts(starts, given)


def _starts(starts: Iterable[run_grids.Start], given: Values) -> Iterator[CampaignTask]:
    options = {key: given[key] for key in ("image",) if key in given}
    for gpu, start in product(given["gpus"], starts):
        asked = {
            **asdict(start),
            "phase": given.get("phase", PHASES[0]),
            "graph": given.get("graph", False),
            "options": options,
        }
        yield task("run", asked, gpu)


_OF_RUNS: Mapping[str, Check] = {
    "precision": _precision,
    "phase": _phase,
    "graph": yes_or_no,
    "image": whole,
}
_GRID: Mapping[str, Check] = {
    "models": texts,
    "batches": wholes,
    "iterations": wholes,
    "gpus": _measuring,
}
_SECTIONS: Mapping[str, _Section] = {
    "predict": _Section(
        {"targets": texts, "gpus": _gpus},
        {"batches": wholes, "precisions": _precisions, "parallel": _strategies, "host": text},
        _predictions,
    ),
    "layers": _Section(
        {"kind": text, "count": whole, "gpus": _measuring}, {"seed": number()}, _layers
    ),
    "suite": _Section(
        {"gpus": _measuring},
        {
            "models": texts,
            "precisions": _precisions,
            "scales": _scales,
            "seconds": number(above=True),
            "iterations": whole,
        },
        _suite,
    ),
    "runs": _Section(_GRID, {**_OF_RUNS, "separate": yes_or_no}, _whole_runs),
    "design": _Section(
        {**_GRID, "budget": time_s},
        {**_OF_RUNS, "startup": time_s, "iteration": time_s, "sample": time_s, "criterion": text},
        _designed,
    ),
}
"""The sections of a campaign file, by their names."""
