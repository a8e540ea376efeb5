"""MLflow file stores: `mlruns/EXPERIMENT/RUN/` with `meta.yaml`, `params/` and `metrics/`.

The file of a metric has lines of `time in milliseconds, value, step`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from wavecast.errors import InvalidInput
from wavecast.runs.readers.text import Doubts, read_flat, read_lines, read_whole, whole
from wavecast.runs.readers.timing import (
    Given,
    LogSpan,
    Mark,
    find_facts,
    runs_of,
    test_spans,
    training_marks,
    trainings,
)
from wavecast.runs.run import Run

_MOST_BYTES = 1 << 20


def recognises(path: Path, head: bytes) -> bool:
    """Whether a file is the `meta.yaml` of an MLflow run."""
    return path.name == "meta.yaml" and (b"run_id:" in head or b"run_uuid:" in head)


def read(path: Path, given: Given, doubts: Doubts) -> Iterator[Run]:
    """The training of an MLflow run, by its `meta.yaml`.

    Raises:
        InvalidInput: the run has no times, or does not say the model or batch; says where.
    """
    folder = path.parent
    meta = read_flat(read_whole(path, _MOST_BYTES).splitlines())
    if meta.get("lifecycle_stage") == "deleted":
        doubts.tell("", "the run was deleted in MLflow and is left out")
        return
    if meta.get("status") in ("1", "4", "5", "RUNNING", "FAILED", "KILLED"):
        doubts.tell("", "the run did not finish; what it recorded is used")
    marks = {
        file.relative_to(folder / "metrics").as_posix(): list(_marks(file, doubts))
        for file in sorted((folder / "metrics").rglob("*"))
        if file.is_file()
    }
    if not marks:
        raise InvalidInput(f"{path}: the run has no metrics, so its speed is unknown")
    facts = find_facts(_parameters(folder / "params"), given, None)
    chosen = training_marks(folder / "metrics", marks, given)
    begin_ms, end_ms = (whole(str(meta.get(name, ""))) for name in ("start_time", "end_time"))
    span = None
    if begin_ms is not None and end_ms is not None:  # a run that did not finish has no end
        span = LogSpan(begin_ms / 1000, end_ms / 1000, test_spans(marks, chosen))
    yield from runs_of(trainings(chosen, doubts), facts, given, doubts, span)


def _marks(file: Path, doubts: Doubts) -> Iterator[Mark]:
    for number, line in read_lines(file, Doubts(file, doubts.told, doubts.counts)):
        place = f"{file.parent.name}/{file.name}: line {number}"
        parts = line.split()
        if len(parts) not in (2, 3, 5):  # newer versions add the name and digest of a data set
            doubts.tell(place, "is not of the form 'time value step' and is left out")
            continue
        time_ms, step = whole(parts[0]), whole(parts[2]) if len(parts) > 2 else None
        if time_ms is None or step is None or time_ms < 0 or step < 0:
            doubts.tell(place, "has an impossible time or step and is left out")
            continue
        yield Mark(step, time_ms / 1000, place)


def _parameters(folder: Path) -> dict[str, object]:
    parameters: dict[str, object] = {}
    for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if file.is_file():
            parameters[file.relative_to(folder).as_posix()] = read_whole(file, _MOST_BYTES).strip()
    return parameters
