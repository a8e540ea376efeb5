"""The events of a profiler file, read one by one, so that a large file needs little memory."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn, TextIO

from wavecast.errors import InvalidInput
from wavecast.reading import (
    LARGEST_UNPACKED_BYTES,
    MissingFile,
    open_file,
    size_factor,
    whole_text,
)
from wavecast.traces.step import Kernel

Event = dict[str, Any]

GPU_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
RUNTIME_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver"})
"""The categories of calls to CUDA or HIP: launches, synchronisations, queries."""

# The names of categories in files of PyTorch up to 1.11.
_OLD_CATEGORIES = {
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Operator": "cpu_op",
    "Runtime": "cuda_runtime",
}

LONGEST_US = 3600e6
"""The longest kernel, op or pause of a recording that is believed: an hour. Real ones last seconds,
and what is longer has a broken clock or counter behind it."""

_WANTED = "give a file that torch.profiler wrote (export_chrome_trace)"

_CHUNK_CHARACTERS = 1 << 20
# No event is nearly this long, so a longer value means that the text is not a profile.
_LONGEST_VALUE = 1 << 22
MOST_EVENTS = 1_000_000
"""The most events of a file of up to 10 MB, a third more than real ones have."""
_MOST_VALUES = 48_000_000
"""The most values of such a file, which take the time of reading it."""
_MOST_OTHER = 1 << 24
"""The most characters of all fields of the file besides its events."""
# If a window ends within a number, a word or an escape, the error is at most this far from its end.
_LONGEST_TOKEN = 32
_BETWEEN = re.compile(r"[ \t\r\n,]*")


class _Refused(Exception):
    """The file is not a profile, or larger than a profile is; the message says why."""


_NOT_JSON = f"it is not a valid JSON object; {_WANTED}"
_TOO_LONG = f"a value in it is longer than {_LONGEST_VALUE >> 20} MiB; {_WANTED}"
_TOO_MANY = "it has too many events or values for its size; record fewer steps"


def read_events(path: str | PathLike[str], fields: dict[str, Any] | None = None) -> Iterator[Event]:
    """The events of a .json or .json.gz file in order, of which only a few are in memory at once.

    Args:
        path: a file that torch.profiler's `export_chrome_trace` wrote.
        fields: a dictionary to fill with the file's other fields (`deviceProperties`, ...). It is
            complete after the last event.

    Raises:
        InvalidInput: there is no such file, or it is not a complete profiler file.
    """
    path = Path(path)
    try:
        with _opened(path) as file:
            text = _Text(file, size_factor(path))
            yield from _events(text, {} if fields is None else fields)
    except MissingFile:
        raise InvalidInput(f"there is no profiler file {path}") from None
    except EOFError:
        _refuse(path, "it is truncated or damaged; copy it again, or record it again")
    except RecursionError:
        _refuse(path, _NOT_JSON)
    except _Refused as error:
        _refuse(path, str(error))


def category_of(event: Event) -> str:
    """The category of an event, by its present name; "" if it has none."""
    category = event.get("cat")
    if not isinstance(category, str):
        return ""
    return _OLD_CATEGORIES.get(category, category)


def name_of(event: Event) -> str:
    """The name of an event; "" if it has none."""
    return text_of(event.get("name"))


def text_of(value: Any) -> str:
    """A value as a text that can be written; "" if it is not a text."""
    return whole_text(value) if isinstance(value, str) else ""


def arguments_of(event: Event) -> dict[str, Any]:
    """The `args` of an event, a dictionary."""
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def number(value: Any, default: float = 0.0) -> float:
    """A value as a float; the default if it is not a number."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
        return float(value)
    return default


def has_possible_time(event: Event) -> bool:
    """Whether an event begins at a number, and lasts from 0 to `LONGEST_US` microseconds."""
    begin, duration = event.get("ts"), event.get("dur", 0.0)
    given = number(begin, math.nan), number(duration, math.nan)
    return math.isfinite(given[0]) and 0 <= given[1] <= LONGEST_US


def kernel_of(event: Event, begin_us: float) -> Kernel:
    """The kernel, copy or fill of a GPU event. Its start is counted from `begin_us`."""
    arguments = arguments_of(event)
    return Kernel(
        name=name_of(event),
        seconds=max(number(event.get("dur")), 0.0) / 1e6,
        grid=_triple(arguments.get("grid")),
        block=_triple(arguments.get("block")),
        registers=_count(arguments.get("registers per thread")),
        shared_bytes=_count(arguments.get("shared memory")),
        stream=stream_of(arguments.get("stream")),
        start_s=max(number(event.get("ts")) - begin_us, 0.0) / 1e6,
    )


def stream_of(value: Any) -> int:
    """The number of a stream. AMD's files have addresses as text."""
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return 0
    count = _count(value)
    return 0 if count is None else count


def _count(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value < 1 << 62 else None


def _triple(value: Any) -> tuple[int, int, int] | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    x, y, z = map(_count, value)
    return None if x is None or y is None or z is None else (x, y, z)


class _Text:
    """A window on a long JSON text, from which values are taken one by one."""

    def __init__(self, file: TextIO, factor: float) -> None:
        self.factor = factor
        """How many times the budget of a small file the file has."""
        self._file = file
        self._left = _MOST_VALUES * factor
        self._decode = json.JSONDecoder(strict=False).raw_decode
        self._window = ""
        self._at = 0
        self._ended = False
        self.length = 0
        """How many characters the last value has."""

    def _extend(self, characters: int) -> None:
        more = self._file.read(characters)
        self._ended = not more
        self._left -= sum(map(more.count, ",[{"))
        if self._left < 0:
            raise _Refused(_TOO_MANY)
        self._window = self._window[self._at :] + more
        self._at = 0

    def peek(self) -> str:
        """The next character that is not a blank or a comma; "" at the end of the text."""
        while True:
            # Commas can be skipped like blanks. Some versions of the profiler write one too many.
            self._at = _BETWEEN.match(self._window, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._window) or self._ended:
                return self._window[self._at : self._at + 1]
            self._extend(_CHUNK_CHARACTERS)

    def take(self, character: str) -> bool:
        """Step over a character if it comes next, and return whether it did."""
        following = self.peek()
        if not following:
            raise EOFError
        self._at += following == character
        return following == character

    def value(self) -> Any:
        """The next value. Call `peek` before, which steps over blanks and commas."""
        characters = _CHUNK_CHARACTERS
        while True:
            try:
                value, end = self._decode(self._window, self._at)
            except json.JSONDecodeError as error:
                self._check_cut(error)
            except ValueError:  # a whole number of thousands of digits
                raise _Refused(_NOT_JSON) from None
            else:
                # A number at the end of the window may continue after it.
                if end < len(self._window) or self._ended:
                    self.length = end - self._at
                    self._at = end
                    return value
            self._extend(characters)
            characters *= 2

    def _check_cut(self, error: json.JSONDecodeError) -> None:
        """Raise unless the error only means that the window ends too early.

        At the end of the file, a text that ends too early is truncated.
        """
        cut = error.pos + _LONGEST_TOKEN > len(self._window) or "Unterminated" in error.msg
        if not cut:
            raise _Refused(_NOT_JSON)
        if len(self._window) - self._at > _LONGEST_VALUE:
            raise _Refused(_TOO_LONG)
        if self._ended:
            raise EOFError


def _opened(path: Path) -> TextIO:
    most_bytes = int(3 * LARGEST_UNPACKED_BYTES * size_factor(path))  # read piece by piece
    prefix = f"cannot read the profiler file {path}: it "
    file = open_file(path, packed=None, most_bytes=most_bytes, prefix=prefix)
    # Kernel names are not always valid UTF-8.
    return io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace")


def _events(text: _Text, fields: dict[str, Any]) -> Iterator[Event]:
    """The events in the file's object. Its other fields are put into `fields`."""
    if not text.take("{"):
        raise _Refused(_NOT_JSON)
    has_events, events, others = False, 0, 0
    while not text.take("}"):
        name = text.value()
        if not isinstance(name, str) or not text.take(":"):
            raise _Refused(_NOT_JSON)
        if name == "traceEvents" and text.take("["):
            has_events = True
            while not text.take("]"):
                event = text.value()
                events += 1
                if events > MOST_EVENTS * text.factor:
                    raise _Refused(_TOO_MANY)
                if isinstance(event, dict):
                    yield event
        else:
            text.peek()
            fields[name] = text.value()
            others += text.length
            if others > _MOST_OTHER:
                raise _Refused(_TOO_LONG)
    if not has_events:
        raise _Refused(f"it has no traceEvents; {_WANTED}")


def _refuse(path: Path, reason: str) -> NoReturn:
    raise InvalidInput(f"cannot read the profiler file {path}: {reason}")
