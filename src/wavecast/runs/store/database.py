"""The database of a run store: SQLite in a file, or PostgreSQL at a URL."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import (
    URL,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Engine,
    Index,
    Integer,
    MetaData,
    NullPool,
    String,
    Table,
    Text,
    UniqueConstraint,
    create_engine,
    event,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from wavecast.errors import InvalidInput, MissingExtra, StoreUnavailable
from wavecast.files import data_folder

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
        meaning = reason(cause) or f"{why}; nothing was half-written; try again when it is back"
        raise StoreUnavailable(f"the run store {name}: {meaning}") from error


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


# A run store in a file of SQLite: how it is opened, for whom, and what is refused.
#
# The file is never opened by other means than SQLite: if a process closes a file that it also has
# open in SQLite, the operating system drops SQLite's locks on it.


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


# The tables of a run store. A store of an older version is upgraded when it is opened.
#
# Version 1: runs. Version 2: the inner modules of a run; imports, so that an interrupted one
# continues. Version 3: the iterations and times of the whole run. Version 4: campaigns, with the
# results of their tasks and the attempts that failed.


_metadata = MetaData()
_number = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows only with this type

versions = Table("wavecast_schema", _metadata, Column("version", Integer, nullable=False))

runs = Table(
    "wavecast_runs",
    _metadata,
    Column("number", _number, primary_key=True, autoincrement=True),
    Column("id", String(32), nullable=False, unique=True),
    Column("model", Text, nullable=False),
    Column("batch", BigInteger, nullable=False),
    Column("iterations", BigInteger, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("phase", String(16), nullable=False),
    Column("gpu", Text, nullable=False),
    Column("gpus", BigInteger, nullable=False),
    Column("precision", Text, nullable=False),
    Column("framework", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("inner_modules", BigInteger),
    Column("total_iterations", BigInteger),
    Column("total_s", Double),
    Column("training_s", Double),
    Column("testing_s", Double),
    Index("wavecast_runs_by_model", "model", "gpu"),
)

imports = Table(
    "wavecast_imports",
    _metadata,
    Column("id", String(64), primary_key=True),
    Column("file", Text, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("complete", Boolean, nullable=False),
)

campaigns = Table(
    "wavecast_campaigns",
    _metadata,
    Column("name", Text, primary_key=True),
    Column("file", Text, nullable=False),
)

results = Table(
    "wavecast_results",
    _metadata,
    Column("number", _number, primary_key=True, autoincrement=True),
    Column("campaign", Text, nullable=False),
    Column("task", String(32), nullable=False),
    Column("kind", Text, nullable=False),
    Column("question", Text, nullable=False),
    Column("answer", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("ended_s", Double, nullable=False),
    UniqueConstraint("campaign", "task"),
)

failures = Table(
    "wavecast_failures",
    _metadata,
    Column("number", _number, primary_key=True, autoincrement=True),
    Column("campaign", Text, nullable=False),
    Column("task", String(32), nullable=False),
    Column("node", Text, nullable=False),
    Column("error", Text, nullable=False),
)

_TABLES = (versions, runs, imports, campaigns, results, failures)


def migrate(
    engine: Engine,
    name: str,
    to: int | None = None,
    *,
    told: Callable[[str], None] = lambda line: None,
) -> int:
    """Upgrade the tables to a version, by default the newest, in one transaction.

    Returns:
        The version that the tables have now.

    Raises:
        InvalidInput: these are no tables of a run store, or of a newer version of Wavecast.
    """
    newest = len(_STEPS)
    with reading(engine, name) as connection:
        if checked_version(connection, name) == newest:
            return newest
    with writing(engine, name, told) as connection:
        now = checked_version(connection, name)
        for step in _STEPS[now : to or newest]:
            step(connection)
        if now < (to or newest):
            connection.execute(versions.delete())
            connection.execute(versions.insert().values(version=to or newest))
    return to or newest


def checked_version(connection: Connection, name: str) -> int:
    """The version of the tables, which this Wavecast can use. 0 if there are none.

    Raises:
        InvalidInput: these are no tables of a run store, or of a newer version of Wavecast.
    """
    if connection.dialect.name == "sqlite":
        _refuse_foreign(connection, name)
    now, newest = version_of(connection), len(_STEPS)
    if type(now) is not int or now < 0:
        raise InvalidInput(f"the run store {name} is damaged: its version is {str(now)[:20]!r}")
    if now > newest:
        raise InvalidInput(
            f"the run store {name} has tables of version {now}; this wavecast knows up to "
            f"{newest}: update it"
        )
    return now


def version_of(connection: Connection) -> int:
    """The version of the tables. 0 if there are none."""
    if not inspect(connection).has_table(versions.name):
        return 0
    return connection.execute(select(versions.c.version)).scalar_one_or_none() or 0


def _refuse_foreign(connection: Connection, name: str) -> None:
    """Refuse an SQLite file of another program, or one that computes its content.

    A view, a trigger or a generated column can run for as long as its author wants.
    """
    things = connection.exec_driver_sql("SELECT type, name, sql FROM sqlite_master").all()
    tables = {thing.name for thing in things if thing.type == "table"}
    if tables and versions.name not in tables:
        raise InvalidInput(
            f"{name}: is not a run store: it is a SQLite database of another program; choose "
            "another file"
        )
    computed = [t for t in things if t.type in ("view", "trigger") or _is_virtual(t.sql)]
    for table in _TABLES:
        rows = connection.exec_driver_sql(f"PRAGMA table_xinfo({table.name})").all()
        computed += [row for row in rows if row.hidden]
    if computed:
        raise InvalidInput(
            f'{name}: is not a run store of wavecast: it has "{str(computed[0].name)[:40]}", '
            "which is computed and not stored; choose another file"
        )


def _is_virtual(statement: object) -> bool:
    return "".join(str(statement).split()[:2]).upper().startswith("CREATEVIRTUAL")


# Each upgrade is written out in SQL, because the tables above are of the newest version only.
def _numbered(connection: Connection) -> str:
    """The type of a column that numbers the rows."""
    is_server = connection.dialect.name == "postgresql"
    return "BIGSERIAL PRIMARY KEY" if is_server else "INTEGER PRIMARY KEY AUTOINCREMENT"


def _make(connection: Connection) -> None:
    number = _numbered(connection)
    connection.execute(text("CREATE TABLE wavecast_schema (version INTEGER NOT NULL)"))
    connection.execute(
        text(
            f"CREATE TABLE wavecast_runs (number {number}, id VARCHAR(32) NOT NULL UNIQUE, "
            "model TEXT NOT NULL, batch BIGINT NOT NULL, iterations BIGINT NOT NULL, "
            "seconds DOUBLE PRECISION NOT NULL, phase VARCHAR(16) NOT NULL, gpu TEXT NOT NULL, "
            "gpus BIGINT NOT NULL, precision TEXT NOT NULL, framework TEXT NOT NULL, "
            "source TEXT NOT NULL)"
        )
    )


def _add_imports(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE wavecast_runs ADD COLUMN inner_modules BIGINT"))
    connection.execute(text("CREATE INDEX wavecast_runs_by_model ON wavecast_runs (model, gpu)"))
    connection.execute(
        text(
            "CREATE TABLE wavecast_imports (id VARCHAR(64) PRIMARY KEY, file TEXT NOT NULL, "
            "rows BIGINT NOT NULL, complete BOOLEAN NOT NULL)"
        )
    )


def _add_totals(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE wavecast_runs ADD COLUMN total_iterations BIGINT"))
    for name in ("total_s", "training_s", "testing_s"):
        connection.execute(text(f"ALTER TABLE wavecast_runs ADD COLUMN {name} DOUBLE PRECISION"))


def _add_campaigns(connection: Connection) -> None:
    number = _numbered(connection)
    connection.execute(
        text("CREATE TABLE wavecast_campaigns (name TEXT PRIMARY KEY, file TEXT NOT NULL)")
    )
    connection.execute(
        text(
            f"CREATE TABLE wavecast_results (number {number}, campaign TEXT NOT NULL, "
            "task VARCHAR(32) NOT NULL, kind TEXT NOT NULL, question TEXT NOT NULL, "
            "answer TEXT NOT NULL, node TEXT NOT NULL, seconds DOUBLE PRECISION NOT NULL, "
            "ended_s DOUBLE PRECISION NOT NULL, UNIQUE (campaign, task))"
        )
    )
    connection.execute(
        text(
            f"CREATE TABLE wavecast_failures (number {number}, campaign TEXT NOT NULL, "
            "task VARCHAR(32) NOT NULL, node TEXT NOT NULL, error TEXT NOT NULL)"
        )
    )


_STEPS: tuple[Callable[[Connection], None], ...] = (
    _make,
    _add_imports,
    _add_totals,
    _add_campaigns,
)
