"""Files: shipped data, the user's folders, TOML, atomic writes, and tables that grow by rows."""

from __future__ import annotations

import csv
import errno
import io
import os
import secrets
import shutil
import stat
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from wavecast.errors import InvalidInput
from wavecast.reading import LARGEST_SETTINGS_BYTES, read_bytes, read_settings, refuse_irregular

Row = TypeVar("Row")

_DATA = Path(__file__).parent / "data"


def shipped(name: str) -> Path:
    """The path of a file or folder that ships with the package, below `data/`."""
    return _DATA / name


def shipped_toml(name: str) -> dict[str, Any]:
    """The content of a TOML file that ships with the package, below `data/`."""
    return tomllib.loads(shipped(name).read_text(encoding="utf-8"))


def config_folder() -> Path:
    """The folder of the user's device files and host files."""
    windows = os.environ.get("APPDATA") if sys.platform == "win32" else None
    return _user_folder("XDG_CONFIG_HOME", windows, ".config")


def data_folder() -> Path:
    """The folder of the user's store of runs."""
    windows = os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else None
    return _user_folder("XDG_DATA_HOME", windows, ".local/share")


def cache_folder() -> Path:
    """The folder of cached results."""
    return _user_folder("XDG_CACHE_HOME", None, ".cache")


def _user_folder(variable: str, windows: str | None, usual: str) -> Path:
    if chosen := os.environ.get(variable) or windows:
        return Path(chosen) / "wavecast"
    try:
        return Path.home() / usual / "wavecast"
    except RuntimeError:  # in a container the user may have no home folder
        return Path(usual) / "wavecast"


def read_toml(path: Path, most_bytes: int = LARGEST_SETTINGS_BYTES) -> dict[str, Any]:
    """The content of a TOML file, which may have `most_bytes` at most.

    Raises:
        InvalidInput: the file cannot be read or is not TOML. The message does not name the path;
            the caller adds it.
    """
    return toml_table(read_settings(path, most_bytes))


def toml_table(text: str) -> dict[str, Any]:
    """The content of a text in TOML.

    Raises:
        InvalidInput: it is not TOML.
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOML errors, and numbers of 5000 digits
        raise InvalidInput(f"is not TOML: {error}") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A context with a draft file, which replaces `path` when the context ends without an error.

    Until then, and after an error, the file at `path` is unchanged. The new file has the
    permissions of the old one. Where `path` is a link, the file that it leads to is replaced. A
    device or a pipe cannot be replaced: it gets the content of the draft.

    Raises:
        OSError: the file cannot be written, or may not be.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "a path holds no null characters")
    target = Path(os.path.realpath(path))
    mode = target.stat().st_mode if target.exists() else None
    if mode is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    special = mode is not None and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
    folder = Path(tempfile.gettempdir()) if special else target.parent
    draft = folder / f".wavecast.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        yield draft
        if special:
            with target.open("wb") as pipe:
                pipe.write(draft.read_bytes())
            return
        _to_disk(draft)
        if mode is not None:
            draft.chmod(stat.S_IMODE(mode))
        draft.replace(target)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _to_disk(path: Path) -> None:
    """Wait until a file is on the disk: some disks say only then that they are full."""
    file = os.open(path, os.O_RDWR)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file completely or not at all. Text that is not valid Unicode is escaped.

    Raises:
        InvalidInput: the file cannot be written. An existing file is unchanged.
    """
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    with refusing_unwritable(path), replacing(path) as draft:
        draft.write_bytes(data)


@contextmanager
def refusing_unwritable(path: Path) -> Iterator[None]:
    """A context that writes a file, in which an OSError becomes an InvalidInput naming it."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise InvalidInput(f"cannot write {path}: {reason}; choose another place") from None
    except UnicodeEncodeError as error:
        raise InvalidInput(f"cannot write {path}: {error.object!r} is not Unicode text") from None


def remove_folder(top: Path) -> None:
    """Remove a folder that a stranger has filled, as far as that is possible.

    Its folders may be nested deeper than Python's stack can be, and may be closed to their owner.
    """
    folders = [top]
    for folder in folders:
        inner: list[os.DirEntry[str]] = []
        with suppress(OSError), os.scandir(folder) as entries:
            inner = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        for entry in inner:
            with suppress(OSError):
                Path(entry).chmod(stat.S_IRWXU)  # else it can be neither moved nor listed
                folders.append(Path(entry).rename(top / f"flat-{len(folders)}"))
    shutil.rmtree(top, ignore_errors=True)


def toml_text(table: Mapping[str, Any], comment: Iterable[str] = ()) -> str:
    """A table as TOML, after lines of comment. Keys whose value is None are left out."""
    import tomli_w

    head = "".join(f"# {line}".rstrip() + "\n" for line in comment)
    return head + tomli_w.dumps(_without_none(table))


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
        if value is not None
    }


def write_checked(path: Path, text: str, read: Callable[[Path], object]) -> None:
    """Write a file completely, and only if `read` accepts it; else an existing file is kept.

    Raises:
        InvalidInput: the file cannot be written. An existing file is unchanged.
    """
    with refusing_unwritable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as draft:
            draft.write_text(text, encoding="utf-8")
            read(draft)


@contextmanager
def appending(path: Path) -> Iterator[int]:
    """A context with a file opened for appending, locked until the context or the process ends.

    Raises:
        InvalidInput: the file cannot be written, or another process holds the lock.
    """
    import fcntl  # does not exist on Windows, where everything except campaigns works

    with refusing_unwritable(path):
        if "\0" in str(path):
            raise OSError(errno.EINVAL, "a path holds no null characters")
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        refuse_irregular(os.fstat(file).st_mode, prefix=f"{path} ")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput(
                f"{path}: another process is writing this file; wait for it, or choose another file"
            ) from None
        yield file
    finally:
        if is_new and not os.fstat(file).st_size:
            with suppress(OSError):
                path.unlink()
        os.close(file)


def append(file: int, line: bytes) -> None:
    """Append one line in a single write, so that a killed process leaves at most one torn line.

    Raises:
        OSError: the disk is full, for example. The file is then as before.
    """
    size = os.fstat(file).st_size
    try:
        written = os.write(file, line)
        if written != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        with suppress(OSError):
            os.ftruncate(file, size)
        raise


def csv_line(values: Iterable[str]) -> bytes:
    """The values as one line of CSV; line ends within a value become spaces."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(
        value.replace("\n", " ").replace("\r", " ") for value in values
    )
    return text.getvalue().encode()


@dataclass(frozen=True)
class GrowingTable(Generic[Row]):
    """A CSV file that grows row by row, so that an interrupted campaign can be continued.

    A killed writer leaves at most one torn line at the end. Readers ignore it, and the next writer
    removes it.
    """

    what: str
    """The name of the rows in messages: "suite results"."""
    columns: tuple[str, ...]
    """The names of the columns, in order."""
    to_texts: Callable[[Row], Mapping[str, str]]
    """A function that gives the texts of a row by column."""
    from_texts: Callable[[Mapping[str, str]], Row]
    """The inverse function. It raises ValueError, KeyError or InvalidInput for wrong texts."""
    earlier: tuple[tuple[str, ...], ...] = ()
    """The columns of files of earlier versions: still read, but not continued."""

    def read(self, path: Path) -> tuple[Row, ...]:
        """The rows of a file, in the order in which they were written.

        Raises:
            InvalidInput: the file cannot be read or has other rows; says which line and why.
        """
        return self._rows(path, read_bytes(path, prefix=f"cannot read {path}: it "))

    def write(self, path: Path, rows: Iterable[Row]) -> None:
        """Write rows into a new file; one that exists is replaced."""
        texts = map(self.to_texts, rows)
        lines = (csv_line(row[name] for name in self.columns) for row in texts)
        write_whole(path, b"".join([csv_line(self.columns), *lines]))

    def _rows(self, path: Path, content: bytes) -> tuple[Row, ...]:
        # A writer that was killed may have left only a part of the header.
        header, columns = csv_line(self.columns), self.columns
        for names in self.earlier:
            if content.startswith(csv_line(names)):
                header, columns = csv_line(names), names
        if not content.startswith(header) and not header.startswith(content):
            raise InvalidInput(
                f"{path} has no {self.what}: its first line does not name their columns; "
                "choose another file"
            )
        # An incomplete last line may hold any bytes, so it is cut off before decoding.
        whole = content[: content.rfind(b"\n") + 1].decode(errors="replace")
        # No value contains a line end, so a damaged line does not affect the others.
        lines = whole.split("\n")[:-1]
        return tuple(
            self._row(line, columns, f"{path}: line {n}") for n, line in enumerate(lines[1:], 2)
        )

    def _row(self, line: str, columns: tuple[str, ...], where: str) -> Row:
        try:
            values = next(csv.reader([line]), [])
            return self.from_texts(dict(zip(columns, values, strict=True)))
        except (KeyError, ValueError, csv.Error, InvalidInput) as error:
            raise InvalidInput(f"{where} is not a row of {self.what}: {error}") from None

    @contextmanager
    def growing(
        self, path: Path, check: Callable[[Sequence[Row]], object]
    ) -> Iterator[tuple[tuple[Row, ...], Callable[[Row], None]]]:
        """A context with the rows of a file and a function that appends one.

        Args:
            path: the file. It is created if missing, and locked for other writers meanwhile.
            check: a function that raises InvalidInput if rows should not be added to these. A file
                that is refused is unchanged.
        """
        with appending(path) as file:
            content = read_bytes(path, prefix=f"cannot read {path}: it ")
            rows = self._rows(path, content)
            if any(content.startswith(csv_line(names)) for names in self.earlier):
                raise InvalidInput(
                    f"{path} is from an earlier wavecast, whose {self.what} have fewer columns; it "
                    "can be read, but not continued: choose another file"
                )
            check(rows)
            whole_bytes = content.rfind(b"\n") + 1
            with refusing_unwritable(path):
                if whole_bytes:
                    os.ftruncate(file, whole_bytes)
                else:
                    append(file, csv_line(self.columns)[len(content) :])

            def add(row: Row) -> None:
                texts = self.to_texts(row)
                with refusing_unwritable(path):
                    append(file, csv_line(texts[name] for name in self.columns))

            yield rows, add
