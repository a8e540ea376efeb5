"""What a script's process and the one that asked for it agree on: reports, the result, how to stop.

Reports are short lines of JSON. A result is files: plain JSON, and traces in their own format.

What is read was written by a process in which a user's script ran, so the script may have written
it. It is checked like a stranger's file: its size is bounded, each value has the type of its field,
and no code of it is run. None of it names a file or a process.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union

from wavecast import errors
from wavecast.errors import CaptureError, InvalidInput, WavecastError
from wavecast.reading import MissingFile, parse_json, read_text, whole_text
from wavecast.traces.checked_json import (
    Malformed,
    amount,
    exact_fields,
    listed,
    text,
    truth,
    whole,
)
from wavecast.traces.file import read as read_trace
from wavecast.traces.script import LoaderTime, Loading, ScriptRun
from wavecast.traces.step import Trace

_FILE = "result.json"
_LARGEST_RESULT_BYTES = 1 << 20
_LONGEST_TEXT = 1 << 16
LONGEST_REPORT = 4096
"""The most bytes of a report: so many are written to a pipe at once, whoever else writes."""
_AT_LEAST_1 = (
    (Loading, "batches"),
    (LoaderTime, "batches"),
    (LoaderTime, "cores"),
    (ScriptRun, "cycle_steps"),
)
"""Numbers by which others are divided."""
_SCALARS: dict[Any, Any] = {int: whole, float: amount, str: text, bool: truth}
_ERRORS = {
    error.__name__: error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, WavecastError)
}
STOP = int(getattr(signal, "SIGRTMIN", signal.SIGUSR2 - 7)) + 7
"""The signal that stops a script: one that scripts and libraries do not use."""
REQUEST, STOPS, ENDS = b"r", b"s", b"e"
"""What the worker is asked: to run a script, to stop it, to end it."""
INTERRUPTED = "interrupted"
"""The kind of failure of a script that the user interrupted before its first step was over."""

COMPILES = "compiles"
"""The kind of failure of a script that was followed without a compiler, and needs one."""
UNCOMPILED = "uncompiled"
"""The kind of failure of a script on which torch's compiler failed; the message says how."""


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """How a script is followed, as `wavecast.run_script` says it."""

    capability: tuple[int, int] | None = None
    steps: int | None = None
    until: str | None = None
    samples: int | None = None
    assume: Mapping[str, Any] | None = None
    ranks: int | None = None
    changes: tuple[str, ...] = ()
    lines: bool = False
    loader: bool = False
    compiles: bool = False
    """Whether a library is known to compile code: it could not be followed otherwise."""
    uncompiled: str = ""
    """Why to do without a compiler: how torch's failed on the script."""

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> RunOptions:
        """The options in a request, which has lists for tuples."""
        capability = plain["capability"] and tuple(plain["capability"])
        return cls(**{**plain, "capability": capability, "changes": tuple(plain["changes"])})


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


@dataclasses.dataclass(frozen=True)
class Doing:
    """What a script does at present."""

    doing: str
    ops: int
    """How many were traced so far."""


@dataclasses.dataclass(frozen=True)
class Late:
    """What to say if a script that is late ends without a word."""

    message: str


Report = Doing | Late | Failure
_REPORTS: dict[str, type] = {"Doing": Doing, "Late": Late, "Failure": Failure}
_RESULTS: dict[str, type] = {"ScriptRun": ScriptRun, "Failure": Failure}


def report_line(report: Report) -> bytes:
    """A report as one line."""
    return whole_text(json.dumps(_content(report, None), ensure_ascii=False)).encode() + b"\n"


def read_report(line: bytes) -> Report | None:
    """The report in a line; None if it is none, or too long."""
    if len(line) > LONGEST_REPORT:
        return None
    try:
        report: Report = _read_kind(parse_json(line), _REPORTS, None)
    except (InvalidInput, Malformed):
        return None
    return report


def write_result(result: ScriptRun | Failure, folder: Path) -> None:
    """Write what came of a script into an empty folder."""
    draft = folder / f"{_FILE}.tmp"
    draft.write_text(json.dumps(_content(result, folder)), encoding="utf-8")
    draft.rename(folder / _FILE)


def read_result(folder: Path) -> ScriptRun | Failure | None:
    """What came of a script; None if its process ended before it said so.

    Raises:
        InvalidInput: what it left is no result.
    """
    try:
        content = parse_json(read_text(folder / _FILE, _LARGEST_RESULT_BYTES, follow=False))
        result: ScriptRun | Failure = _read_kind(content, _RESULTS, folder)
        if isinstance(result, ScriptRun):
            _check_cycle(result)
    except MissingFile:
        return None
    except (InvalidInput, Malformed) as error:
        raise InvalidInput(f"the process of the script left a damaged result: {error}") from None
    return result


def _check_cycle(run: ScriptRun) -> None:
    """Refuse steps that are not parts of the cycle, one after another."""
    ends = [end for steps in run.uneven for end in (steps.begin, steps.end)]
    calls = 0 if run.cycle is None else len(run.cycle.calls)
    are_empty = any(steps.begin == steps.end for steps in run.uneven)
    if are_empty or [0, *ends, calls] != sorted([0, *ends, calls]):
        raise Malformed("uneven names steps that the cycle does not have")


def _content(value: Any, folder: Path | None) -> dict[str, Any]:
    return {"kind": type(value).__name__, "fields": _plain(value, folder, "")}


def _plain(value: Any, folder: Path | None, name: str) -> Any:
    """A value of a field as plain data; a trace is a file of the field's name."""
    if isinstance(value, Trace) and folder is not None:
        value.save(_trace_file(folder, name))
        return True
    if dataclasses.is_dataclass(value):
        fields = (field.name for field in dataclasses.fields(value))
        return {field: _plain(getattr(value, field), folder, field) for field in fields}
    if isinstance(value, tuple | list):
        return [_plain(item, folder, name) for item in value]
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return f"{value[: _LONGEST_TEXT // 2]} ... {value[-_LONGEST_TEXT // 3 :]}"
    return value


def _read_kind(content: Any, kinds: dict[str, type], folder: Path | None) -> Any:
    fields = exact_fields(content, "it", ("kind", "fields"))
    kind = kinds.get(text(fields["kind"], "kind"))
    if kind is None:
        raise Malformed(f"it has another kind than {', '.join(kinds)}")
    return _read(kind, fields["fields"], folder, "it")


def _read(kind: Any, value: Any, folder: Path | None, name: str) -> Any:
    """A value of a type from what `_plain` made of it."""
    if kind is Trace and folder is not None:
        truth(value, name)
        return read_trace(_trace_file(folder, name), follow=False)
    if kind in _SCALARS:
        return _SCALARS[kind](value, name)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else _read(inner[0], value, folder, name)
    if origin is tuple:
        return tuple(_read(inner[0], item, folder, name) for item in listed(value, name))
    hints = typing.get_type_hints(kind)
    given = exact_fields(value, name, tuple(hints))
    for owner, field in _AT_LEAST_1:
        if owner is kind:
            whole(given[field], field, low=1)
    return kind(
        **{field: _read(hints[field], item, folder, field) for field, item in given.items()}
    )


def _trace_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.json.gz"
