"""One pass of a script, seen from outside: what it prints, what it says, and how it ends.

The worker and its guards run no script, so they are believed. A script can write whatever its
process can: reports, the result and the files of its folders. They are read like a stranger's
(`script_results`), and only the worker signals processes.
"""

from __future__ import annotations

import codecs
import importlib.util
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from wavecast.errors import CaptureError
from wavecast.frameworks import stages
from wavecast.frameworks.confinement import landlock
from wavecast.frameworks.script_results import (
    ENDS,
    INTERRUPTED,
    LONGEST_REPORT,
    STOPS,
    Doing,
    Failure,
    Late,
    Report,
    read_report,
)
from wavecast.hardware.device import Device

START = "importing torch" if importlib.util.find_spec("torch") else "starting"
"""What is done before the first script runs."""
GRACE_S = 15.0
"""How much longer than its patience a script may be silent: C code may hold Python's lock."""
_LAST_LINES = 3
_LONGEST_LINE = 200
_REFUSED = (
    "; the script may write nothing outside of its scratch folder, and a write that Python's own "
    "functions do not make cannot be redirected: switch it off for this run"
)
_CHUNK_BYTES, _MOST_CHUNKS = 1 << 16, 16
"""How much is read at once, and how often after the end of all that could write."""
_warned: set[str] = set()


@dataclass(frozen=True)
class ScriptRequest:
    """A script to run, and how."""

    program: tuple[str, ...]
    """The script and its arguments."""
    module: bool
    options: dict[str, Any]
    """Further arguments of `frameworks.pytorch.scripts.runner.run`, as plain data."""
    gpu: Device | None = None
    patience_s: float | None = None
    offline: bool = False
    quiet: bool = False
    """Whether what it prints is not passed on."""
    landlock: int | None = None
    """The version of Landlock to use. None for the kernel's."""


class ScriptPass:
    """One script's process while it runs."""

    def __init__(
        self,
        control: socket.socket,
        output: int,
        request: ScriptRequest,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.failure: Failure | None = None
        self.has_begun = False
        """Whether the worker has begun to run it."""
        self.confined = False
        """Whether the kernel kept the script from changing files."""
        self._control, self._output, self._reports = control, output, -1
        self._request, self._progress = request, progress
        self._said, self._reported = b"", b""
        self._code = -int(signal.SIGKILL)  # unless its guard lives to say
        self._is_over = False
        self._doing = ""
        self._late = ""
        self._heard_s = time.monotonic()
        self._stopped_s: float | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._printed = Printed()

    def open_reports(self) -> int:
        """The end of a new pipe on which the script's process says what it does."""
        self._reports, theirs = os.pipe()
        os.set_blocking(self._reports, False)
        return theirs

    def follow(self) -> None:
        """Until the script's process has ended, show what it prints and keep what it reports."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ, self._hear)
            selector.register(self._reports, selectors.EVENT_READ, self._hear_reports)
            selector.register(self._output, selectors.EVENT_READ, self._pass_on)
            while not self._is_over:
                for key, _ in selector.select(timeout=0.5):
                    if not key.data():
                        selector.unregister(key.fileobj)
                self._end_if_silent()
        for rest in (self._hear_reports, self._pass_on):
            for _ in range(_MOST_CHUNKS):
                if not rest():
                    break

    def close(self) -> None:
        """Hear nothing any more."""
        if self._reports >= 0:
            os.close(self._reports)

    def stop(self) -> None:
        """Ask for the script to be stopped, so that what is known so far comes back."""
        if not self.has_begun:
            raise KeyboardInterrupt(f"while {START}")
        self._stopped_s = time.monotonic()
        self._ask(STOPS)

    def crash(self) -> Failure:
        """The failure of a process that left no result."""
        code, script = self._code, self._request.program[0]
        at = f" while {self._doing}" if self._doing else ""
        if self._stopped_s is not None:
            return Failure(INTERRUPTED, f"{script} was interrupted{at}")
        if code == -signal.SIGABRT and self._late:
            # torch aborts where code that may not raise is interrupted.
            return Failure(CaptureError.__name__, self._late)
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"{-code}"
            memory = "; perhaps memory ran out" if -code == signal.SIGKILL else ""
            reason = f"was ended by signal {name}{memory}"
        else:
            reason = f"ended itself with exit code {code}, without Python's sys.exit"
        message = f"the process of {script} {reason}{at}{self._printed.shown()}"
        return Failure(CaptureError.__name__, message)

    def explained(self, failure: Failure) -> Failure:
        """A failure with the script's last words, and with the reason of a refused write."""
        printed, message, kind = self._printed.shown(), failure.message, failure.kind
        if failure.exit_code is not None and ", after " not in message:
            message += printed
        if "Permission denied" in f"{failure.traceback}{printed}" and self._request.landlock != 0:
            message += _REFUSED if landlock.version() else ""
        if kind == INTERRUPTED and self._stopped_s is None:
            kind = CaptureError.__name__  # the script says so, and the user did not
        return replace(failure, kind=kind, message=message)

    def _hear(self) -> bool:
        """Hear what the worker says."""
        data = b""
        with suppress(ConnectionResetError):
            data = self._control.recv(_CHUNK_BYTES)
        if not data:
            raise CaptureError("the process that runs scripts has ended; run the script again")
        *lines, self._said = (self._said + data).split(b"\n")
        for message in map(json.loads, lines):
            self._heard_s = time.monotonic()
            self._code = message.get("ended", self._code)
            self._is_over = "over" in message
            if "confined" in message:
                self.has_begun, self.confined = True, message["confined"]
                _warn_once(message["unpromised"])
                stages.say(f"running {self._request.program[0]}")
        return True

    def _hear_reports(self) -> bool:
        """Hear what the script's process says; whether it may say more."""
        data = _read(self._reports)
        *lines, rest = (self._reported + data).split(b"\n")
        self._reported = rest[: LONGEST_REPORT + 1]  # more is no report, however long
        for line in lines:
            if (report := read_report(line)) is not None:
                self._heard_s = time.monotonic()
                self._note(report)
        return bool(data)

    def _note(self, report: Report) -> None:
        match report:
            case Failure():
                self.failure = report
            case Late():
                self._late = report.message
            case Doing():
                self._doing = report.doing
                stages.say(self._doing)
                if self._progress is not None:
                    self._progress(report.ops)

    def _pass_on(self) -> bool:
        """Pass on what was printed; whether there may be more."""
        data = _read(self._output)
        self._printed.add(data)
        if not self._request.quiet:
            _write_error(self._decoder.decode(data))
        return bool(data)

    def _end_if_silent(self) -> None:
        """End a process that is stuck: C code that holds Python's lock lets nobody speak."""
        silent_s = time.monotonic() - self._heard_s
        patience_s = self._request.patience_s
        is_stuck = patience_s is not None and silent_s > patience_s + GRACE_S
        is_stubborn = self._stopped_s is not None and time.monotonic() - self._stopped_s > GRACE_S
        if not self.has_begun or not (is_stuck or is_stubborn):
            return
        if not is_stubborn:
            self.failure = Failure(
                CaptureError.__name__,
                f"{self._request.program[0]} came to no step and said nothing for {silent_s:.0f} "
                f"s; it was {self._doing or 'starting'}; give it more time with --patience "
                "(patience=)",
            )
        self._ask(ENDS)

    def _ask(self, command: bytes) -> None:
        with suppress(BrokenPipeError):  # it will be seen that the worker has ended
            self._control.sendall(command)


class Printed:
    """The last lines that a script printed, of which each may be of any length."""

    def __init__(self) -> None:
        self._line = b""
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)

    def add(self, data: bytes) -> None:
        """Add what was printed."""
        *ends, begin = data.split(b"\n")
        for end in ends:
            self._extend(end)
            if line := self._line.decode(errors="replace").strip():
                self._lines.append(line[:_LONGEST_LINE])
            self._line = b""
        self._extend(begin)

    @property
    def kept_bytes(self) -> int:
        """How much is kept of it."""
        return len(self._line) + sum(map(len, self._lines))

    def shown(self) -> str:
        """The lines as the end of a message."""
        return f"; it had printed: {' | '.join(self._lines)}" if self._lines else ""

    def _extend(self, data: bytes) -> None:
        """Add to the last line. As on a terminal, it begins anew after a carriage return."""
        line = self._line + data
        shown = line.rstrip(b"\r")
        is_returned = len(shown) < len(line)
        self._line = shown[shown.rfind(b"\r") + 1 :][: 4 * _LONGEST_LINE] + b"\r" * is_returned


def _read(descriptor: int) -> bytes:
    """What there is to read; nothing at the end, or if there is nothing yet."""
    with suppress(BlockingIOError):
        return os.read(descriptor, _CHUNK_BYTES)
    return b""


def _write_error(text: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # full, closed, or not there
        sys.stderr.write(text)
        sys.stderr.flush()


def _warn_once(unpromised: list[str]) -> None:
    """Say before the script's first line what the kernel does not refuse to it."""
    warning = f"wavecast: nothing here keeps a script from {'; from '.join(unpromised)}\n"
    if unpromised and warning not in _warned:
        _warned.add(warning)
        _write_error(warning)
