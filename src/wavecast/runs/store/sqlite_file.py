"""A run store in a file of SQLite: how it is opened, for whom, and what is refused.

The file is never opened by other means than SQLite: if a process closes a file that it also has
open in SQLite, the operating system drops SQLite's locks on it.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event

from wavecast.errors import InvalidInput, StoreUnavailable

WAIT_S = 60.0
"""How many seconds a process waits for others that have locked the file."""
FOR_WRITING = "wavecast_writes"
"""The execution option of a connection that will write."""
_ASK_AGAIN_S = 0.02
_SMALLEST_BYTES = 512
_WAIT = f"PRAGMA busy_timeout={round(WAIT_S * 1000)}"
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)


def engine_of(path: Path, read_only: bool, told: Callable[[str], None]) -> Engine:
    """An engine for a file of SQLite.

    Args:
        path: the file. A missing one is created, unless it is only read.
        read_only: whether nothing will be written.
        told: takes a line that says for what the process waits.

    Raises:
        InvalidInput: the path cannot be a store.
    """
    _refuse_impossible(path, read_only)
    reads = read_only or not is_writable(path)

    def prepare(connection: Any, _: object) -> None:
        connection.isolation_level = None  # we begin transactions ourselves
        _read_first_page(connection, path, told)
        if reads:
            connection.execute("PRAGMA query_only=1")
        else:
            # Readers do not block a writer then. If several processes open a new file, SQLite lets
            # one of them switch, and tells the others at once that the file is locked.
            _patiently(lambda: connection.execute("PRAGMA journal_mode=WAL"), path, told)
            connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA cache_size=-65536")
        connection.execute(_WAIT)

    def begin(connection: Connection) -> None:
        # A writer locks at once. SQLite refuses to turn a reader into a writer while others write.
        if not connection.get_execution_options().get(FOR_WRITING):
            connection.exec_driver_sql("BEGIN")
            return
        if read_only:
            raise StoreUnavailable(f"the run store {path} was opened to be read; nothing is added")
        if reads or not is_writable(path):
            raise StoreUnavailable(
                f"the run store {path} can be read but not written: the file or its folder is "
                "read-only; choose another store, or change who may write to it"
            )
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.execute("PRAGMA busy_timeout=0")  # we wait ourselves, and say so
        _patiently(lambda: driver.execute("BEGIN IMMEDIATE"), path, told)
        driver.execute(_WAIT)

    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        creator=lambda: _open(path, reads),
        # A file that we may only read is opened anew each time: others may begin to write it.
        **({"poolclass": NullPool} if reads else {}),
    )
    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", begin)
    return engine


def is_writable(path: Path) -> bool:
    """Whether SQLite may write the file and its log beside it, or create them."""
    effective = os.access in os.supports_effective_ids
    places = (path, path.absolute().parent)
    return all(os.access(p, os.W_OK, effective_ids=effective) for p in places if p.exists())


def reason(error: BaseException) -> str | None:
    """What a failure of SQLite means and what to do; None for other databases."""
    if not isinstance(error, sqlite3.Error | UnicodeDecodeError):
        return None
    why, code = str(error), getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _LOCKED:
        return f"another process kept it locked for {WAIT_S:g} s ({why}); try again when it is done"
    if code in _DAMAGED or "decode" in why:
        return f"is damaged ({why}); restore it from a copy, or add its logs to a new store"
    if code == sqlite3.SQLITE_READONLY:
        return f"can be read but not written ({why}); choose another store"
    if code == sqlite3.SQLITE_FULL:
        return f"{why}; nothing was half-written; make room and try again"
    if why.startswith("no such"):
        return f"its tables are not those of a run store ({why}); choose another store"
    return None


def _refuse_impossible(path: Path, read_only: bool) -> None:
    """Refuse what cannot be a store, and make the folder of a new one."""
    try:
        there = path.stat()
    except FileNotFoundError:
        if read_only:
            raise InvalidInput(
                f"there is no run store {path}; wavecast runs add makes one"
            ) from None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"{path}: cannot be a run store ({error.strerror})") from None
        return
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be a run store ({error.strerror})") from None
    if not stat.S_ISREG(there.st_mode):
        raise InvalidInput(f"{path}: cannot be a run store (it is no regular file)")
    if 0 < there.st_size < _SMALLEST_BYTES:  # SQLite would take it for an empty file
        raise InvalidInput(f"{path}: is not a run store: it is no SQLite database")


def _open(path: Path, reads: bool) -> sqlite3.Connection:
    """A connection that needs no permission to write if the file is only read."""
    mode = "rwc"
    if reads:
        mode = "rw"
        if not is_writable(path):
            mode = _mode_without_writing(path)
    place = f"file:{quote(os.fsencode(path.absolute()))}?mode={mode}"
    return sqlite3.connect(place, timeout=0, uri=True, check_same_thread=False)


def _mode_without_writing(path: Path) -> str:
    """The mode for a file beside which no log can be created."""
    sizes = {end: _size(Path(f"{path}{end}")) for end in ("-wal", "-shm", "-journal")}
    if sizes["-wal"] and sizes["-shm"]:
        return "ro"  # another process has it open; its log is read, too
    if sizes["-wal"] or sizes["-journal"]:
        raise StoreUnavailable(
            f"the run store {path} has a log of an interrupted writer beside it, which cannot be "
            "applied because the file or its folder is read-only; copy both to another folder"
        )
    return "ro&immutable=1"


def _read_first_page(
    connection: sqlite3.Connection, path: Path, told: Callable[[str], None]
) -> None:
    try:
        _patiently(lambda: connection.execute("PRAGMA schema_version"), path, told)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
            raise
        raise InvalidInput(f"{path}: is not a run store: it is no SQLite database") from None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _patiently(run: Callable[[], object], path: Path, told: Callable[[str], None]) -> None:
    """Run a statement again until others have unlocked the file, at most `WAIT_S` seconds."""
    until, waits = time.monotonic() + WAIT_S, False
    while True:
        try:
            run()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _LOCKED or time.monotonic() > until:
                raise
            if not waits:
                told(f"another process is writing the run store {path}; waiting up to {WAIT_S:g} s")
            waits = True
            time.sleep(_ASK_AGAIN_S)
        else:
            return
