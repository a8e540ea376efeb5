"""Past runs from wherever the user keeps them: a log, a table, or a run store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wavecast.errors import InvalidInput, needing_extra
from wavecast.reading import open_file
from wavecast.runs.readers import read_runs
from wavecast.runs.readers.text import warn
from wavecast.runs.run import Run

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
