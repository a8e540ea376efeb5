"""Importing files into a run store: all of a file or, after an interruption, the rest of it.

A file is read twice. The first time it is checked, counted, and known by its runs, so that one that
is wrong anywhere changes nothing. The second time its runs are written, in transactions of
10,000, each with how far the import is: whatever is killed meanwhile, the next import of the same
runs goes on from there.
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
from wavecast.runs.readers.facts import Given
from wavecast.runs.readers.text import warn
from wavecast.runs.run import Run, identity
from wavecast.runs.store.schema import imports
from wavecast.runs.store.store import BATCH, RunStore, batches, insert


@dataclass(frozen=True, slots=True)
class Imported:
    """What importing a file did."""

    file: str
    runs: int
    new: int
    """Of these, how many the store did not have."""
    resumed_at: int = 0
    """How many were passed over, because an import before had come so far."""


@dataclass(frozen=True, slots=True)
class _Checked:
    """A file whose runs were all read once."""

    key: str
    count: int
    kept: tuple[Run, ...] | None
    """The runs, when they are few."""


def add_file(
    store: RunStore,
    file: Path,
    given: Given = Given(),  # noqa: B008  (frozen)
    *,
    format: str | None = None,
    told: Callable[[str], None] = warn,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Imported:
    """Add the runs of a file; what the store has of them already stays as it is.

    Args:
        store: to add to.
        file: of any format that is read.
        given: what the file does not say.
        format: of the file, when it should not be found out.
        told: what is doubtful, with file and line.
        progress: told how many runs are written, of how many.

    Raises:
        InvalidInput: the file cannot be read; the store is as it was.
        StoreUnavailable: the database went away; import again when it is back.
    """
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
    for some in batches(rest):
        written += len(some)
        with store.writing() as connection:
            new += insert(connection, some)
            _note(connection, checked.key, written, written == checked.count)
        progress(written, checked.count)
    return Imported(str(file), checked.count, new, done)


def _check(runs: Iterable[Run]) -> _Checked:
    digest, count = hashlib.sha256(), 0
    kept: list[Run] | None = []
    for run in runs:
        digest.update(identity(run).encode())
        count += 1
        if kept is not None:
            kept.append(run)
            if count > BATCH:
                kept = None
    return _Checked(digest.hexdigest(), count, None if kept is None else tuple(kept))


def _same(runs: Iterable[Run], checked: _Checked, file: Path) -> Iterator[tuple[str, Run]]:
    """The runs, as they were when they were checked, with their identities."""
    digest, count = hashlib.sha256(), 0
    for run in runs:
        key = identity(run)
        digest.update(key.encode())
        count += 1
        if count == checked.count and digest.hexdigest() != checked.key:
            break
        yield key, run
    if count != checked.count or digest.hexdigest() != checked.key:
        raise InvalidInput(f"{file}: changed while it was read; import it again")


def _begin(
    store: RunStore, file: Path, checked: _Checked, told: Callable[[str], None]
) -> tuple[int, bool]:
    """How far an import of these runs came before, and whether to its end."""
    with store.writing() as connection:
        found = connection.execute(
            select(imports.c.rows, imports.c.complete).where(imports.c.id == checked.key)
        ).one_or_none()
        if found is not None:
            return int(found.rows), bool(found.complete)
        before = connection.execute(
            select(imports.c.id).where(imports.c.file == str(file)).limit(1)
        ).one_or_none()
        connection.execute(
            imports.insert().values(
                id=checked.key, file=str(file), rows=0, complete=checked.count == 0
            )
        )
    if before is not None:
        told(f"{file}: was imported before, with other runs; those stay in the store, too")
    return 0, checked.count == 0


def _note(connection: Connection, key: str, rows: int, complete: bool) -> None:
    # Another process may import the same runs, and be further.
    connection.execute(
        update(imports)
        .where(imports.c.id == key, imports.c.rows < rows)
        .values(rows=rows, complete=complete)
    )
