"""What a script's process and the one that asked for it agree on: the result, and how to stop.

A result is files: plain JSON, and traces in their own format.

What is read was written by a process in which a user's script ran. It is checked like any other
file, and no code of it is run.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import types
import typing
from pathlib import Path
from typing import Any, Union

from wavecast import errors
from wavecast.errors import CaptureError, InvalidInput, WavecastError
from wavecast.traces.script import ScriptRun
from wavecast.traces.step import Trace, load_trace

_FILE = "result.json"
_ERRORS = {
    error.__name__: error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, WavecastError)
}
STOP = int(getattr(signal, "SIGRTMIN", signal.SIGUSR2 - 7)) + 7
"""The signal that stops a script: one that scripts and libraries do not use."""
INTERRUPTED = "interrupted"
"""The kind of failure of a script that the user interrupted before its first step was over."""

COMPILES = "compiles"
"""The kind of failure of a script that was followed without a compiler, and needs one."""
UNCOMPILED = "uncompiled"
"""The kind of failure of a script on which torch's compiler failed; the message says how."""


class ScriptError(Exception):
    """What a script's own process said about an error; its text is the script's traceback."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """An error in the process of a script."""

    kind: str
    """The name of one of Wavecast's errors, or one of the kinds above."""
    message: str
    traceback: str = ""
    """The script's own traceback, as Python would print it."""
    exit_code: int | None = None
    """The code with which the script ended itself."""

    def raised(self) -> BaseException:
        """The exception to raise here."""
        if self.kind == INTERRUPTED:
            return KeyboardInterrupt(self.message)
        error = _ERRORS.get(self.kind, CaptureError)(self.message)
        if self.traceback or self.exit_code is not None:
            error.__cause__ = ScriptError(self.traceback)
        if isinstance(error, CaptureError):
            error.script_code = self.exit_code
        return error


def write_result(result: ScriptRun | Failure, folder: Path) -> None:
    """Write what came of a script into an empty folder."""
    kind = type(result).__name__
    content = {"kind": kind, "fields": _plain(result, folder)}
    draft = folder / f"{_FILE}.tmp"
    draft.write_text(json.dumps(content), encoding="utf-8")
    draft.rename(folder / _FILE)


def read_result(folder: Path) -> ScriptRun | Failure | None:
    """What came of a script; None if its process ended before it said so."""
    path = folder / _FILE
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        kinds: dict[str, type] = {"ScriptRun": ScriptRun, "Failure": Failure}
        kind = kinds[content["kind"]]
        result: ScriptRun | Failure = _read(kind, content["fields"], folder)
        return result
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"the process of the script left a damaged result: {error}") from None


def _plain(value: Any, folder: Path) -> Any:
    if isinstance(value, Trace):
        name = f"{len(list(folder.iterdir()))}.json.gz"
        value.save(folder / name)
        return name
    if dataclasses.is_dataclass(value):
        fields = (field.name for field in dataclasses.fields(value))
        return {name: _plain(getattr(value, name), folder) for name in fields}
    if isinstance(value, tuple | list):
        return [_plain(item, folder) for item in value]
    return value


def _read(kind: Any, value: Any, folder: Path) -> Any:
    """A value of a type from what `_plain` made of it."""
    if value is None:
        return None
    if kind is Trace:
        return load_trace(folder / Path(str(value)).name)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return _read(next(one for one in inner if one is not type(None)), value, folder)
    if origin is tuple:
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(_read(one, item, folder) for one, item in zip(kinds, value, strict=True))
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = {name: _read(hints[name], item, folder) for name, item in value.items()}
        return typing.cast(Any, kind)(**fields)
    if kind in (int, str, bool) and not isinstance(value, kind):
        raise ValueError(f"{value!r} is no {kind.__name__}")
    return value
