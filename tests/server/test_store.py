from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from wavecast.errors import InvalidInput, StoreUnavailable
from wavecast.server.guard import ServerLimits
from wavecast.server.store import FileStore, ResultStore, recent_results


def body(number: int) -> bytes:
    return os.urandom(1000) + str(number).encode()  # does not compress


def test_results_survive_the_server(tmp_path: Path) -> None:
    first = ResultStore(tmp_path, ServerLimits())
    first.put("a", b"answer")
    first.close()
    again = ResultStore(tmp_path, ServerLimits())
    assert again.recent("a") is None
    assert again.get("a") == b"answer"
    assert again.recent("a") == b"answer"
    assert again.get("b") is None


def test_the_longest_unused_results_are_forgotten_and_saved_ones_last(tmp_path: Path) -> None:
    store = ResultStore(tmp_path, ServerLimits(results_bytes=10_000))
    store.put("saved", body(0))
    store.save(["saved"])
    for number in range(30):
        store.put(str(number), body(number))
    assert store.get("saved") is not None
    assert store.get("29") is not None
    assert store.get("0") is None
    kept = sum(store.get(str(number)) is not None for number in range(30))
    assert 5 <= kept <= 10
    for number in range(100, 130):
        store.put(str(number), body(number))
        store.save([str(number)])
    assert store.get("saved") is None  # even saved ones are bounded
    size = sqlite3.connect(tmp_path / "results.sqlite").execute(
        "SELECT sum(length(body)) FROM checked_results"
    )
    assert size.fetchone()[0] <= 10_000


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE checked_results SET body = x'00ff'",
        "UPDATE checked_results SET body = 'text'",
        "UPDATE checked_results SET body = 7",
        "UPDATE checked_results SET body = (SELECT body FROM checked_results WHERE name = 'b')",
        "UPDATE checked_results SET checksum = x''",
        "UPDATE checked_results SET name = 'a' || name",
        "DELETE FROM checked_results",
    ],
)
def test_a_damaged_result_is_one_that_is_not_there(tmp_path: Path, change: str) -> None:
    store = ResultStore(tmp_path, ServerLimits())
    store.put("a", b"answer")
    store.put("b", b"CHANGED")
    store.close()
    with sqlite3.connect(tmp_path / "results.sqlite") as connection:
        connection.execute(change)
    again = ResultStore(tmp_path, ServerLimits())
    assert again.get("a") is None
    again.put("a", b"answer")
    assert again.get("a") == b"answer"


def test_a_full_disk_keeps_no_result_from_being_read(tmp_path: Path) -> None:
    store = ResultStore(tmp_path, ServerLimits())
    store.put("a", b"answer")
    again = ResultStore(tmp_path, ServerLimits())
    again._connection.execute("PRAGMA query_only = ON")  # as on a full disk, no row changes
    assert again.get("a") == b"answer"
    with pytest.raises(StoreUnavailable):
        again.put("b", b"answer")


@pytest.mark.parametrize(
    "content", [b"", b"no database", b"SQLite format 3\0" + bytes(4096), bytes(100)]
)
def test_a_damaged_file_is_put_aside(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "results.sqlite").write_bytes(content)
    store = ResultStore(tmp_path, ServerLimits())
    store.put("a", b"answer")
    assert store.get("a") == b"answer"


@pytest.mark.parametrize(
    "table",
    ["CREATE TABLE checked_results (name TEXT)", "CREATE VIEW checked_results AS SELECT 1 AS name"],
)
def test_a_file_with_another_table_is_put_aside(tmp_path: Path, table: str) -> None:
    with sqlite3.connect(tmp_path / "results.sqlite") as connection:
        connection.execute(table)
    store = ResultStore(tmp_path, ServerLimits())
    store.put("a", b"answer")
    assert store.get("a") == b"answer"
    assert (tmp_path / "results.sqlite.damaged").exists()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="--folder"):
        ResultStore(tmp_path / "file", ServerLimits())
    with pytest.raises(StoreUnavailable, match="folder"):
        FileStore(tmp_path / "file", 1)


def test_what_is_in_memory_is_bounded() -> None:
    recent = recent_results(100)
    for number in range(50):
        recent.put(f"{number:02}", b"x" * 18)
    assert [recent.get(f"{number:02}") is not None for number in range(50)] == [False] * 45 + [
        True
    ] * 5
    recent.put("large", b"x" * 1000)
    assert recent.get("large") is None


def test_files_are_bounded_and_the_longest_unused_go_first(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 2500)
    for number, name in enumerate("abc"):
        draft = tmp_path / "draft.part"
        draft.write_bytes(b"{" + b" " * 999)
        place = store.adopt(draft, name)
        os.utime(place, (number, number))
    assert store.path("a") is None
    assert store.path("b") == tmp_path / "b.json"  # and is used now
    os.utime(tmp_path / "c.json", (5, 5))
    draft.write_bytes(b"\x1f\x8b" + b" " * 998)
    assert store.adopt(draft, "d") == tmp_path / "d.json.gz"
    assert store.path("c") is None
    assert store.path("b") is not None
    draft.write_bytes(b" " * 3000)
    with pytest.raises(InvalidInput, match="larger"):
        store.adopt(draft, "e")


def test_what_a_killed_server_left_is_removed(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 1000)
    old, new = tmp_path / "old.part", tmp_path / "new.part"
    old.write_text("x")
    new.write_text("x")
    os.utime(old, (0, 0))
    store.forget()
    assert not old.exists()
    assert new.exists()
