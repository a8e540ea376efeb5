"""The run store: past runs in a database, each once, for many writers at a time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import BigInteger, Connection, Double, Select, TextClause, func, select, text
from sqlalchemy.dialects import sqlite

from wavecast.errors import InvalidInput
from wavecast.runs.run import COLUMNS, Run, check, identity, record
from wavecast.runs.store import schema
from wavecast.runs.store.database import connect, reading, writing

BATCH = 10_000
"""Runs of one transaction, and of one fetch."""
_Item = TypeVar("_Item")
NUMBERS = ("batch", "iterations", "seconds", "gpus", "inner_modules")


@dataclass(frozen=True, slots=True)
class Added:
    """What adding runs did."""

    new: int
    known: int
    """Runs that were there already; they count once."""


class RunStore:
    """Past runs in SQLite or PostgreSQL; a run added twice is there once.

    ```python
    with wavecast.RunStore() as store:
        store.add(wavecast.read_runs("train.log"))
        runs = list(store.runs(model="AlexNet"))
    ```

    Args:
        place: a file for SQLite, or postgresql://USER:PASSWORD@HOST/DATABASE. Without it the
            environment's WAVECAST_RUNS, or a file of the user's.

    Raises:
        InvalidInput: the place is not a store, or one of a newer wavecast.
        MissingExtra: SQLAlchemy or PostgreSQL's driver is not installed.
        StoreUnavailable: the database does not answer.
    """

    def __init__(self, place: str | os.PathLike[str] | None = None) -> None:
        self._engine, self.name = connect(place)
        try:
            schema.migrate(self._engine, self.name)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    def add(self, runs: Iterable[Run]) -> Added:
        """Add runs, as many as there are, in transactions of 10,000; each of them whole or not.

        Raises:
            InvalidInput: a run that cannot be true; its transaction and what follows is not added.
            StoreUnavailable: the database went away; what was added before is there, and adding
                the same runs again adds only what is missing.
        """
        new = known = 0
        for some in batches(runs):
            rows = [_identified(run) for run in some]
            with self.writing() as connection:
                added = insert(connection, rows)
            new, known = new + added, known + len(some) - added
        return Added(new, known)

    def runs(
        self,
        *,
        model: str | None = None,
        gpu: str | None = None,
        phase: str | None = None,
        last: int | None = None,
    ) -> Iterator[Run]:
        """The runs, in the order in which they were added; never all in memory.

        Args:
            model: only of this model.
            gpu: only of this GPU, as it is called in the runs.
            phase: only "training" or "testing".
            last: only so many, those added last.
        """
        table = schema.runs
        chosen = _where(select(*(table.c[name] for name in COLUMNS)), model, gpu, phase)
        if last is not None:
            numbers = _where(select(table.c.number), model, gpu, phase)
            newest = numbers.order_by(table.c.number.desc()).limit(last)
            chosen = chosen.where(table.c.number.in_(newest))
        for rows in self._fetched(chosen.order_by(table.c.number)):
            for row in rows:
                yield Run(**dict(zip(COLUMNS, row, strict=True)))

    def arrays(
        self,
        columns: Sequence[str] = ("batch", "iterations", "seconds"),
        *,
        model: str | None = None,
        gpu: str | None = None,
        phase: str | None = None,
    ) -> dict[str, NDArray[np.float64]]:
        """Numbers of the runs as arrays, eight bytes each: what a fit of a million runs takes.

        Args:
            columns: of NUMBERS; an unknown value is NaN.
            model: only of this model.
            gpu: only of this GPU.
            phase: only "training" or "testing".
        """
        if other := set(columns) - set(NUMBERS):
            raise InvalidInput(f"{', '.join(sorted(other))}: no numbers; those are {NUMBERS}")
        table = schema.runs
        chosen = _where(select(*(table.c[name] for name in columns)), model, gpu, phase)
        parts = [
            np.array([tuple(row) for row in rows], dtype=np.float64)
            for rows in self._fetched(chosen.order_by(table.c.number))
        ]
        whole = np.concatenate(parts) if parts else np.empty((0, len(columns)))
        return {name: whole[:, index] for index, name in enumerate(columns)}

    def count(
        self, *, model: str | None = None, gpu: str | None = None, phase: str | None = None
    ) -> int:
        """How many runs there are."""
        chosen = _where(select(func.count()), model, gpu, phase)
        with reading(self._engine, self.name) as connection:
            return int(connection.execute(chosen).scalar_one())

    def writing(self) -> AbstractContextManager[Connection]:
        """A transaction of this store: all of it is written, or nothing."""
        return writing(self._engine, self.name)

    def _fetched(self, chosen: Select[Any]) -> Iterator[Sequence[Any]]:
        with reading(self._engine, self.name) as connection:
            yield from connection.execution_options(yield_per=BATCH).execute(chosen).partitions()


def insert(connection: Connection, runs: Iterable[tuple[str, Run]]) -> int:
    """Insert, within a transaction, the runs that are not there; how many those were.

    Args:
        connection: with a transaction.
        runs: that were checked, each with its identity.
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
    return done.rowcount


def batches(runs: Iterable[_Item]) -> Iterator[tuple[_Item, ...]]:
    """The runs, as many at a time as one transaction takes."""
    rest = iter(runs)
    while some := tuple(islice(rest, BATCH)):
        yield some


def _insert_arrays() -> TextClause:
    """One statement for many rows, a column an array: in PostgreSQL far faster than row by row."""
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
    try:
        return identity(check(run)), run
    except InvalidInput as error:
        raise InvalidInput(f"{run.source or run}: {error}") from None


def _where(
    chosen: Select[Any], model: str | None, gpu: str | None, phase: str | None
) -> Select[Any]:
    chosen = chosen.select_from(schema.runs)
    for name, value in (("model", model), ("gpu", gpu), ("phase", phase)):
        if value is not None:
            chosen = chosen.where(schema.runs.c[name] == value)
    return chosen
