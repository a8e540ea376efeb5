"""The run store: past runs in a database, without duplicates, for many writers at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self, TypeVar

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
from wavecast.runs.run import COLUMNS, TOTALS, Run, check, identity, record
from wavecast.runs.store import schema
from wavecast.runs.store.database import can_write, connect, reading, writing

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
            version = schema.checked_version(connection, self.name)
        if read_only or (version and not can_write(self._engine)):
            if not version:
                raise InvalidInput(
                    f"the run store {self.name} has no runs yet; wavecast runs add adds some"
                )
            return version
        return schema.migrate(self._engine, self.name, told=self._told)

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
        table = schema.runs
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
        table = schema.runs
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
        return null().label(name) if missing else schema.runs.c[name]

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
        statement = sqlite.insert(schema.runs).on_conflict_do_nothing(index_elements=["id"])
        done = connection.execution_options(preserve_rowcount=True).execute(statement, rows)
    if done.rowcount < len(rows):
        _fill_in(connection, rows)
    return done.rowcount


def _fill_in(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Add the times of whole runs to runs that an older version stored without them."""
    timed = [row for row in rows if any(row[name] is not None for name in TOTALS)]
    if not timed:
        return
    table = schema.runs
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
        for column in schema.runs.columns
        if column.name != "number"
    }
    arrays = ", ".join(f"CAST(:{name} AS {kind}[])" for name, kind in kinds.items())
    return text(
        f"INSERT INTO {schema.runs.name} ({', '.join(kinds)}) "
        f"SELECT * FROM unnest({arrays}) ON CONFLICT (id) DO NOTHING"
    )


_INSERT_ARRAYS = _insert_arrays()


def _identified(run: Run) -> tuple[str, Run]:
    with prefixed(f"{run.source or run}: "):
        return identity(check(run)), run


def _where(
    chosen: Select[Any], model: str | None, gpu: str | None, phase: str | None
) -> Select[Any]:
    chosen = chosen.select_from(schema.runs)
    for name, value in (("model", model), ("gpu", gpu), ("phase", phase)):
        if value is not None:
            chosen = chosen.where(schema.runs.c[name] == value)
    return chosen
