"""Imports of files into a run store, which continue after an interruption.

A file is read twice. The first time its runs are checked, counted and hashed, so that a file with
an error anywhere changes nothing. The second time its runs are written in transactions of 10,000.
Each transaction also records how many runs are done. An import that was killed continues there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from sqlalchemy import Connection, select, update

from wavecast.errors import InvalidInput
from wavecast.runs.readers import iterate_runs
from wavecast.runs.readers.doubts import warn
from wavecast.runs.readers.facts import Given
from wavecast.runs.run import TOTALS, Run, identity
from wavecast.runs.store.imported import Imported
from wavecast.runs.store.schema import imports
from wavecast.runs.store.store import BATCH, RunStore, batches, insert


@dataclass(frozen=True, slots=True)
class _Checked:
    """The result of reading a file for the first time."""

    key: str
    """A hash of all runs."""
    count: int
    kept: tuple[Run, ...] | None
    """The runs themselves, if they are few enough to keep."""


def add_file(
    store: RunStore,
    file: Path,
    given: Given = Given(),  # noqa: B008  (frozen)
    *,
    format: str | None = None,
    told: Callable[[str], None] = warn,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Imported:
    """Add the runs of a file that the store does not have yet.

    Args:
        store: the store.
        file: a log or table of a known format.
        given: facts that the file does not say.
        format: the format of the file; recognised if not given.
        told: takes each warning, with file and line.
        progress: takes the number of runs written so far and their total.

    Raises:
        InvalidInput: the file cannot be read; the store is unchanged.
        StoreUnavailable: the database failed; import again when it is back.
    """
    with store.writing():
        pass  # A store that cannot be written is refused before a long file is read.
    checked = _check(iterate_runs(file, given, format=format, told=told))
    done, complete = _begin(store, file, checked, told)
    if complete:
        progress(checked.count, checked.count)
        return Imported(str(file), checked.count, 0, done)
    if checked.kept is None:
        again = iterate_runs(file, given, format=format, told=lambda _: None)
        rest: Iterator[tuple[str, Run]] = islice(_same(again, checked, file), done, None)
    else:
        rest = ((identity(run), run) for run in islice(checked.kept, done, None))
    new, written = 0, done
    for batch in batches(rest):
        written += len(batch)
        with store.writing() as connection:
            new += insert(connection, batch)
            _note(connection, checked.key, written, written == checked.count)
        progress(written, checked.count)
    return Imported(str(file), checked.count, new, done)


def _check(runs: Iterable[Run]) -> _Checked:
    digest, count = hashlib.sha256(), 0
    kept: list[Run] | None = []
    for run in runs:
        digest.update(_content(run, identity(run)))
        count += 1
        if kept is not None:
            kept.append(run)
            if count > BATCH:
                kept = None
    return _Checked(digest.hexdigest(), count, None if kept is None else tuple(kept))


def _content(run: Run, key: str) -> bytes:
    """What an import adds of a run: a file that now gives whole times is imported again."""
    totals = [repr(value) for name in TOTALS if (value := getattr(run, name)) is not None]
    return " ".join([key, *totals]).encode()


def _same(runs: Iterable[Run], checked: _Checked, file: Path) -> Iterator[tuple[str, Run]]:
    """The runs with their identities; an error if they are not those that were checked."""
    digest, count = hashlib.sha256(), 0
    for run in runs:
        key = identity(run)
        digest.update(_content(run, key))
        count += 1
        if count == checked.count and digest.hexdigest() != checked.key:
            break
        yield key, run
    if count != checked.count or digest.hexdigest() != checked.key:
        raise InvalidInput(f"{file}: changed while it was read; import it again")


def _begin(
    store: RunStore, file: Path, checked: _Checked, told: Callable[[str], None]
) -> tuple[int, bool]:
    """How many of these runs an earlier import added, and whether it was complete."""
    with store.writing() as connection:
        earlier = connection.execute(
            select(imports.c.rows, imports.c.complete).where(imports.c.id == checked.key)
        ).one_or_none()
        if earlier is not None:
            return int(earlier.rows), bool(earlier.complete)
        same_file = connection.execute(
            select(imports.c.id).where(imports.c.file == str(file)).limit(1)
        ).one_or_none()
        connection.execute(
            imports.insert().values(
                id=checked.key, file=str(file), rows=0, complete=checked.count == 0
            )
        )
    if same_file is not None:
        told(f"{file}: was imported before with other runs; these stay in the store, too")
    return 0, checked.count == 0


def _note(connection: Connection, key: str, rows: int, complete: bool) -> None:
    # Another process may be importing the same runs, and may have added more of them.
    connection.execute(
        update(imports)
        .where(imports.c.id == key, imports.c.rows < rows)
        .values(rows=rows, complete=complete)
    )
