"""What a server keeps: results in SQLite, uploaded files and traces in folders, all bounded."""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import threading
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from wavecast.errors import InvalidInput, StoreUnavailable
from wavecast.server.guard import ServerLimits
from wavecast.traces.kept import Recent

_Value = TypeVar("_Value")
_LOG = logging.getLogger("wavecast.server")
_TABLE = """
CREATE TABLE IF NOT EXISTS checked_results (
    name TEXT PRIMARY KEY,
    body BLOB NOT NULL,
    checksum BLOB NOT NULL,
    saved INTEGER NOT NULL DEFAULT 0,
    used REAL NOT NULL
)
"""
_INDEX = "CREATE INDEX IF NOT EXISTS by_use_checked ON checked_results (saved, used)"
_PUT = """
INSERT INTO checked_results (name, body, checksum, used) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE
SET body = excluded.body, checksum = excluded.checksum, used = excluded.used
"""
_LARGEST_RESULT_BYTES = 64 << 20
"""What a stored result may unpack to: the file of the store may have been exchanged."""


def recent_results(most_bytes: int) -> Recent[bytes]:
    """The results used last, in memory, up to a number of bytes."""
    return Recent(most_bytes, lambda name, body: len(name) + len(body))


class ResultStore:
    """Results by name, in a file that survives the server.

    Every result is kept until room is needed. Those that somebody saved are forgotten last.
    """

    def __init__(self, folder: Path, limits: ServerLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._recent = recent_results(limits.cached_bytes)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._connection = _opened(folder / "results.sqlite")
        except (OSError, sqlite3.Error) as error:
            raise StoreUnavailable(
                f"results cannot be kept in {folder}: {error}; choose another --folder"
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def recent(self, name: str) -> bytes | None:
        """A result that is in memory; does not wait for the disk."""
        return self._recent.get(name)

    def get(self, name: str) -> bytes | None:
        """A result, or None if there is none of that name, or no longer.

        What was changed on the disk is not a result: it is computed again.
        """
        with self._lock:
            try:
                row = self._connection.execute(
                    "SELECT body, checksum FROM checked_results WHERE name = ?", (name,)
                ).fetchone()
                if row is None:
                    return None
                body = _unpacked(name, *row)
            except (sqlite3.Error, zlib.error, TypeError) as error:
                _LOG.warning("the result %s is damaged, and taken as absent: %s", name, error)
                return None
            # A full disk can still be read.
            with suppress(sqlite3.Error), self._connection as connection:
                connection.execute(
                    "UPDATE checked_results SET used = ? WHERE name = ?", (time.time(), name)
                )
            self._recent.put(name, body)
            return body

    def put(self, name: str, body: bytes) -> None:
        """Keep a result.

        Raises:
            StoreUnavailable: the disk is full, for example.
        """
        row = (name, zlib.compress(body, 1), _checksum(name, body), time.time())
        with self._lock:
            try:
                with self._connection as connection:
                    connection.execute(_PUT, row)
                    self._forget(connection)
            except sqlite3.Error as error:
                raise StoreUnavailable(f"the result cannot be kept: {error}") from error
            self._recent.put(name, body)

    def save(self, names: list[str]) -> None:
        """Mark results as saved: they are forgotten last.

        Raises:
            StoreUnavailable: the file cannot be written.
        """
        with self._lock:
            try:
                with self._connection as connection:
                    connection.executemany(
                        "UPDATE checked_results SET saved = 1 WHERE name = ?",
                        [(name,) for name in names],
                    )
            except sqlite3.Error as error:
                raise StoreUnavailable(f"the result cannot be saved: {error}") from error

    def _forget(self, connection: sqlite3.Connection) -> None:
        """Remove the longest unused results, those that nobody saved first, until there is room."""
        (total,) = connection.execute("SELECT total(length(body)) FROM checked_results").fetchone()
        excess = total - self._limits.results_bytes
        if excess <= 0:
            return
        # A tenth more than needed, so that this is not done for every result.
        excess += self._limits.results_bytes / 10
        rows = connection.execute(
            "SELECT name, length(body) FROM checked_results ORDER BY saved, used"
        )
        gone = []
        for name, size in rows:
            if excess <= 0:
                break
            gone.append((name,))
            excess -= size
        connection.executemany("DELETE FROM checked_results WHERE name = ?", gone)


def make_folder(folder: Path) -> None:
    """Make a folder of the server, if there is none.

    Raises:
        StoreUnavailable: it cannot be made; a file of that name is there, for example.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(
            f"cannot make the folder {folder}: {error.strerror}; remove what is in the way, or "
            "choose another --folder"
        ) from error


def _opened(path: Path) -> sqlite3.Connection:
    """The file of results; what is no such file, or is damaged, is put aside and begun anew."""
    try:
        return _prepared(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and not _is_damaged(path):
            raise  # it is locked, or cannot be written
        aside = path.with_name(f"{path.name}.damaged")
        _LOG.warning("%s is damaged (%s); it is now %s", path.name, error, aside.name)
        path.replace(aside)
        for rest in ("-wal", "-shm"):
            path.with_name(path.name + rest).unlink(missing_ok=True)
        return _prepared(path)


def _prepared(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=10, check_same_thread=False)
    try:
        with connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("DROP TABLE IF EXISTS results")  # of 0.1: it had no checksums
            connection.execute(_TABLE)
            connection.execute(_INDEX)
            connection.execute("SELECT name, body, checksum, saved, used FROM checked_results")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _is_damaged(path: Path) -> bool:
    """Whether a file that can be read is not a database with our table."""
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            rows = connection.execute("PRAGMA table_info(checked_results)").fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        return not isinstance(error, sqlite3.OperationalError)
    columns = {column[1] for column in rows}
    return bool(columns) and not columns >= {"name", "body", "checksum", "saved", "used"}


def _checksum(name: str, body: bytes) -> bytes:
    """The digest of a result and of its name, so that one result cannot pass for another."""
    return hashlib.sha256(name.encode() + b"\0" + body).digest()


def _unpacked(name: str, body: bytes, checksum: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    content = unpacking.decompress(body, _LARGEST_RESULT_BYTES)
    if unpacking.unconsumed_tail:
        raise zlib.error("larger than any result")
    if _checksum(name, content) != checksum:
        raise zlib.error("its checksum differs")
    return content


@dataclass(frozen=True)
class FileStore:
    """Files by name in a folder, up to a number of bytes; the longest unused ones go first."""

    folder: Path
    most_bytes: int

    def __post_init__(self) -> None:
        make_folder(self.folder)

    def path(self, name: str) -> Path | None:
        """The file of that name, marked as used now; None if there is none."""
        for path in (self.folder / f"{name}.json.gz", self.folder / f"{name}.json"):
            with suppress(OSError):
                os.utime(path)
                return path
        return None

    def adopt(self, draft: Path, name: str) -> Path:
        """Keep a finished file of this folder under a name, and make room for it.

        Raises:
            InvalidInput: it is larger than all files together may be.
        """
        if draft.stat().st_size > self.most_bytes:
            raise InvalidInput("the file is larger than this server keeps")
        with draft.open("rb") as file:
            is_packed = file.read(2) == b"\x1f\x8b"
        place = self.folder / f"{name}{'.json.gz' if is_packed else '.json'}"
        draft.replace(place)
        self.forget(keep=place)
        return place

    def forget(self, keep: Path | None = None) -> None:
        """Remove the longest unused files until there is room; also what a killed server left."""
        files = []
        for path in self._paths():
            with suppress(OSError):
                status = path.stat()
                if path.suffix == ".part" and status.st_mtime < time.time() - 3600:
                    path.unlink()
                elif path.suffix != ".part" and path != keep:
                    files.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in files) + (keep.stat().st_size if keep else 0)
        for _, size, path in sorted(files):
            if total <= self.most_bytes:
                break
            with suppress(OSError):
                path.unlink()
                total -= size

    def _paths(self) -> list[Path]:
        """The files; the folder is made again if somebody removed it."""
        make_folder(self.folder)
        with suppress(OSError):
            return list(self.folder.iterdir())
        return []
