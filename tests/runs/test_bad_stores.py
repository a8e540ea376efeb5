"""Stores that cannot be written, are damaged, locked or of others: one line, and at once."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from wavecast.errors import InvalidInput, MissingExtra, StoreUnavailable, WavecastError
from wavecast.runs.run import Run
from wavecast.runs.store import database
from wavecast.runs.store.database import connect
from wavecast.runs.store.store import RunStore, add_file

RUNS = [Run("AlexNet", 32, n, n / 7, gpu="m6000", source=f"a.csv:{n}") for n in range(1, 301)]
NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may enter, unlike those of pytest."""
    made = Path(tempfile.mkdtemp(prefix="wavecast-stores-"))
    made.chmod(0o755)
    yield made
    for path in (made, *made.rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(made)


@pytest.fixture
def as_nobody() -> Iterator[None]:
    """Root may write everything, so a test as root acts as another user."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    yield
    os.seteuid(0)


@pytest.fixture
def store(folder: Path) -> Path:
    place = folder / "runs.sqlite"
    with RunStore(place) as opened:
        opened.add(RUNS)
    return place


@pytest.fixture
def read_only(store: Path, request: pytest.FixtureRequest) -> Path:
    store.chmod(0o444)
    store.parent.chmod(0o555)
    request.getfixturevalue("as_nobody")
    return store


@pytest.mark.parametrize("asked", [True, False])
def test_a_store_that_may_not_be_written_is_read(read_only: Path, asked: bool) -> None:
    with RunStore(read_only, read_only=asked) as opened:
        assert list(opened.runs()) == RUNS
        assert opened.count(model="AlexNet") == len(RUNS)
    assert [path.name for path in read_only.parent.iterdir()] == ["runs.sqlite"]


def test_to_write_a_store_that_may_not_be_written_is_refused_at_once(
    read_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_reading(*_: object, **__: object) -> None:
        raise AssertionError("the log was read first")

    monkeypatch.setattr("wavecast.runs.store.database.time.sleep", no_reading)
    monkeypatch.setattr("wavecast.runs.store.store.iterate_runs", no_reading)
    with RunStore(read_only) as opened:
        for write in (lambda: opened.add(RUNS), lambda: add_file(opened, Path("a.log"))):
            with pytest.raises(StoreUnavailable, match="can be read but not written") as refused:
                write()
            assert "\n" not in str(refused.value)
            assert "try again" not in str(refused.value)


def test_a_read_only_file_in_a_folder_of_others_gets_nothing_beside_it(
    store: Path, request: pytest.FixtureRequest
) -> None:
    store.chmod(0o444)
    store.parent.chmod(0o777)
    request.getfixturevalue("as_nobody")
    with RunStore(store) as opened:
        assert opened.count() == len(RUNS)
        next(opened.runs())
    assert [path.name for path in store.parent.iterdir()] == ["runs.sqlite"]


@pytest.mark.parametrize("version", [1, 2])
def test_a_read_only_store_of_an_older_version_is_read(
    folder: Path, version: int, request: pytest.FixtureRequest
) -> None:
    place = folder / "runs.sqlite"
    engine, name = connect(place)
    database.migrate(engine, name, to=version)
    engine.dispose()
    with closing(sqlite3.connect(place)) as connection, connection:
        connection.execute(
            "INSERT INTO wavecast_runs VALUES (1, 'a', 'AlexNet', 32, 1, 0.5, 'training', '', 1, "
            f"'', '', ''{', NULL' * (version > 1)})"
        )
    place.chmod(0o444)
    folder.chmod(0o555)
    request.getfixturevalue("as_nobody")
    with RunStore(place) as opened:
        assert list(opened.runs()) == [Run("AlexNet", 32, 1, 0.5)]


def test_a_log_that_cannot_be_applied_is_told_and_not_left_out(
    store: Path, request: pytest.FixtureRequest
) -> None:
    with RunStore(store) as opened:
        opened.add([Run("VGG", 1, 1, 1.0)])
        shutil.copy(f"{store}-wal", store.parent / "kept")
    shutil.move(store.parent / "kept", f"{store}-wal")
    store.chmod(0o444)
    store.parent.chmod(0o555)
    request.getfixturevalue("as_nobody")
    with pytest.raises(StoreUnavailable, match="a log of an interrupted writer beside it"):
        RunStore(store)


def use(place: Path) -> None:
    """Read everything, and write."""
    with RunStore(place, read_only=True) as opened:
        list(opened.runs())
        opened.arrays()
        opened.count()
    with RunStore(place) as opened:
        opened.add([Run("VGG", 1, 1, 1.0)])


def damage(content: bytes, way: str, draw: random.Random) -> bytes:
    if way == "cut":
        return content[: draw.randrange(1, len(content))]
    if way == "random head":
        return content[:16] + draw.randbytes(84) + content[100:]
    changed = bytearray(content)
    if way == "page":
        start = 4096 * draw.randrange(len(content) // 4096)
        changed[start : start + 4096] = draw.randbytes(4096)
    else:
        for _ in range(draw.randrange(1, 40)):
            changed[draw.randrange(100, len(changed))] = draw.randrange(256)
    return bytes(changed)


@pytest.mark.parametrize("way", ["cut", "page", "bytes", "random head"])
def test_a_damaged_store_works_or_is_refused_in_one_line(
    store: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_waiting(_: float) -> None:
        raise AssertionError("waits for a store that stays damaged")

    monkeypatch.setattr("wavecast.runs.store.database.time.sleep", no_waiting)
    content, draw = store.read_bytes(), random.Random(0)
    messages: list[str] = []
    for _ in range(25):
        store.write_bytes(damage(content, way, draw))
        try:
            use(store)
        except WavecastError as error:
            messages.append(str(error))
        for beside in store.parent.glob("runs.sqlite-*"):
            beside.unlink()
    assert len(messages) > 3
    assert all(str(store) in message and "\n" not in message for message in messages)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DROP TABLE wavecast_runs", "not those of a run store .no such table"),
        ("ALTER TABLE wavecast_runs DROP COLUMN seconds", "not those of a run store .no such col"),
        ("UPDATE wavecast_schema SET version = 'x'", "damaged: its version is 'x'"),
        ("UPDATE wavecast_schema SET version = 99", "tables of version 99; this wavecast knows"),
        ("UPDATE wavecast_runs SET seconds = 'x'", "is damaged .it has an impossible run: seconds"),
        ("UPDATE wavecast_runs SET gpu = x'ff'", "is damaged .it has an impossible run: gpu"),
        ("CREATE VIEW v AS SELECT 1", 'has "v", which is computed'),
        ("ALTER TABLE wavecast_imports ADD COLUMN g AS (1)", 'has "g", which is computed'),
    ],
)
def test_wrong_tables_are_refused(store: Path, statement: str, message: str) -> None:
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute(statement)
    with pytest.raises(WavecastError, match=message) as refused:
        use(store)
    assert "\n" not in str(refused.value)


def test_the_database_of_another_program_stays_as_it_is(folder: Path) -> None:
    place = folder / "places.sqlite"
    with closing(sqlite3.connect(place)) as connection, connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    before = place.read_bytes()
    for read_only in (True, False):
        with pytest.raises(InvalidInput, match="a SQLite database of another program"):
            RunStore(place, read_only=read_only)
    with closing(sqlite3.connect(place)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("bookmarks",)]
    assert len(place.read_bytes()) == len(before)


@pytest.mark.parametrize("content", [b"x", b"text\n" * 3, b"text\n" * 3000])
def test_a_text_file_stays_as_it_is(folder: Path, content: bytes) -> None:
    place = folder / "notes.txt"
    place.write_bytes(content)
    for read_only in (True, False):
        with pytest.raises(WavecastError, match=r"notes\.txt"):
            RunStore(place, read_only=read_only)
        assert place.read_bytes() == content


def test_a_pipe_is_no_store(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(InvalidInput, match="it is no regular file"):
        RunStore(folder / "pipe")


def test_a_locked_store_waits_and_says_so(store: Path) -> None:
    lines: list[str] = []
    with closing(sqlite3.connect(store, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        def unlock(line: str) -> None:
            lines.append(line)
            other.execute("ROLLBACK")

        with RunStore(store, told=unlock) as opened:
            assert opened.add([Run("VGG", 1, 1, 1.0)]).new == 1
    assert lines == [f"another process is writing the run store {store}; waiting up to 60 s"]


def test_a_store_that_stays_locked_is_told(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "WAIT_S", 0.05)
    with closing(sqlite3.connect(store, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with (
            RunStore(store) as opened,
            pytest.raises(StoreUnavailable, match=r"kept it locked for 0\.05 s"),
        ):
            opened.add(RUNS)
        assert len(list(RunStore(store, read_only=True).runs())) == len(RUNS)  # reading goes on


@pytest.mark.parametrize(
    "place",
    [
        *("postgresql+nothing://me@host/runs", "postgresql+asyncpg://me@host/runs"),
        *("postgres+a-b://x", "sqlite+aio:///x.sqlite", "sqlite://x"),
        *(
            "oracle://me@host/x",
            "postgresql://me:pass@host:pa/runs",
            "://",
            "a\0b",
            "~nobody-at-all/x",
        ),
    ],
)
def test_an_unknown_kind_of_store_is_one_line(place: str) -> None:
    with pytest.raises((InvalidInput, MissingExtra)) as refused:
        RunStore(place)
    assert "\n" not in str(refused.value)
    assert "pa'" not in str(refused.value)


def test_a_recorder_of_trainings_refuses_a_read_only_store_at_its_start(read_only: Path) -> None:
    from wavecast.integrations.training_watch import TrainingRecorder

    with pytest.raises(StoreUnavailable, match="can be read but not written"):
        TrainingRecorder(read_only, "a training")


def test_numbers_of_damaged_runs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    with RunStore(path) as store:
        store.add(RUNS[:3])
        assert (store.arrays()["seconds"] > 0).all()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE wavecast_runs SET seconds = -1.0")
    with RunStore(path) as store, pytest.raises(StoreUnavailable, match="seconds of a run is not"):
        store.arrays()
