"""Readers of training logs: one module for each format, with `recognises` and `read`.

Impossible times are never used. Either the file is refused, or the part is left out with a warning
that names the file and the line. Warm-up is dropped: the user gives its length, or its end is
detected (`wavecast.runs.run`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

from wavecast.errors import InvalidInput, UnknownName, needing_extra
from wavecast.reading import kind_of, open_file
from wavecast.runs.readers import caffe, tables, tensorboard, trackers
from wavecast.runs.readers.text import Doubts, read_head, warn
from wavecast.runs.readers.timing import Given
from wavecast.runs.run import Run


class LogReader(Protocol):
    """A reader of one format: a module, or a `trackers.Reader`."""

    @property
    def recognises(self) -> Callable[[Path, bytes], bool]:
        """Whether a file with these first bytes has the format."""

    @property
    def read(self) -> Callable[[Path, Given, Doubts], Iterator[Run]]:
        """The runs of a file."""


# In the order in which they are tried.
FORMATS: dict[str, LogReader] = {
    "tensorboard": tensorboard,
    "mlflow": trackers.MLFLOW,
    "huggingface": trackers.HUGGING_FACE,
    "dllogger": trackers.DLLOGGER,
    "caffe": caffe,
    "suite": trackers.SUITE,
    "table": tables,
    "lightning": trackers.LIGHTNING,
}
_TABLES = (".csv", ".json", ".jsonl", ".ndjson")


def read_runs(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    told: Callable[[str], None] = warn,
    **given: Any,
) -> tuple[Run, ...]:
    """The runs recorded in a file, or in the files below a folder.

    Reads Caffe logs, tables (CSV, JSON, JSON Lines), TensorBoard event files, Hugging Face's
    `trainer_state.json`, Lightning's `metrics.csv`, MLflow file stores, logs of NVIDIA's
    DeepLearningExamples (dllogger), and files of `wavecast suite run`.

    >>> runs = wavecast.read_runs("train.log", gpu="v100-sxm-32gb")  # doctest: +SKIP

    Args:
        path: the file or folder.
        format: one of `FORMATS`; recognised if not given.
        told: takes each warning, with file and line; a `DoubtfulInput` warning if not given.
        given: facts that the files do not say, or say wrongly: `model`, `batch` (of all GPUs
            together), `gpu`, `gpus`, `precision`, `framework`, `inner_modules`; the number of
            `warm_up` iterations to drop; the `metric` whose times are used, if there are several.

    Raises:
        InvalidInput: a file is damaged or lacks something; says where and why.
        UnknownName: there is no such format.
    """
    facts = make_given(given)
    runs: list[Run] = []
    refused: list[str] = []
    files = find_files(Path(path), format)
    for file in files:
        try:
            runs += iterate_runs(file, facts, format=format, told=told)
        except InvalidInput as error:
            refused.append(str(error))
    if len(refused) > 1:
        listed = "\n".join(refused)
        raise InvalidInput(f"{len(refused)} of {len(files)} files were refused:\n{listed}")
    if refused:
        raise InvalidInput(refused[0])
    return tuple(runs)


def iterate_runs(
    file: Path,
    given: Given = Given(),  # noqa: B008  (frozen)
    *,
    format: str | None = None,
    told: Callable[[str], None] = warn,
) -> Iterator[Run]:
    """The runs of one file, one by one, so that a table of any length can be read."""
    doubts = Doubts(file, told)
    try:
        yield from _reader(file, format).read(file, given, doubts)
    finally:
        doubts.close()


def make_given(given: dict[str, Any]) -> Given:
    """The facts that the user gives, checked.

    Raises:
        InvalidInput: there is no such fact, or its value is impossible.
    """
    names = [field.name for field in fields(Given)]
    if unknown := given.keys() - set(names):
        raise InvalidInput(
            f"a run has no {', '.join(sorted(unknown))}; you can give {', '.join(names)}"
        )
    facts = Given(**given)
    for name in ("batch", "gpus", "inner_modules", "warm_up"):
        value = getattr(facts, name)
        if value is not None and (type(value) is not int or value < (name != "warm_up")):
            raise InvalidInput(f"{name} must be a whole number from {int(name != 'warm_up')} on")
    return facts


def find_files(path: Path, format: str | None = None) -> list[Path]:
    """The files to read: the file itself, or those below a folder that a reader recognises.

    Raises:
        InvalidInput: there is no such file.
    """
    if format is not None and format not in FORMATS:
        raise UnknownName(f'there is no format "{format}"; the formats are {", ".join(FORMATS)}')
    kind = kind_of(path)
    if kind != "folder":
        if kind is None:
            raise InvalidInput(f"{path}: there is no such file or folder")
        return [path]
    files = [file for file in _below(path) if format in (None, _recognised(file))]
    files = [file for file in files if _recognised(file) is not None]
    if not files:
        raise InvalidInput(f"{path}: no file in this folder has a known format: {_kinds()}")
    return files


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        # A checkpoint holds part of a training only; an MLflow run is read by its meta.yaml.
        folders[:] = sorted(name for name in folders if not name.startswith((".", "checkpoint-")))
        here = [Path(place) / name for name in sorted(names) if not name.startswith(".")]
        runs = [file for file in here if file.name == "meta.yaml" and _recognised(file) == "mlflow"]
        if runs:
            folders.clear()
        yield from runs or (file for file in here if file.is_file())


def _reader(file: Path, format: str | None) -> LogReader:
    name = format or _recognised(file)
    if name is None and file.suffix.lower() in _TABLES:
        name = "table"  # its error says which columns are missing
    if name is None:
        raise InvalidInput(f"{file}: has no known format: {_kinds()}")
    return FORMATS[name]


def _recognised(file: Path) -> str | None:
    head = read_head(file)
    return next((name for name, reader in FORMATS.items() if reader.recognises(file, head)), None)


def _kinds() -> str:
    return (
        "Caffe logs, CSV or JSON tables of runs, TensorBoard events, trainer_state.json, "
        "Lightning's metrics.csv, MLflow runs, dllogger"
    )


# Past runs from wherever the user keeps them: a log, a table, or a run store.


OWN_STORE = "runs"
"""The name of the user's own run store, as commands take it."""


@contextmanager
def opened_runs(source: str, model: str | None, phase: str) -> Iterator[Iterator[Run]]:
    """The runs of a source, while the block lasts. A store is read run by run.

    Args:
        source: a log or table, the file or URL of a store, or `OWN_STORE`.
        model: only runs of this model; None for all.
        phase: "training" or "testing".

    Raises:
        InvalidInput: the source has no run of the model.
    """
    if source == OWN_STORE or "://" in source or _is_store(Path(source)):
        with needing_extra("a run store"):
            from wavecast.runs.store.store import RunStore
        place = None if source == OWN_STORE else source
        with RunStore(place, read_only=True, told=warn) as store:
            if model is not None and not store.count(model=model):
                raise InvalidInput(
                    f"{store.name} has no run of {model}; wavecast runs list shows what it has"
                )
            yield store.runs(model=model, phase=phase)
        return
    runs = read_runs(source)
    models = {run.model for run in runs}
    if model is not None and model not in models:
        raise InvalidInput(f"{source} has no run of {model}; it has {', '.join(sorted(models))}")
    yield (run for run in runs if model in (None, run.model))


def _is_store(path: Path) -> bool:
    try:
        with open_file(path) as file:
            return file.read(15) == b"SQLite format 3"
    except InvalidInput:
        return False
