"""Readers of past trainings' logs: one file a format, all with `recognises` and `read`.

Times that cannot be are never taken: a file is refused, or a part of it left out and told, with the
file and the line. Warm-up is dropped; where it ends is found (TBD-4) or given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

from wavecast.errors import InvalidInput, UnknownName
from wavecast.runs.readers import (
    caffe,
    dllogger,
    huggingface,
    lightning,
    mlflow,
    suite_results,
    tables,
    tensorboard,
)
from wavecast.runs.readers.facts import Given
from wavecast.runs.readers.text import Doubts, read_head, warn
from wavecast.runs.run import Run

# In the order in which they are asked.
FORMATS: dict[str, ModuleType] = {
    "tensorboard": tensorboard,
    "mlflow": mlflow,
    "huggingface": huggingface,
    "dllogger": dllogger,
    "caffe": caffe,
    "suite": suite_results,
    "table": tables,
    "lightning": lightning,
}
_TABLES = (".csv", ".json", ".jsonl", ".ndjson")


def read_runs(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    told: Callable[[str], None] = warn,
    **given: Any,
) -> tuple[Run, ...]:
    """The runs that a file, or the files below a folder, tell of.

    Reads Caffe logs, tables (CSV, JSON, JSON Lines), TensorBoard event files, Hugging Face's
    `trainer_state.json`, Lightning's `metrics.csv`, MLflow file stores, logs of NVIDIA's
    DeepLearningExamples (dllogger), and what `wavecast suite run` wrote.

    Args:
        path: the file or folder.
        format: of FORMATS, when it should not be found out.
        told: what is doubtful, with file and line; a `DoubtfulInput` warning if not given.
        given: what the files do not say, or say wrongly: `model`, `batch` (over all GPUs), `gpu`,
            `gpus`, `precision`, `framework`, `inner_modules`; `warm_up` iterations to drop instead
            of finding them; the `metric` whose times are taken, where there are several.

    Raises:
        InvalidInput: a file that cannot be read as what it is; says where and why.
        UnknownName: the format.
    """
    said = make_given(given)
    return tuple(
        run
        for file in find_files(Path(path), format)
        for run in iterate_runs(file, said, format=format, told=told)
    )


def iterate_runs(
    file: Path,
    given: Given = Given(),  # noqa: B008  (frozen)
    *,
    format: str | None = None,
    told: Callable[[str], None] = warn,
) -> Iterator[Run]:
    """The runs of one file, one by one; a table is never in memory as a whole."""
    doubts = Doubts(file, told)
    yield from _reader(file, format).read(file, given, doubts)
    doubts.close()


def make_given(given: dict[str, Any]) -> Given:
    """What the user says, checked.

    Raises:
        InvalidInput: a name or a value that cannot be.
    """
    names = [each.name for each in fields(Given)]
    if unknown := given.keys() - set(names):
        raise InvalidInput(
            f"there is nothing called {', '.join(sorted(unknown))} to give; there are "
            f"{', '.join(names)}"
        )
    said = Given(**given)
    for name in ("batch", "gpus", "inner_modules", "warm_up"):
        value = getattr(said, name)
        if value is not None and (type(value) is not int or value < (name != "warm_up")):
            raise InvalidInput(f"{name} must be a whole number from {int(name != 'warm_up')} on")
    return said


def find_files(path: Path, format: str | None = None) -> list[Path]:
    """The files to read: the file itself, or those below a folder that a reader recognises.

    Raises:
        InvalidInput: there is none.
    """
    if format is not None and format not in FORMATS:
        raise UnknownName(f'there is no format "{format}"; there are {", ".join(FORMATS)}')
    if not path.is_dir():
        if not path.exists():
            raise InvalidInput(f"{path}: there is no such file or folder")
        return [path]
    found = [file for file in _below(path) if format in (None, _recognised(file))]
    found = [file for file in found if _recognised(file) is not None]
    if not found:
        raise InvalidInput(f"{path}: no file below it is of a kind that we read: {_kinds()}")
    return found


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        # A checkpoint's state is of a training that went on; an MLflow run is its meta.yaml.
        folders[:] = sorted(name for name in folders if not name.startswith((".", "checkpoint-")))
        here = [Path(place) / name for name in sorted(names) if not name.startswith(".")]
        runs = [file for file in here if file.name == "meta.yaml" and _recognised(file) == "mlflow"]
        if runs:
            folders.clear()
        yield from runs or (file for file in here if file.is_file())


def _reader(file: Path, format: str | None) -> ModuleType:
    name = format or _recognised(file)
    if name is None and file.suffix.lower() in _TABLES:
        name = "table"  # whose message says which columns are missing
    if name is None:
        raise InvalidInput(f"{file}: is of no kind that we read: {_kinds()}")
    return FORMATS[name]


def _recognised(file: Path) -> str | None:
    head = read_head(file)
    return next((name for name, each in FORMATS.items() if each.recognises(file, head)), None)


def _kinds() -> str:
    return (
        "Caffe logs, CSV or JSON tables of runs, TensorBoard events, trainer_state.json, "
        "Lightning's metrics.csv, MLflow runs, dllogger"
    )
