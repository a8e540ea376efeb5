"""Files that only grow, by whole lines: a killed writer leaves at most one torn line at the end."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from wavecast.errors import InvalidInput


@contextmanager
def appending(path: Path) -> Iterator[int]:
    """The file, open for appending by nobody else; the lock ends with the process."""
    import fcntl  # not on Windows, where everything but collecting works

    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput(f"{path}: another process is writing this file") from None
        yield file
    finally:
        os.close(file)


def append(file: int, line: bytes) -> None:
    """Write one whole line in one go."""
    written = os.write(file, line)
    if written != len(line):
        raise OSError(f"only {written} of {len(line)} bytes were written; is the disk full?")


def line_of(values: Iterable[str]) -> bytes:
    """The values as a line of CSV; what they hold of line ends becomes blanks."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(
        value.replace("\n", " ").replace("\r", " ") for value in values
    )
    return text.getvalue().encode()
