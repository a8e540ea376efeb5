"""The database of a run store: SQLite in a file, or PostgreSQL at a URL."""

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
"""How many seconds a writer of SQLite waits for other writers."""
_FOR_WRITING = "wavecast_writes"
_LOCK = 0x77617665  # "wave": the number of the lock that a writer to PostgreSQL holds


def default_place() -> Path:
    """The path of the default store: a file in the user's data folder."""
    return data_folder() / "runs.sqlite"


def connect(place: str | os.PathLike[str] | None) -> tuple[Engine, str]:
    """An engine for a place, and the name of the place without its password.

    Raises:
        InvalidInput: the place cannot be a store.
        MissingExtra: the driver of the database is not installed.
    """
    named = os.fspath(place or os.environ.get("WAVECAST_RUNS") or default_place())
    if re.match(r"postgres(ql)?(\+\w+)?://", named):
        return _postgresql(named)
    if "://" in named and not named.startswith("sqlite:///"):
        scheme = named.split("://")[0]
        raise InvalidInput(f"a run store is a file or a postgresql:// URL, not {scheme}://...")
    path = Path(named.removeprefix("sqlite:///")).expanduser()
    return _sqlite(path), str(path)


@contextmanager
def writing(engine: Engine, name: str) -> Iterator[Connection]:
    """A transaction that writes everything or nothing, one writer after the other.

    Raises:
        StoreUnavailable: the database failed; nothing was written.
    """
    with telling(name), engine.connect() as plain:
        connection = plain.execution_options(**{_FOR_WRITING: True})
        with connection.begin():
            if engine.dialect.name == "postgresql":
                # One writer at a time, as in SQLite: no deadlocks, and runs keep their order.
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
            yield connection


@contextmanager
def reading(engine: Engine, name: str) -> Iterator[Connection]:
    """A connection that reads the current content.

    Raises:
        StoreUnavailable: the database failed.
    """
    with telling(name), engine.connect() as connection:
        yield connection


@contextmanager
def telling(name: str) -> Iterator[None]:
    """A block in which failures of the database become a StoreUnavailable."""
    try:
        yield
    except SQLAlchemyError as error:
        why = str(getattr(error, "orig", None) or error).strip().split("\n")[0]
        raise StoreUnavailable(
            f"the run store {name}: {why}; nothing was half-written; try again when it is back"
        ) from error


def _sqlite(path: Path) -> Engine:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and _head(path) not in (b"", b"SQLite format 3\0"):
            raise InvalidInput(f"{path}: is not a run store: it is no SQLite database")
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
        # A writer locks at once. SQLite refuses to turn a reader into a writer while others write.
        writes = connection.get_execution_options().get(_FOR_WRITING)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", begin)
    return engine


def _log_ahead(connection: Any) -> None:
    """Switch to write-ahead logging, with which readers do not block a writer.

    If several processes open a new file, SQLite lets one of them switch and tells the others at
    once that the file is locked, whatever their timeout. So the others try again.
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


def _postgresql(place: str) -> tuple[Engine, str]:
    try:
        url = make_url(place)
    except (ArgumentError, ValueError) as error:
        raise InvalidInput(f"this is not the URL of a database: {error}") from None
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    try:
        engine = create_engine(url, pool_pre_ping=True)
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"a run store in PostgreSQL needs {error.name}: pip install 'wavecast[postgres]'"
        ) from error
    return engine, url.render_as_string(hide_password=True)
