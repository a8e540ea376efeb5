"""The tables of a run store. A store of an older version is upgraded when it is opened.

Version 1: runs.
Version 2: the inner modules of a run; imports, so that an interrupted one continues.
Version 3: the iterations and times of the whole run.
Version 4: campaigns, with the results of their tasks and the attempts that failed.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Engine,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    inspect,
    select,
    text,
)

from wavecast.errors import InvalidInput
from wavecast.runs.store.database import reading, writing

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

    Args:
        engine: the database.
        name: its name in messages.
        to: the version.
        told: takes a line that says for what the process waits.

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
