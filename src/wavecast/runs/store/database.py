"""The database behind a run store: SQLite in a file, or PostgreSQL by its URL."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from wavecast.errors import InvalidInput, MissingExtra, StoreUnavailable
from wavecast.files import data_folder

WAIT_S = 60
"""How long a writer of SQLite waits for the others."""
_FOR_WRITING = "wavecast_writes"
_LOCK = 0x77617665  # "wave": held by whoever writes to PostgreSQL


def default_place() -> Path:
    """The store that is used when none is named: a file of the user's."""
    return data_folder() / "runs.sqlite"


def connect(place: str | os.PathLike[str] | None) -> tuple[Engine, str]:
    """An engine for a place, and what to call the place, without its password.

    Raises:
        InvalidInput: the place cannot be a store.
        MissingExtra: what the place needs is not installed.
    """
    said = os.fspath(place or os.environ.get("WAVECAST_RUNS") or default_place())
    if re.match(r"postgres(ql)?(\+\w+)?://", said):
        return _postgresql(said)
    if "://" in said and not said.startswith("sqlite:///"):
        scheme = said.split("://")[0]
        raise InvalidInput(f"a run store is a file or a postgresql:// URL, not {scheme}://...")
    path = Path(said.removeprefix("sqlite:///")).expanduser()
    return _sqlite(path), str(path)


@contextmanager
def writing(engine: Engine, name: str) -> Iterator[Connection]:
    """A transaction that writes: all of it, or nothing, and after those of others.

    Raises:
        StoreUnavailable: it could not be; nothing was written.
    """
    with telling(name), engine.connect() as plain:
        connection = plain.execution_options(**{_FOR_WRITING: True})
        with connection.begin():
            if engine.dialect.name == "postgresql":
                # One writer at a time, as in SQLite: no deadlocks, and runs in their order.
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
            yield connection


@contextmanager
def reading(engine: Engine, name: str) -> Iterator[Connection]:
    """A connection that reads what is there at this moment.

    Raises:
        StoreUnavailable: it cannot be read.
    """
    with telling(name), engine.connect() as connection:
        yield connection


@contextmanager
def telling(name: str) -> Iterator[None]:
    """Failures of the database as ours."""
    try:
        yield
    except SQLAlchemyError as error:
        why = str(getattr(error, "orig", None) or error).strip().split("\n")[0]
        raise StoreUnavailable(
            f"the run store {name}: {why}; nothing half-written is in it; try again when it is back"
        ) from error


def _sqlite(path: Path) -> Engine:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and _head(path) not in (b"", b"SQLite format 3\0"):
            raise InvalidInput(f"{path}: is not a run store, nor any SQLite database")
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be a run store ({error.strerror})") from None
    engine = create_engine(
        URL.create("sqlite", database=str(path)), connect_args={"timeout": WAIT_S}
    )

    def prepare(connection: Any, _: object) -> None:
        connection.isolation_level = None  # we begin transactions ourselves
        _log_ahead(connection)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA cache_size=-65536")

    def begin(connection: Connection) -> None:
        # A writer says so at once: one that became a writer later might have to give up.
        writes = connection.get_execution_options().get(_FOR_WRITING)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", begin)
    return engine


def _log_ahead(connection: Any) -> None:
    """Let there be readers and a writer at once.

    Of several that come to a new file first, SQLite lets one do so and tells the others at once
    that the file is locked, however long they would wait.
    """
    until = time.monotonic() + WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
        else:
            return


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(16)


def _postgresql(said: str) -> tuple[Engine, str]:
    try:
        url = make_url(said)
    except (ArgumentError, ValueError) as error:
        raise InvalidInput(f"not the URL of a database: {error}") from None
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    try:
        engine = create_engine(url, pool_pre_ping=True)
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"a run store in PostgreSQL needs {error.name}: pip install 'wavecast[postgres]'"
        ) from error
    return engine, url.render_as_string(hide_password=True)
