"""Fifty damages of a server's folder: what was damaged is absent, and never a wrong answer."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import made
import pytest
from fuzz.mutation import mutate_bytes

from wavecast.errors import WavecastError
from wavecast.server.guard import ServerLimits
from wavecast.server.store import FileStore, ResultStore
from wavecast.server.traced import TraceShelf, questioned_step
from wavecast.traces.step import Trace

RESULTS = {f"result{number}": f"answer {number} ".encode() * 200 for number in range(3)}
UPLOADS = [made.step(samples=samples) for samples in (8, 16)]
NO_MORE = {"batch": None, "precision": None, "label": None}


def _database(folder: Path, random: Random, change: Callable[[bytes], bytes]) -> None:
    path = folder / "results.sqlite"
    path.write_bytes(change(path.read_bytes()))


def _flip(folder: Path, random: Random) -> None:
    _database(folder, random, lambda data: mutate_bytes(data, random))


def _overwrite_page(folder: Path, random: Random) -> None:
    def change(data: bytes) -> bytes:
        begin = 512 * random.randrange(len(data) // 512)
        return data[:begin] + random.randbytes(512) + data[begin + 512 :]

    _database(folder, random, change)


def _cut(folder: Path, random: Random) -> None:
    _database(folder, random, lambda data: data[: random.randrange(len(data))])


def _rows(folder: Path, random: Random) -> None:
    changes = (
        "UPDATE checked_results SET body = x'00ff' WHERE name = 'result1'",
        "UPDATE checked_results SET body = (SELECT body FROM checked_results LIMIT 1)",
        "UPDATE checked_results SET name = name || 'x'",
        "UPDATE checked_results SET checksum = zeroblob(32)",
        "UPDATE checked_results SET used = 'never'",
        "DELETE FROM checked_results WHERE name = 'result2'",
        "DROP TABLE checked_results",
        "ALTER TABLE checked_results RENAME TO results",
    )
    with closing(sqlite3.connect(folder / "results.sqlite")) as connection, connection:
        connection.execute(random.choice(changes))


def _journal(folder: Path, random: Random) -> None:
    for end in ("-wal", "-shm", "-journal"):
        (folder / f"results.sqlite{end}").write_bytes(random.randbytes(random.randrange(9000)))


def _file(folder: Path, random: Random) -> None:
    kept = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".sqlite"]
    path = random.choice(sorted(kept))
    choice = random.randrange(4)
    if choice == 0:
        path.unlink()
    elif choice == 1:
        path.write_bytes(b"")
    elif choice == 2:
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(mutate_bytes(path.read_bytes(), random))


def _exchange(folder: Path, random: Random) -> None:
    first, second = sorted((folder / "files").iterdir())
    first.write_bytes(second.read_bytes())


DAMAGES = (_flip, _overwrite_page, _cut, _rows, _rows, _journal, _file, _file, _exchange)


def _uploaded(folder: Path) -> dict[str, Trace]:
    """Uploaded traces, by the names that their content has."""
    files, names = FileStore(folder / "files", 1 << 20), {}
    for trace in UPLOADS:
        draft = folder / "draft.json.gz"
        trace.save(draft)
        name = hashlib.sha256(draft.read_bytes()).hexdigest()
        files.adopt(draft, name)
        names[name] = trace
    return names


def _filled(folder: Path) -> dict[str, Trace]:
    """A folder as a server leaves it: results, uploaded files and a shared trace."""
    store = ResultStore(folder, ServerLimits())
    for name, body in RESULTS.items():
        store.put(name, body)
    store.close()
    (folder / "traces").mkdir()
    TraceShelf(folder / "traces").get("step", made.step, share=True)
    return _uploaded(folder)


def _asked(files: FileStore, name: str) -> Trace | None:
    """The step of an uploaded file; None if it is taken as absent or refused."""
    path = files.path(name)
    if path is None:
        return None
    with suppress(WavecastError):
        return questioned_step(NO_MORE, [], path, TraceShelf()).traces.traces[0]
    return None


@pytest.mark.parametrize("number", range(50))
def test_a_damaged_folder_gives_right_answers_or_none(number: int, tmp_path: Path) -> None:
    uploads = _filled(tmp_path)
    DAMAGES[number % len(DAMAGES)](tmp_path, Random(f"damage/{number}"))
    with suppress(WavecastError):  # one line that says that the folder cannot be used
        store = ResultStore(tmp_path, ServerLimits())
        answers = {name: store.get(name) for name in RESULTS}
        assert all(answers[name] in (None, body) for name, body in RESULTS.items())
        store.put("result0", RESULTS["result0"])
        assert store.get("result0") == RESULTS["result0"]
        store.close()
    files = FileStore(tmp_path / "files", 1 << 20)
    for name, trace in uploads.items():
        assert _asked(files, name) in (None, trace)
    other = made.step(samples=64)
    shared = TraceShelf(tmp_path / "traces").get("step", lambda: other, share=True)
    assert shared in (made.step(), other)
