"""The run store, the same tests for SQLite and for a real PostgreSQL server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from postgres_server import Server
from run_samples import LOGS
from sqlalchemy import Connection

import wavecast
from wavecast.errors import InvalidInput, MissingExtra, StoreUnavailable
from wavecast.runs.readers.timing import Given
from wavecast.runs.run import Imported, Run, check, identity
from wavecast.runs.store import database
from wavecast.runs.store import store as store_module
from wavecast.runs.store.database import connect, default_place, reading
from wavecast.runs.store.store import Added, RunStore, add_file, insert

RUN = Run("AlexNet", 32, 100, 2.5, gpu="m6000", source="a.csv:2")


def made(count: int, start: int = 0) -> Iterator[Run]:
    for number in range(start, start + count):
        yield Run("AlexNet", 32, number + 1, 0.5 + number / 7, source=f"made:{number}")


def write_table(file: Path, count: int) -> Path:
    rows = "".join(f"{r.model},{r.batch},{r.iterations},{r.seconds!r}\n" for r in made(count))
    file.write_text("model,batch,iterations,seconds\n" + rows)
    return file


def test_what_was_added_comes_back_in_its_order(place: str) -> None:
    runs = [
        RUN,
        replace(RUN, phase="testing", gpus=4, precision="bf16", inner_modules=7),
        replace(RUN, model="réseau 網", seconds=1e-300, batch=2**62, source=""),
        replace(RUN, seconds=0.1 + 0.2, framework="caffe"),
    ]
    with RunStore(place) as store:
        assert store.add(runs) == Added(4, 0)
        assert list(store.runs()) == runs
    with RunStore(place) as store:  # another time
        assert list(store.runs()) == runs
        assert list(store.runs(last=2)) == runs[2:]
        assert list(store.runs(phase="testing")) == runs[1:2]
        assert list(store.runs(model="réseau 網", gpu="m6000")) == runs[2:3]
        assert store.count() == 4
        assert store.count(model="AlexNet", phase="training") == 2


def test_a_run_added_twice_is_there_once(place: str) -> None:
    with RunStore(place) as store:
        assert store.add([RUN, RUN]) == Added(1, 1)
        assert store.add([replace(RUN, source="elsewhere"), replace(RUN, batch=64)]) == Added(1, 1)
        assert [run.source for run in store.runs()] == ["a.csv:2", "a.csv:2"]
        assert store.add([]) == Added(0, 0)


def test_a_run_that_cannot_be_is_refused_and_nothing_is_added(place: str) -> None:
    with RunStore(place) as store:
        for wrong in (
            *(replace(RUN, seconds=s) for s in (0.0, -1.0, float("nan"), float("inf"))),
            *(replace(RUN, batch=b) for b in (0, 2**63, 1.5, True)),  # type: ignore[arg-type]
            *(replace(RUN, model=m) for m in ("", "  ", "a\0b", "\ud800", "x" * 1001)),
            replace(RUN, phase="sleeping"),
        ):
            with pytest.raises(InvalidInput, match=r"^a\.csv:2: "):
                store.add([replace(RUN, batch=99), wrong])
        assert store.count() == 0


def test_numbers_come_as_arrays(place: str) -> None:
    with RunStore(place) as store:
        store.add([RUN, replace(RUN, inner_modules=3, seconds=5)])
        arrays = store.arrays(("seconds", "inner_modules"), model="AlexNet")
        np.testing.assert_array_equal(arrays["seconds"], [2.5, 5.0])
        np.testing.assert_array_equal(arrays["inner_modules"], [np.nan, 3.0])
        assert store.arrays(model="VGG")["batch"].shape == (0,)
        with pytest.raises(InvalidInput, match="model: not a number of a run"):
            store.arrays(("model",))


def test_a_file_imported_twice_doubles_nothing(place: str, tmp_path: Path) -> None:
    file = LOGS["caffe"].write(tmp_path)
    copy = LOGS["caffe"].write(tmp_path / "copy")
    with RunStore(place) as store:
        assert add_file(store, file) == Imported(str(file), 4, 4)
        before = list(store.runs())
        assert add_file(store, file) == Imported(str(file), 4, 0, 4)
        assert add_file(store, copy).new == 0
        assert list(store.runs()) == before
        told: list[str] = []
        assert add_file(store, file, Given(batch=512), told=told.append).new == 1
        assert told == [
            f"{file}: was imported before with other runs; these stay in the store, too"
        ]


def test_a_table_that_grew_adds_what_is_new(place: str, tmp_path: Path) -> None:
    file = write_table(tmp_path / "runs.csv", 5)
    with RunStore(place) as store:
        assert add_file(store, file).new == 5
        write_table(file, 8)
        assert add_file(store, file, told=lambda _: None).new == 3
        assert store.count() == 8


def test_a_table_that_is_wrong_at_its_end_changes_nothing(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "BATCH", 10)
    file = write_table(tmp_path / "runs.csv", 95)
    file.write_text(file.read_text() + "AlexNet,32,1,nan\n")
    with RunStore(place) as store:
        with pytest.raises(InvalidInput, match=r"runs.csv: line 97: seconds is 'nan'"):
            add_file(store, file)
        assert store.count() == 0


def test_what_is_exported_is_imported_as_it_was(place: str, tmp_path: Path) -> None:
    from wavecast.runs.store.store import export

    runs = [RUN, replace(RUN, inner_modules=7, model='a,"b"', seconds=1 / 3), *made(20)]
    for name in ("out.csv", "out.jsonl"):
        with RunStore(place) as store, RunStore(tmp_path / f"{name}.sqlite") as other:
            store.add(runs)
            assert export(store.runs(), tmp_path / name) == len(runs)
            assert add_file(other, tmp_path / name).new == len(runs)
            assert list(other.runs()) == list(store.runs()) == runs
            assert add_file(store, tmp_path / name).new == 0


def interrupt(after: int) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        if done >= after:
            raise KeyboardInterrupt

    return progress


def test_an_import_that_was_interrupted_goes_on(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wavecast.runs.store.store.BATCH", 10)
    file = write_table(tmp_path / "runs.csv", 95)
    with RunStore(place) as store:
        with pytest.raises(KeyboardInterrupt):
            add_file(store, file, progress=interrupt(40))
        assert store.count() == 40
        assert add_file(store, file) == Imported(str(file), 95, 55, resumed_at=40)
        assert [run.iterations for run in store.runs()] == list(range(1, 96))
        assert add_file(store, file) == Imported(str(file), 95, 0, resumed_at=95)


def test_a_table_that_changes_while_it_is_read_is_refused(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wavecast.runs.store.store.BATCH", 10)
    file = write_table(tmp_path / "runs.csv", 30)
    text = file.read_text()

    def change(*_: object) -> tuple[int, bool]:
        file.write_text(text.replace(",30,", ",31,"))
        return 0, False

    monkeypatch.setattr("wavecast.runs.store.store._begin", change)
    changed = pytest.raises(InvalidInput, match="changed while it was read")
    with RunStore(place) as store, changed:
        add_file(store, file)


def test_many_writers_at_once_add_each_run_once(place: str) -> None:
    code = """
import sys
from wavecast.runs.store.store import RunStore
from wavecast.runs.run import Run
place, start = sys.argv[1], int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
with RunStore(place) as store:
    for begin in range(start, start + 200, 20):
        store.add(Run("AlexNet", 32, n + 1, 0.5 + n / 7) for n in range(begin, begin + 30))
"""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", code, place, str(100 * number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    for writer in writers:  # all make the store and write at the same moment
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate()
    assert [writer.returncode for writer in writers] == [0] * 3
    with RunStore(place) as store:
        assert sorted(run.iterations for run in store.runs()) == list(range(1, 411))


def test_a_reader_sees_one_moment_while_others_write(place: str) -> None:
    with RunStore(place) as store, RunStore(place) as other:
        store.add(made(10))
        runs = store.runs()
        first = next(runs)
        other.add(made(10, start=10))
        assert len([first, *runs]) == 10
        assert store.count() == 20


def test_a_store_of_the_first_version_is_brought_up(place: str) -> None:
    engine, name = connect(place)
    database.migrate(engine, name, to=1)
    columns = (
        "id, model, batch, iterations, seconds, phase, gpu, gpus, precision, framework, source"
    )
    with engine.begin() as connection:
        assert database.version_of(connection) == 1
        connection.exec_driver_sql(
            f"INSERT INTO wavecast_runs ({columns}) VALUES ('{identity(RUN)}', 'AlexNet', 32, 100, "
            "2.5, 'training', 'm6000', 1, '', '', 'a.csv:2')"
        )
    engine.dispose()
    with RunStore(place) as store:
        assert list(store.runs()) == [RUN]
        assert store.add([RUN, replace(RUN, inner_modules=2)]) == Added(1, 1)  # identities hold
    engine, name = connect(place)
    with reading(engine, name) as connection:
        assert database.version_of(connection) == 4
    engine.dispose()


def test_a_run_that_was_stored_without_its_whole_time_gets_it(place: str) -> None:
    whole = replace(RUN, total_iterations=150, total_s=9.5, training_s=6.0, testing_s=0.5)
    with RunStore(place) as store:
        assert store.add([RUN]) == Added(1, 0)
        assert store.add([whole]) == Added(0, 1)
        assert list(store.runs()) == [whole]
        assert store.add([RUN, replace(whole, total_s=99.0)]) == Added(0, 2)
        assert list(store.runs()) == [whole]  # what is known is not overwritten
        assert store.arrays(("total_s", "total_iterations"))["total_s"].tolist() == [9.5]


def test_a_log_that_was_imported_without_its_whole_time_is_imported_again(
    place: str, tmp_path: Path
) -> None:
    file = tmp_path / "runs.csv"
    file.write_text("model,batch,iterations,seconds\nAlexNet,32,100,2.5\n")
    with RunStore(place) as store:
        assert add_file(store, file).new == 1
        file.write_text(
            "model,batch,iterations,seconds,total_iterations,total_s\nAlexNet,32,100,2.5,150,9.5\n"
        )
        assert add_file(store, file, told=lambda _: None).new == 0
        (run,) = store.runs()
    assert (run.total_iterations, run.total_s, run.testing_s) == (150, 9.5, None)


def test_a_migration_that_fails_leaves_the_store_as_it_was(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, name = connect(place)
    database.migrate(engine, name, to=1)

    def fail(connection: object) -> None:
        database._STEPS_BEFORE[1](connection)  # type: ignore[attr-defined]
        raise RuntimeError("killed")

    monkeypatch.setattr(database, "_STEPS_BEFORE", database._STEPS, raising=False)
    monkeypatch.setattr(database, "_STEPS", (database._STEPS[0], fail))
    with pytest.raises(RuntimeError, match="killed"):
        RunStore(place)
    monkeypatch.undo()
    with reading(engine, name) as connection:
        assert database.version_of(connection) == 1
    engine.dispose()
    with RunStore(place) as store:
        assert store.count() == 0


def test_the_tables_are_those_of_the_newest_version(place: str) -> None:
    from sqlalchemy import inspect

    RunStore(place).close()
    engine, _ = connect(place)
    inspector = inspect(engine)
    for table in database._TABLES:
        there = {column["name"] for column in inspector.get_columns(table.name)}
        assert there == {column.name for column in table.columns}
    assert {column.name for column in database.runs.columns} - {"id", "number"} == {
        field.name for field in fields(Run)
    }
    engine.dispose()


def test_a_server_killed_during_an_import_loses_nothing(
    postgres_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wavecast.runs.store.store.BATCH", 500)
    file = write_table(tmp_path / "runs.csv", 10_000)
    place = postgres_server.new_database()

    def insert_and_kill(connection: Connection, runs: Iterable[tuple[str, Run]]) -> int:
        count = insert(connection, runs)
        if next(iter(runs))[1].iterations > 4000:  # written, but not for good
            postgres_server.kill()
        return count

    monkeypatch.setattr("wavecast.runs.store.store.insert", insert_and_kill)
    with RunStore(place) as store:
        try:
            with pytest.raises(StoreUnavailable, match="nothing was half-written"):
                add_file(store, file)
        finally:
            postgres_server.start()
        assert store.count() == 4000
        monkeypatch.setattr("wavecast.runs.store.store.insert", insert)
        assert add_file(store, file) == Imported(str(file), 10_000, 6000, resumed_at=4000)
        assert [run.iterations for run in store.runs()] == list(range(1, 10_001))


def test_a_killed_importer_leaves_whole_batches(place: str, tmp_path: Path) -> None:
    file = write_table(tmp_path / "runs.csv", 3000)
    code = f"""
import os, signal
import wavecast.runs.store.store as imports, wavecast.runs.store.store as store
from pathlib import Path
store.BATCH = imports.BATCH = 100
def die(done, total):
    if done >= 1000:
        os.kill(os.getpid(), signal.SIGKILL)
imports.add_file(store.RunStore({place!r}), Path({str(file)!r}), progress=die)
"""
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, check=False)
    assert done.returncode == -9
    with RunStore(place) as store:
        assert store.count() == 1000
        assert add_file(store, file) == Imported(str(file), 3000, 2000, 1000)
        assert store.count() == 3000


def test_a_server_that_is_not_there_is_told_without_the_password() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(StoreUnavailable, match=r"the run store postgresql.*me:") as refused:
        RunStore("postgresql://me:secret@localhost:1/runs?connect_timeout=2")
    assert "secret" not in str(refused.value)


def test_the_store_of_the_user_is_where_data_belongs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_place() == tmp_path / "wavecast" / "runs.sqlite"
    with RunStore() as store:
        store.add([RUN])
    assert default_place().is_file()
    monkeypatch.setenv("WAVECAST_RUNS", str(tmp_path / "other.sqlite"))
    with RunStore() as store:
        assert store.count() == 0


def test_without_sqlalchemy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith(("sqlalchemy", "wavecast.runs.store."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(MissingExtra, match=r"needs SQLAlchemy: pip install 'wavecast\[runs\]'"):
        _ = wavecast.RunStore


def test_without_a_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"needs psycopg: pip install 'wavecast\[postgres\]'"):
        RunStore("postgresql://me@localhost/runs")


texts = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=20)
some_runs = st.builds(
    Run,
    model=texts.filter(bool),
    batch=st.integers(1, 2**63 - 1),
    iterations=st.integers(1, 2**63 - 1),
    seconds=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    phase=st.sampled_from(["training", "testing"]),
    gpu=texts,
    gpus=st.integers(1, 2**63 - 1),
    precision=texts,
    framework=texts,
    inner_modules=st.none() | st.integers(1, 2**63 - 1),
    source=texts,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(runs=st.lists(some_runs, max_size=5))
def test_every_run_that_can_be_is_kept_exactly(place: str, runs: list[Run]) -> None:
    with RunStore(place) as store:
        store.add(runs)
        kept = {identity(run): replace(run, source="") for run in store.runs()}
    for run in runs:
        assert check(run)
        assert kept[identity(run)] == replace(run, source="")


@given(run=some_runs, other=some_runs)
def test_identity_is_that_of_the_values(run: Run, other: Run) -> None:
    assert identity(run) == identity(replace(run, source=other.source))
    same = replace(run, source="") == replace(other, source="")
    assert (identity(run) == identity(other)) == same


def test_a_store_may_have_a_name_of_any_bytes(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"runs-\xff.sqlite")
    with RunStore(path) as store:
        store.add([Run("a", 1, 1, 1.0)])
    with RunStore(path) as store:
        assert store.count() == 1
