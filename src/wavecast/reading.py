"""How files of unknown origin are opened, the budget of each, and how their values are checked.

A file may be hostile: a pipe that never ends, a megabyte that unpacks to gigabytes, a million empty
lists. Each reader opens files here, so each has the same limits. They are on bytes and on values,
not on seconds, so that a slow machine reads the same files as a fast one; the seconds follow from
them (docs/concepts/limits.md, "The budget of a file").

Messages are predicates, such as "is not UTF-8 text". The caller gives the text that comes before.

Settings become dataclasses, whose annotations say what may stand in a file (`read_record`).
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import json
import math
import os
import re
import stat
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import (
    Annotated,
    Any,
    NamedTuple,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

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


# Settings and tables as the dataclasses that declare them.
#
# What may stand at a key follows from the annotation of its field: a `Check` where there is one, as
# in `Annotated[int, Quantity("bytes", 1e8, 1e14)]`, else the type. All messages begin with the key.


Check = Callable[[Any, str], Any]
"""Gives the value at a key, checked. Its second argument names the key in messages."""

T = TypeVar("T")

MOST = 100_000
"""No count in a file of settings is larger."""


class Key(NamedTuple):
    """The key of a field in files, where it has another name there."""

    name: str


class Quantity(NamedTuple):
    """A check of a number in a unit.

    The range catches values in a wrong unit (MHz, GB, Gb/s), the most common mistake.
    """

    unit: str
    low: float
    high: float
    whole: bool = False

    def __call__(self, value: Any, where: str) -> float:
        """The number, an int where it is a count."""
        if not is_number(value):
            raise InvalidInput(f"{where} must be a number, not {value!r}")
        if not 0 < value < math.inf:
            raise InvalidInput(f"{where} must be a positive number, not {value}")
        if not self.low <= value <= self.high:
            limits = f"{self.low:g} to {self.high:g}"
            raise InvalidInput(f"{where} = {value} is outside {limits}: the unit is {self.unit}")
        if not self.whole:
            return float(value)
        if value != int(value):
            raise InvalidInput(f"{where} must be a whole number, not {value}")
        return int(value)


@dataclass
class Sources:
    """The sources of the facts in a file, where values are `{ value = 1.0, source = "..." }`."""

    needed: bool
    """Whether each fact must have one."""
    by_key: dict[str, str]

    def value_of(self, fact: Any, where: str, what: str) -> Any:
        """The value of a fact, whose source is kept. A bare value has none."""
        table = fact if isinstance(fact, dict) else {"value": fact}
        refuse_unknown(table, ("value", "source"), what, f"{where}.")
        if "value" not in table:
            raise InvalidInput(f"{where} has no value")
        source = table.get("source", "")
        if not isinstance(source, str):
            raise InvalidInput(f"{where}.source must be a text in quotes, not {source!r}")
        if self.needed and not source.strip():
            raise InvalidInput(f"{where} has no source")
        if source:
            self.by_key[where] = source
        return table["value"]


def read_record(
    kind: type[T],
    table: Any,
    what: str,
    where: str = "",
    *,
    besides: Iterable[str] = (),
    facts: Sources | None = None,
    **known: Any,
) -> T:
    """The dataclass that a table of a file declares.

    Args:
        kind: the dataclass.
        table: the table.
        what: what the table describes, for messages: "a device".
        where: what keys begin with in messages: "node.".
        besides: keys of the table that the caller reads.
        facts: keeps the sources of facts. None if values are bare.
        known: the fields that the table does not have.

    Raises:
        InvalidInput: a key is unknown or missing, or its value is wrong; names the key.
    """
    values = read_fields(kind, table, what, where, left_out=known, besides=besides, facts=facts)
    return kind(**values, **known)


def read_fields(
    kind: type,
    table: Any,
    what: str,
    where: str = "",
    *,
    left_out: Iterable[str] = (),
    besides: Iterable[str] = (),
    facts: Sources | None = None,
    needed: bool = True,
) -> dict[str, Any]:
    """The fields of a dataclass that a table has, but for those left out (see `read_record`).

    All fields without a default must be there, if they are `needed`.
    """
    table, declared = a_table(table, where.rstrip(".")), _declared(kind, frozenset(left_out))
    refuse_unknown(table, (*(field.key for field in declared), *besides), what, where)
    by_key, values = {field.key: field for field in declared}, {}
    for key, field in by_key.items():
        if needed and field.is_needed and key not in table:
            raise InvalidInput(f"{where}{key} is missing")
    for key in (key for key in table if key in by_key):  # in the order of the file
        field, place = by_key[key], f"{where}{key}"
        value = table[key] if facts is None else facts.value_of(table[key], place, what)
        values[field.name] = field.check(value, place)
    return values


class _Declared(NamedTuple):
    name: str
    key: str
    check: Check
    is_needed: bool


@functools.cache
def _declared(kind: type, left_out: frozenset[str]) -> tuple[_Declared, ...]:
    hints = get_type_hints(kind, include_extras=True)
    declared = []
    for field in fields(kind):
        if field.name not in left_out:
            hint = hints[field.name]
            key = next((more.name for more in get_args(hint) if isinstance(more, Key)), field.name)
            is_needed = field.default is MISSING and field.default_factory is MISSING
            declared.append(_Declared(field.name, key, _check_of(hint), is_needed))
    return tuple(declared)


def _check_of(hint: Any) -> Check:
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return next(filter(callable, inside[1:]), None) or _check_of(inside[0])
    if origin in (Union, types.UnionType):
        return _check_of(next(kind for kind in inside if kind is not types.NoneType))
    if origin is tuple:
        return listed(_check_of(inside[0]), "values")
    if origin is not None and issubclass(origin, Mapping):
        return functools.partial(_mapped, _check_of(inside[1]))
    if issubclass(hint, StrEnum):
        return functools.partial(_member, hint)
    return _OF_TYPES[hint]


def _mapped(check: Check, table: Any, where: str) -> dict[str, Any]:
    return {key: check(value, f"{where}.{key}") for key, value in a_table(table, where).items()}


def _member(kind: type[StrEnum], value: Any, where: str) -> StrEnum:
    if value not in list(kind):
        raise InvalidInput(f"{where} is {value!r}; it is one of {', '.join(kind)}")
    return kind(value)


def refuse_unknown(
    table: Mapping[str, Any], allowed: Iterable[str], what: str, where: str = ""
) -> None:
    """Raise InvalidInput for a key that is none of those allowed; names the nearest."""
    allowed = tuple(allowed)
    for key in table:
        if key not in allowed:
            import difflib  # only where something is wrong

            near = difflib.get_close_matches(key, allowed, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"known are {', '.join(allowed)}"
            raise InvalidInput(f"{where}{key} is not a key of {what}; {hint}")


def text_of(table: Mapping[str, Any], key: str) -> str:
    """The text at a key, which must be there."""
    if key not in table:
        raise InvalidInput(f"{key} is missing")
    return str(text(table[key], key))


def table_of(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The table at a key; an empty one if there is none."""
    return a_table(table.get(key, {}), key)


def a_table(value: Any, where: str) -> dict[str, Any]:
    """A table."""
    if not isinstance(value, dict):
        written = f"[[{where.partition('[')[0]}]]" if where.endswith("]") else f"[{where}]"
        raise InvalidInput(f"{where} must be a table, written {written}, not {value!r}")
    return value


def tables_of(table: Mapping[str, Any], key: str) -> list[Any]:
    """The list of tables at a key; an empty one if there is none."""
    tables = table.get(key, [])
    if not isinstance(tables, list):
        raise InvalidInput(f"{key} must be a list, written [[{key}]]")
    return tables


def is_number(value: Any) -> bool:
    """Whether a value is a number, which true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def expected(accepts: Callable[[Any], bool], words: str) -> Check:
    """A check by a condition, and what to write in words."""

    def check(value: Any, where: str) -> Any:
        if not accepts(value):
            raise InvalidInput(f"{where} must be {words}, not {value!r}")
        return value

    return check


text = expected(lambda value: isinstance(value, str) and value.strip() != "", "a text in quotes")
any_text = expected(lambda value: isinstance(value, str), "a text in quotes")
yes_or_no = expected(lambda value: isinstance(value, bool), "true or false")
# A datetime is a date to isinstance, too.
day = expected(lambda value: type(value) is date, "a date such as 2026-08-22")
whole = expected(
    lambda value: type(value) is int and 0 < value <= MOST, f"a whole number from 1 to {MOST}"
)


def number(least: float = 0.0, *, above: bool = False) -> Check:
    """A check of a number that is at least so much, or above it."""

    def check(value: Any, where: str) -> float:
        if not is_number(value) or not value < 1e30:
            raise InvalidInput(f"{where} must be a number, not {value!r}")
        if value < least or (above and value == least):
            word = "above" if above else "at least"
            raise InvalidInput(f"{where} must be {word} {least:g}, not {value:g}")
        return cast("float", value)

    return check


def one_of(words: Sequence[str]) -> Check:
    """A check of a text that is one of some words."""
    return expected(lambda value: value in words, " or ".join(f'"{word}"' for word in words))


def listed(check: Check, what: str) -> Check:
    """A check of a list that is not empty, each of whose values has a check."""

    def check_all(values: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(values, list) or not values:
            raise InvalidInput(f"{where} must be a list of {what}, not {values!r}")
        return tuple(check(value, where) for value in values)

    return check_all


texts = listed(text, "texts in quotes")
wholes = listed(whole, "whole numbers")

_OF_TYPES: Mapping[Any, Check] = {
    str: text,
    bool: yes_or_no,
    int: whole,
    float: number(),
    date: day,
    Any: lambda value, where: value,
}

_UNITS = {
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "m", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86400.0),
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")


def seconds_of(text: str, option: str) -> float:
    """The seconds of a time such as `48h` or `1h30min`; a plain number counts seconds.

    Raises:
        InvalidInput: it is no time.
    """
    total, rest = 0.0, text.strip().lower()
    while rest:
        part = _PART.match(rest)
        if part is None or part[2] not in _UNITS or len(part[1]) > 15:
            break
        total += float(part[1]) * _UNITS[part[2]]
        rest = rest[part.end() :]
    if rest or not text.strip():
        raise InvalidInput(f"{option} is a time such as 48h, 30min or 90s, not {text!r}")
    return total


def time_s(value: Any, where: str) -> float:
    """The seconds of a time in a file: a text such as "48h", or a number of seconds."""
    if isinstance(value, str):
        return seconds_of(value, where)
    seconds: float = number()(value, where)
    return seconds


def table_rows(
    path: Path, what: str, columns: Sequence[str]
) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV file, with the numbers of their lines.

    Args:
        path: the file.
        what: what it is, for the message: "a table of jobs".
        columns: those that it must have.

    Raises:
        InvalidInput: it is no such table. The caller adds its name.
    """
    reader = csv.DictReader(io.StringIO(read_text(path), newline=None))
    try:
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise InvalidInput(f"has no column {missing[0]}; {what} has {', '.join(columns)}")
        for row in reader:
            if None in row:
                raise InvalidInput(f"line {reader.line_num} has more cells than there are columns")
            yield reader.line_num, row
    except csv.Error as error:
        raise InvalidInput(f"is not CSV: {error}") from None
