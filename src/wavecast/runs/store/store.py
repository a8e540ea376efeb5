"""The run store: past runs in a database, without duplicates, for many writers at a time."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self, TextIO, TypeVar

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import (
    BigInteger,
    Connection,
    Double,
    Select,
    TextClause,
    bindparam,
    func,
    null,
    select,
    text,
    update,
)
from sqlalchemy.dialects import sqlite

from wavecast.errors import InvalidInput, StoreUnavailable, prefixed
from wavecast.files import refusing_unwritable, replacing
from wavecast.runs.readers import iterate_runs
from wavecast.runs.readers.text import warn
from wavecast.runs.readers.timing import Given
from wavecast.runs.run import COLUMNS, TOTALS, Imported, Run, check, identity, record
from wavecast.runs.store import database
from wavecast.runs.store.database import can_write, connect, imports, reading, writing

BATCH = 10_000
"""How many runs are written in one transaction, and fetched at once."""
_Item = TypeVar("_Item")
NUMBERS = ("batch", "iterations", "seconds", "gpus", "inner_modules", *TOTALS)
"""The fields of a run that are numbers."""
_ALWAYS = ("batch", "iterations", "seconds", "gpus")
"""Those that every run has, above 0."""
_SINCE = {"inner_modules": 2, **dict.fromkeys(TOTALS, 3)}
"""The version of the tables that added a column, if it was not the first."""


@dataclass(frozen=True, slots=True)
class Added:
    """How many runs were added."""

    new: int
    known: int
    """How many runs the store already had."""


class RunStore:
    """Past runs in SQLite or PostgreSQL. A run that is added twice is stored once.

    If it was stored without the times of the whole run, and is added with them, they are filled in.

    ```python
    with wavecast.RunStore() as store:
        store.add(wavecast.read_runs("train.log"))
        runs = list(store.runs(model="AlexNet"))
    ```

    Args:
        place: a file for SQLite, or postgresql://USER:PASSWORD@HOST/DATABASE. The default is the
            environment variable WAVECAST_RUNS, else a file in the user's data folder.
        read_only: if true, nothing is created or changed, and a missing store is an error. A file
            without permission to write can be read either way.
        told: takes a line when the store is locked, which says for what the process waits.

    Raises:
        InvalidInput: the place is not a store, or the store of a newer version of Wavecast.
        MissingExtra: SQLAlchemy or PostgreSQL's driver is not installed.
        StoreUnavailable: the database does not answer.
    """

    def __init__(
        self,
        place: str | os.PathLike[str] | None = None,
        *,
        read_only: bool = False,
        told: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._told = told
        self._engine, self.name = connect(place, read_only, told)
        try:
            self._version = self._opened(read_only)
        except BaseException:
            self.close()
            raise

    def _opened(self, read_only: bool) -> int:
        """The version of the tables, after an upgrade if it is possible."""
        with reading(self._engine, self.name) as connection:
            version = database.checked_version(connection, self.name)
        if read_only or (version and not can_write(self._engine)):
            if not version:
                raise InvalidInput(
                    f"the run store {self.name} has no runs yet; wavecast runs add adds some"
                )
            return version
        return database.migrate(self._engine, self.name, told=self._told)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the database."""
        self._engine.dispose()

    def add(self, runs: Iterable[Run]) -> Added:
        """Add runs in transactions of 10,000, each of which is written as a whole or not at all.

        Raises:
            InvalidInput: a run is impossible. Its transaction and later ones are not written.
            StoreUnavailable: the database failed. Earlier transactions are written, and adding
                the same runs again adds only the missing ones.
        """
        new = known = 0
        for batch in batches(runs):
            rows = [_identified(run) for run in batch]
            with self.writing() as connection:
                added = insert(connection, rows)
            new, known = new + added, known + len(batch) - added
        return Added(new, known)

    def runs(
        self,
        *,
        model: str | None = None,
        gpu: str | None = None,
        phase: str | None = None,
        last: int | None = None,
    ) -> Iterator[Run]:
        """The runs in the order in which they were added, fetched in batches.

        Args:
            model: only runs of this model.
            gpu: only runs on this GPU, by its name in the runs.
            phase: only "training" or "testing".
            last: only this many runs, those added last.
        """
        table = database.runs
        chosen = _where(select(*map(self._column, COLUMNS)), model, gpu, phase)
        if last is not None:
            numbers = _where(select(table.c.number), model, gpu, phase)
            newest = numbers.order_by(table.c.number.desc()).limit(last)
            chosen = chosen.where(table.c.number.in_(newest))
        for rows in self._fetched(chosen.order_by(table.c.number)):
            for row in rows:
                yield self._checked(Run(**dict(zip(COLUMNS, row, strict=True))))

    def arrays(
        self,
        columns: Sequence[str] = ("batch", "iterations", "seconds"),
        *,
        model: str | None = None,
        gpu: str | None = None,
        phase: str | None = None,
    ) -> dict[str, NDArray[np.float64]]:
        """Numbers of the runs as arrays, for models fitted to millions of runs.

        Args:
            columns: some of `NUMBERS`. Unknown values become NaN.
            model: only runs of this model.
            gpu: only runs on this GPU.
            phase: only "training" or "testing".

        Raises:
            StoreUnavailable: a run in the store is damaged.
        """
        if other := set(columns) - set(NUMBERS):
            choices = ", ".join(NUMBERS)
            raise InvalidInput(
                f"{', '.join(sorted(other))}: not a number of a run; choose {choices}"
            )
        table = database.runs
        chosen = _where(select(*map(self._column, columns)), model, gpu, phase)
        try:
            parts = [
                np.array([tuple(row) for row in rows], dtype=np.float64)
                for rows in self._fetched(chosen.order_by(table.c.number))
            ]
        except (TypeError, ValueError) as error:
            raise self._damaged(str(error)) from None
        whole = np.concatenate(parts) if parts else np.empty((0, len(columns)))
        arrays = {name: whole[:, index] for index, name in enumerate(columns)}
        for name in set(columns) & set(_ALWAYS):
            if not ((arrays[name] > 0) & (arrays[name] < np.inf)).all():
                raise self._damaged(f"{name} of a run is not a finite number above 0")
        return arrays

    def count(
        self, *, model: str | None = None, gpu: str | None = None, phase: str | None = None
    ) -> int:
        """The number of runs in the store, or of those that match."""
        chosen = _where(select(func.count()), model, gpu, phase)
        with reading(self._engine, self.name) as connection:
            return int(connection.execute(chosen).scalar_one())

    def writing(self) -> AbstractContextManager[Connection]:
        """A transaction of this store, written as a whole or not at all."""
        return writing(self._engine, self.name, self._told)

    def reading(self) -> AbstractContextManager[Connection]:
        """A connection that reads this store."""
        return reading(self._engine, self.name)

    def _column(self, name: str) -> Any:
        """A column of the runs; unknown in a store of an older version that cannot be upgraded."""
        missing = _SINCE.get(name, 1) > self._version
        return null().label(name) if missing else database.runs.c[name]

    def _checked(self, run: Run) -> Run:
        """A stored run, checked: a damaged file can hold anything."""
        try:
            return check(run)
        except InvalidInput as error:
            raise self._damaged(f"it has an impossible run: {error}") from None

    def _damaged(self, why: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"the run store {self.name} is damaged ({why}); restore it from a copy, or add its "
            "logs to a new store"
        )

    def _fetched(self, chosen: Select[Any]) -> Iterator[Sequence[Any]]:
        with reading(self._engine, self.name) as connection:
            yield from connection.execution_options(yield_per=BATCH).execute(chosen).partitions()


def insert(connection: Connection, runs: Iterable[tuple[str, Run]]) -> int:
    """Insert the runs that the store does not have, and return how many those are.

    Args:
        connection: a connection within a transaction.
        runs: checked runs, each with its identity.
    """
    rows = [
        {"id": key, **record(run), "seconds": float(run.seconds)} for key, run in dict(runs).items()
    ]
    if not rows:
        return 0
    if connection.dialect.name == "postgresql":
        done = connection.execute(
            _INSERT_ARRAYS, {name: [r[name] for r in rows] for name in rows[0]}
        )
    else:
        statement = sqlite.insert(database.runs).on_conflict_do_nothing(index_elements=["id"])
        done = connection.execution_options(preserve_rowcount=True).execute(statement, rows)
    if done.rowcount < len(rows):
        _fill_in(connection, rows)
    return done.rowcount


def _fill_in(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Add the times of whole runs to runs that an older version stored without them."""
    timed = [row for row in rows if any(row[name] is not None for name in TOTALS)]
    if not timed:
        return
    table = database.runs
    unknown = [table.c[name].is_(None) for name in TOTALS]
    statement = (
        update(table)
        .where(table.c.id == bindparam("known"), *unknown)
        .values({name: bindparam(f"new_{name}") for name in TOTALS})
    )
    connection.execute(
        statement,
        [{"known": row["id"], **{f"new_{name}": row[name] for name in TOTALS}} for row in timed],
    )


def batches(runs: Iterable[_Item]) -> Iterator[tuple[_Item, ...]]:
    """The runs in tuples of the size of one transaction."""
    rest = iter(runs)
    while batch := tuple(islice(rest, BATCH)):
        yield batch


def _insert_arrays() -> TextClause:
    """One statement that inserts many rows from arrays, which is far faster in PostgreSQL."""
    kinds = {
        column.name: "double precision"
        if isinstance(column.type, Double)
        else "bigint"
        if isinstance(column.type, BigInteger)
        else "text"
        for column in database.runs.columns
        if column.name != "number"
    }
    arrays = ", ".join(f"CAST(:{name} AS {kind}[])" for name, kind in kinds.items())
    return text(
        f"INSERT INTO {database.runs.name} ({', '.join(kinds)}) "
        f"SELECT * FROM unnest({arrays}) ON CONFLICT (id) DO NOTHING"
    )


_INSERT_ARRAYS = _insert_arrays()


def _identified(run: Run) -> tuple[str, Run]:
    with prefixed(f"{run.source or run}: "):
        return identity(check(run)), run


def _where(
    chosen: Select[Any], model: str | None, gpu: str | None, phase: str | None
) -> Select[Any]:
    chosen = chosen.select_from(database.runs)
    for name, value in (("model", model), ("gpu", gpu), ("phase", phase)):
        if value is not None:
            chosen = chosen.where(database.runs.c[name] == value)
    return chosen


# Imports of files into a run store, which continue after an interruption.
#
# A file is read twice. The first time its runs are checked, counted and hashed, so that a file
# with an error anywhere changes nothing. The second time its runs are written in transactions of
# 10,000. Each transaction also records how many runs are done. An import that was killed continues
# there.


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
        file: a log or table of a known format.
        given: facts that the file does not say.
        format: the format of the file; recognised if not given.
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


# Export of runs as a table that `read_runs`, and other programs, read back exactly.


SUFFIXES = (".csv", ".jsonl")


def export(runs: Iterable[Run], path: Path) -> int:
    """Write runs as CSV or JSON Lines, depending on the suffix, and return their number.

    The file is replaced when the new one is complete. An interrupted export changes nothing.

    Raises:
        InvalidInput: the file cannot be written, or has another suffix.
    """
    refuse_other_suffix(path)
    with (
        refusing_unwritable(path),
        replacing(path) as draft,
        draft.open("w", encoding="utf-8", newline="") as file,
    ):
        return write(runs, file, path.suffix)


def refuse_other_suffix(path: Path) -> None:
    """Raise InvalidInput unless a path has one of `SUFFIXES`."""
    if path.suffix not in SUFFIXES:
        raise InvalidInput(f"runs are exported as FILE.csv or FILE.jsonl, not {path}")


def write(runs: Iterable[Run], file: TextIO, suffix: str) -> int:
    """Write runs into an open file, and return their number."""
    count = 0
    rows = csv.writer(file, lineterminator="\n")
    if suffix == ".csv":
        rows.writerow(COLUMNS)
    for run in runs:
        values = record(run)
        if suffix == ".csv":
            rows.writerow("" if value is None else value for value in values.values())
        else:
            file.write(json.dumps(values, allow_nan=False) + "\n")
        count += 1
    return count
