"""Files: shipped data, the user's folders, TOML, files written whole, and files that grow."""

from __future__ import annotations

import csv
import io
import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from wavecast.errors import InvalidInput

Row = TypeVar("Row")

_DATA = Path(__file__).parent / "data"


def shipped(name: str) -> Path:
    """The path of a file or folder that ships with the package, below `data/`."""
    return _DATA / name


def shipped_toml(name: str) -> dict[str, Any]:
    """The tables of a TOML file that ships with the package, below `data/`."""
    return tomllib.loads(shipped(name).read_text(encoding="utf-8"))


def config_folder() -> Path:
    """Where the user's own devices and host are kept."""
    windows = os.environ.get("APPDATA") if sys.platform == "win32" else None
    return _user_folder("XDG_CONFIG_HOME", windows, ".config")


def data_folder() -> Path:
    """Where the user's store of runs is kept."""
    windows = os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else None
    return _user_folder("XDG_DATA_HOME", windows, ".local/share")


def cache_folder() -> Path:
    """Where results are kept that can be made again."""
    return _user_folder("XDG_CACHE_HOME", None, ".cache")


def _user_folder(variable: str, windows: str | None, usual: str) -> Path:
    if chosen := os.environ.get(variable) or windows:
        return Path(chosen) / "wavecast"
    try:
        return Path.home() / usual / "wavecast"
    except RuntimeError:  # the user of a container may have no home
        return Path(usual) / "wavecast"


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        InvalidInput: the file cannot be read or is not TOML. The message does not name the path,
            so that a caller can put it in front.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InvalidInput("is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:  # TOML errors, and numbers of 5000 digits
        raise InvalidInput(f"is not TOML: {error}") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A draft beside `path` that takes its place when the block ends without an error.

    Until then, and after an error, `path` keeps what it had.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        InvalidInput: the file cannot be written. What was there before is unchanged.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        with replacing(path) as draft:
            draft.write_bytes(data)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}; choose another place") from None


def write_checked(path: Path, text: str, read: Callable[[Path], object]) -> None:
    """Write a file whole, and only if `read` accepts it, so that a good file is never lost."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")
        read(draft)


@contextmanager
def appending(path: Path) -> Iterator[int]:
    """A file opened for appending, locked until the block or the process ends.

    Raises:
        InvalidInput: another process holds the lock.
    """
    import fcntl  # missing on Windows, where everything but campaigns works

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
    """Append one whole line in one write, so that a killed process leaves at most one torn line."""
    written = os.write(file, line)
    if written != len(line):
        raise OSError(f"only {written} of {len(line)} bytes were written; is the disk full?")


def csv_line(values: Iterable[str]) -> bytes:
    """The values as one line of CSV; line ends within a value become blanks."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(
        value.replace("\n", " ").replace("\r", " ") for value in values
    )
    return text.getvalue().encode()


@dataclass(frozen=True)
class GrowingTable(Generic[Row]):
    """A CSV file that grows by whole rows, so that a campaign can go on where it was interrupted.

    A killed writer leaves at most one torn line at the end. Readers ignore it, and the next writer
    cuts it off.
    """

    what: str
    """What the rows are, for messages: "suite results"."""
    columns: tuple[str, ...]
    to_texts: Callable[[Row], Mapping[str, str]]
    """A row as texts, by column."""
    from_texts: Callable[[Mapping[str, str]], Row]
    """The row that texts describe; a ValueError, KeyError or InvalidInput says what is wrong."""

    def read(self, path: Path) -> tuple[Row, ...]:
        """The rows of a file, in the order in which they were written.

        Raises:
            InvalidInput: the file cannot be read or is of something else; says which line and why.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
        return self._rows(path, content)

    def _rows(self, path: Path, content: bytes) -> tuple[Row, ...]:
        # A writer that was killed may have left only a part of the header.
        header = csv_line(self.columns)
        if not content.startswith(header) and not header.startswith(content):
            raise InvalidInput(
                f"{path} has no {self.what}: its first line does not name their columns; "
                "choose another file"
            )
        # An incomplete last line may hold any bytes, so it is cut off before decoding.
        whole = content[: content.rfind(b"\n") + 1].decode(errors="replace")
        # No value contains a line end, so a damaged line does not affect the others.
        lines = whole.split("\n")[:-1]
        return tuple(self._row(line, f"{path}: line {n}") for n, line in enumerate(lines[1:], 2))

    def _row(self, line: str, where: str) -> Row:
        try:
            values = next(csv.reader([line]), [])
            return self.from_texts(dict(zip(self.columns, values, strict=True)))
        except (KeyError, ValueError, InvalidInput) as error:
            raise InvalidInput(f"{where} is not a row of {self.what}: {error}") from None

    @contextmanager
    def growing(
        self, path: Path, check: Callable[[Sequence[Row]], object]
    ) -> Iterator[tuple[tuple[Row, ...], Callable[[Row], None]]]:
        """The rows that a file has, and a function that appends one.

        Args:
            path: made when missing. Nobody else can write it meanwhile.
            check: raises InvalidInput if these rows should not be continued. A file that is
                refused stays as it is.
        """
        with appending(path) as file:
            content = path.read_bytes()
            rows = self._rows(path, content)
            check(rows)
            whole_bytes = content.rfind(b"\n") + 1
            os.ftruncate(file, whole_bytes)
            if not whole_bytes:
                append(file, csv_line(self.columns))

            def add(row: Row) -> None:
                texts = self.to_texts(row)
                append(file, csv_line(texts[name] for name in self.columns))

            yield rows, add
