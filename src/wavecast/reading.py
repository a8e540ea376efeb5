"""The one way in which files of unknown origin are opened, and the budget of each.

A file may be hostile: a pipe that never ends, a megabyte that unpacks to gigabytes, a million empty
lists. Each reader opens files here, so each has the same limits. They are on bytes and on values,
not on seconds, so that a slow machine reads the same files as a fast one; the seconds follow from
them (docs/concepts/limits.md, "The budget of a file").

Messages are predicates, such as "is not UTF-8 text". The caller gives the text that comes before.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import re
import stat
import zlib
from pathlib import Path
from typing import Any, NoReturn

from wavecast.errors import InvalidInput, prefixed

SMALL_FILE_BYTES = 10_000_000
"""A file up to this size has the budgets below. That of a larger profile grows with its size."""

LARGEST_UNPACKED_BYTES = 1 << 27
"""The most bytes that a compressed file may unpack to, and that a text read at once may have."""

LARGEST_VALUES_BYTES = 1 << 28
"""The most memory that the values of a JSON text may need (`values_bytes`)."""

LARGEST_SETTINGS_BYTES = 1 << 18
"""The largest file of settings (TOML) that is read; real ones have a few kilobytes."""

_VALUE_BYTES = {",": 64, ":": 64, "[": 112, "{": 240}
"""The memory of a value, a field, a list and an object, by the character that shows it."""

_NARROW, _WIDE = 2, 8
"""The memory of a character, once in the text and once in a value. One that is not ASCII makes all
characters of its string four times as wide."""

_MOST_DOTS = 200
"""The most dots in a line of TOML: its parser takes time with the square of a dotted key."""

_KINDS = (
    (stat.S_ISDIR, "is a folder"),
    (stat.S_ISFIFO, "is a pipe; write its content to a file first"),
    (stat.S_ISSOCK, "is a socket"),
    (stat.S_ISCHR, "is a device"),
    (stat.S_ISBLK, "is a device"),
    (stat.S_ISLNK, "is a link"),
)
_FLAGS = (os.O_RDONLY, *(getattr(os, f"O_{n}", 0) for n in ("NONBLOCK", "CLOEXEC", "BINARY")))
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_MAGIC = b"\x1f\x8b"
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


class MissingFile(InvalidInput):
    """There is no such file."""


def open_file(
    path: Path,
    *,
    packed: bool | None = False,
    most_bytes: int | None = None,
    prefix: str = "",
    follow: bool = True,
) -> io.BufferedReader:
    """A file, open for reading bytes. Whatever goes wrong while reading it is an InvalidInput.

    Args:
        path: the file. Folders, pipes, sockets and devices are refused, and never waited for.
        packed: whether to unpack gzip. None if the first bytes of the file decide.
        most_bytes: how many bytes may be read, after unpacking. None for a plain file of any size.
        prefix: the beginning of messages: "cannot read the trace x.trace: it ".
        follow: whether the path may be a link.

    Raises:
        MissingFile: there is no such file.
        InvalidInput: it cannot be opened; says why.
    """
    with prefixed(prefix):
        file = _opened(path, follow)
        if packed is None:
            packed = _is_packed(file)
    return io.BufferedReader(_BoundedFile(file, packed, most_bytes, prefix), 1 << 16)


def kind_of(path: Path) -> str | None:
    """Whether there is a "file" or a "folder" at a path, or "other"; None if there is nothing.

    A name that no file can have (too long, a zero byte, half a character) is that of nothing.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return None
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"


def _is_packed(file: io.FileIO) -> bool:
    try:
        first = file.read(2)
        file.seek(0)
    except OSError as error:
        file.close()
        _refuse_system(error)
    return first == _MAGIC


def _opened(path: Path, follow: bool) -> io.FileIO:
    """The file, unbuffered. It is opened without waiting: opening a pipe waits for its writer."""
    try:
        refuse_irregular(path.stat(follow_symlinks=follow).st_mode)
        number = os.open(path, sum(_FLAGS) | (0 if follow else _NO_LINK))
        try:
            refuse_irregular(os.fstat(number).st_mode)  # it may have been replaced meanwhile
            return io.FileIO(number)
        except BaseException:
            os.close(number)
            raise
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFile("cannot be read (there is no such file)") from None
    except OSError as error:
        _refuse_system(error)
    except ValueError:  # a zero byte, or half of a pair of surrogates
        raise InvalidInput("cannot be read (no file can have this name)") from None


def refuse_irregular(mode: int, *, prefix: str = "") -> None:
    """Raise InvalidInput if the mode of a file says that it is a folder, a pipe or a device."""
    for is_kind, what in _KINDS:
        if is_kind(mode):
            raise InvalidInput(f"{prefix}cannot be read (it {what})")


def _refuse_system(error: OSError) -> NoReturn:
    raise InvalidInput(f"cannot be read ({error.strerror or error})") from None


class _BoundedFile(io.RawIOBase):
    """A file of which no more than a number of bytes is read; unpacks it if it is packed."""

    def __init__(self, file: io.FileIO, packed: bool, most_bytes: int | None, prefix: str) -> None:
        self._file = file
        self._content = gzip.GzipFile(fileobj=file, mode="rb") if packed else file
        self._packed, self._most, self._left = packed, most_bytes, most_bytes
        self._prefix = prefix

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return not self._packed and self._most is None

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            self._content.close()
            self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        with prefixed(self._prefix):
            return self._read_into(buffer)

    def _read_into(self, buffer: Any) -> int:
        try:
            count = self._content.readinto(buffer) or 0
        except gzip.BadGzipFile as error:
            raise InvalidInput(f"cannot be read as gzip ({error})") from None
        except OSError as error:
            _refuse_system(error)
        except (EOFError, zlib.error):
            raise InvalidInput("is truncated or damaged; copy it again") from None
        if self._left is not None:
            self._left -= count
            if self._left < 0:
                unpacked = " when unpacked" if self._packed else ""
                raise InvalidInput(f"is larger than {_shown(self._most or 0)}{unpacked}")
        return count


def read_bytes(
    path: Path,
    most_bytes: int = LARGEST_UNPACKED_BYTES,
    *,
    packed: bool = False,
    prefix: str = "",
    follow: bool = True,
) -> bytes:
    """The content of a file, which may have `most_bytes` at most (see `open_file`).

    Raises:
        MissingFile: there is no such file.
        InvalidInput: it cannot be read, or is larger; says why.
    """
    how: Any = {"packed": packed, "most_bytes": most_bytes, "follow": follow}
    with open_file(path, **how, prefix=prefix) as file:
        return file.read()


def read_text(
    path: Path,
    most_bytes: int = LARGEST_UNPACKED_BYTES,
    *,
    prefix: str = "",
    follow: bool = True,
) -> str:
    """The content of a file of UTF-8 text, which may have `most_bytes` at most (see `open_file`).

    Raises:
        MissingFile: there is no such file.
        InvalidInput: it cannot be read, is larger, or is not UTF-8; says why.
    """
    try:
        return read_bytes(path, most_bytes, prefix=prefix, follow=follow).decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{prefix}is not UTF-8 text") from None


def read_settings(path: Path, most_bytes: int = LARGEST_SETTINGS_BYTES) -> str:
    """The text of a TOML file, in whose lines the parser cannot be lost for minutes.

    Raises:
        MissingFile: there is no such file.
        InvalidInput: it cannot be read, or is no file of settings; says why.
    """
    text = read_text(path, most_bytes)
    if any(line.count(".") > _MOST_DOTS for line in text.splitlines()):
        raise InvalidInput(f"has a line with more than {_MOST_DOTS} dots")
    return text


def size_factor(path: Path) -> float:
    """How many times the budget of a small file a file has: 1 up to `SMALL_FILE_BYTES`."""
    try:
        return max(1.0, path.stat().st_size / SMALL_FILE_BYTES)
    except (OSError, ValueError):
        return 1.0  # opening it will say what is wrong


def values_bytes(text: str) -> int:
    """An upper estimate of the memory that the values of a JSON text need as Python's objects.

    It counts characters, also those within strings, so it is never too low; and it is fast.
    """
    characters = len(text) * (_WIDE if "\\u" in text or not text.isascii() else _NARROW)
    return characters + sum(text.count(mark) * size for mark, size in _VALUE_BYTES.items())


def refuse_many_values(text: str, most_bytes: int = LARGEST_VALUES_BYTES) -> None:
    """Raise InvalidInput if the values of a JSON text may need more memory than that."""
    if values_bytes(text) > most_bytes:
        raise InvalidInput(
            f"has too many values: they may need more than {_shown(most_bytes)} of memory"
        )


def parse_json(
    text: str | bytes, *, constants: bool = False, unique: bool = False, prefix: str = ""
) -> Any:
    """The value of a JSON text, within the budget.

    Args:
        text: the text; bytes must be UTF-8.
        constants: accept NaN and Infinity, which are not JSON.
        unique: refuse an object that has a field twice. The last one counts otherwise.
        prefix: the beginning of messages.

    Raises:
        InvalidInput: it is not JSON, or too large; says where and why.
    """
    with prefixed(prefix):
        return _parsed(text, constants, unique)


def _parsed(text: str | bytes, constants: bool, unique: bool) -> Any:
    plain: dict[str, Any] = (
        {} if constants else {"parse_constant": _refuse_constant, "parse_float": _finite}
    )
    try:
        words = _decoded(text) if isinstance(text, bytes) else text
        refuse_many_values(words)
        value = json.loads(words, object_pairs_hook=_unique if unique else None, **plain)
        if _HALF_PAIR.search(words):
            _refuse_half_pairs(value)
    except UnicodeDecodeError:
        raise InvalidInput("is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise InvalidInput(f"is not JSON: {error}") from None
    except RecursionError:
        raise InvalidInput("is not readable JSON: its lists are nested too deeply") from None
    except ValueError as error:  # also whole numbers of thousands of digits
        raise InvalidInput(f"is not readable JSON: {error}") from None
    return value


def _decoded(text: bytes) -> str:
    if not text.isascii() and len(text) * _WIDE > LARGEST_VALUES_BYTES:
        raise InvalidInput(f"is larger than {_shown(LARGEST_VALUES_BYTES // _WIDE)}")
    return text.decode()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not allowed")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field is given twice")
    return fields


def _refuse_half_pairs(value: Any) -> None:
    """Raise ValueError if a text in a value has half of a surrogate pair: it cannot be written."""
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            if whole_text(item) != item:
                raise ValueError("a text has half of a surrogate pair")
        elif isinstance(item, dict):
            rest += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            rest += item


def whole_text(text: str) -> str:
    """The text, with `?` for each half of a surrogate pair, which no file or screen accepts."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _shown(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"
