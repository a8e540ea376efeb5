"""The database of a run store: SQLite in a file, or PostgreSQL at a URL."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from wavecast.errors import InvalidInput, MissingExtra, StoreUnavailable
from wavecast.files import data_folder
from wavecast.runs.store.sqlite_file import FOR_WRITING, WAIT_S, engine_of, is_writable, reason

_FORM = "postgresql://USER:PASSWORD@HOST/DATABASE"
_CONNECT_S = 10
"""How many seconds a server has to answer, unless the URL says connect_timeout."""
_LOCK = 0x77617665  # "wave": the number of the lock that a writer to PostgreSQL holds


def default_place() -> Path:
    """The path of the default store: a file in the user's data folder."""
    return data_folder() / "runs.sqlite"


def connect(
    place: str | os.PathLike[str] | None,
    read_only: bool = False,
    told: Callable[[str], None] = lambda line: None,
) -> tuple[Engine, str]:
    """An engine for a place, and the name of the place without its password.

    Args:
        place: a file or a URL; None for the user's own store.
        read_only: whether nothing will be written. A missing file is then refused, not created.
        told: takes a line that says for what the process waits.

    Raises:
        InvalidInput: the place cannot be a store.
        MissingExtra: the driver of the database is not installed.
    """
    named = os.fspath(place or os.environ.get("WAVECAST_RUNS") or default_place())
    if "\0" in named:
        raise InvalidInput("the path of a run store has a NUL character; choose another path")
    if re.match(r"postgres(ql)?(\+[^:/]*)?://", named):
        return _postgresql(named)
    if "://" in named and not named.startswith("sqlite:///"):
        scheme = named.split("://")[0]
        raise InvalidInput(f"a run store is a file or a postgresql:// URL, not {scheme}://...")
    path = Path(named.removeprefix("sqlite:///"))
    try:
        path = path.expanduser()
    except RuntimeError as error:  # ~somebody, who is not a user here
        raise InvalidInput(f"{path}: cannot be a run store ({error})") from None
    return engine_of(path, read_only, told), str(path)


@contextmanager
def writing(
    engine: Engine, name: str, told: Callable[[str], None] = lambda line: None
) -> Iterator[Connection]:
    """A transaction that writes everything or nothing, one writer after the other.

    Raises:
        StoreUnavailable: the database failed, or cannot be written; nothing was written.
    """
    with telling(name), engine.connect() as plain:
        connection = plain.execution_options(**{FOR_WRITING: True})
        with connection.begin():
            if engine.dialect.name == "postgresql":
                _wait_for_other_writers(connection, name, told)
            yield connection


def _wait_for_other_writers(connection: Connection, name: str, told: Callable[[str], None]) -> None:
    """One writer to PostgreSQL at a time, as in SQLite: no deadlocks, and runs keep their order."""
    if connection.execute(text(f"SELECT pg_try_advisory_xact_lock({_LOCK})")).scalar_one():
        return
    told(f"another process is writing the run store {name}; waiting up to {WAIT_S:g} s")
    connection.execute(text(f"SET LOCAL lock_timeout = {round(WAIT_S * 1000)}"))
    connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))


def can_write(engine: Engine) -> bool:
    """Whether a store seems writable, without trying to write."""
    return engine.dialect.name != "sqlite" or is_writable(Path(engine.url.database or ""))


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
    except (SQLAlchemyError, sqlite3.Error, UnicodeDecodeError) as error:
        cause = getattr(error, "orig", None) or error
        why = (str(cause).strip() or type(cause).__name__).split("\n")[0]
        told = reason(cause) or f"{why}; nothing was half-written; try again when it is back"
        raise StoreUnavailable(f"the run store {name}: {told}") from error


def _postgresql(place: str) -> tuple[Engine, str]:
    try:
        url = make_url(place)
    except (ArgumentError, ValueError):  # the text of the error may hold parts of a password
        raise InvalidInput(
            f"this is not the URL of a database: write {_FORM}, with %40 for an @ in a password "
            "and %2F for a /"
        ) from None
    driver = url.drivername.partition("+")[2] or "psycopg"
    if driver != "psycopg":
        raise InvalidInput(
            f'unknown database driver "{driver}"; a run store uses psycopg: write {_FORM}'
        )
    patience = {} if "connect_timeout" in url.query else {"connect_timeout": _CONNECT_S}
    try:
        engine = create_engine(
            url.set(drivername="postgresql+psycopg"), pool_pre_ping=True, connect_args=patience
        )
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"a run store in PostgreSQL needs {error.name}: pip install 'wavecast[postgres]'"
        ) from error
    return engine, engine.url.render_as_string(hide_password=True)
