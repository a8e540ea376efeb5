"""The process in which a script runs, seen from outside.

Scripts run in forks of one worker, which has torch imported if it is installed. What they print is
passed on to the standard error.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wavecast.errors import CaptureError
from wavecast.frameworks import stages
from wavecast.frameworks.confinement import landlock
from wavecast.frameworks.pytorch.compiled import plan_store
from wavecast.frameworks.script_results import (
    COMPILES,
    INTERRUPTED,
    STOP,
    UNCOMPILED,
    Failure,
    read_result,
)
from wavecast.hardware.device import Device
from wavecast.hardware.device_files import save
from wavecast.traces.script import ScriptRun

_WORKER = "wavecast.frameworks.pytorch.scripts.worker"
_START = "importing torch" if importlib.util.find_spec("torch") else "starting"
"""What is done before the first script runs."""
_GRACE_S = 15.0
"""How much longer than its patience a script may be silent: C code may hold Python's lock."""
_LAST_LINES = 3
_LONGEST_LINE = 200
_REFUSED = (
    "; the script may write nothing outside of its scratch folder, and a write that Python's own "
    "functions do not make cannot be redirected: switch it off for this run"
)
_one_script = threading.Lock()
_worker: _Worker | None = None


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


def run_in_process(
    request: ScriptRequest, progress: Callable[[int], None] | None = None
) -> ScriptRun:
    """What a script's run gives, in a process of its own that cannot write the user's files."""
    with _one_script, _scratch() as scratch:
        worker = _present_worker()
        try:
            with stages.stage(_START):  # until the script's process says more
                result = worker.run(request, scratch, progress)
                while isinstance(result, Failure) and result.kind in (COMPILES, UNCOMPILED):
                    # In a new process: libraries register their ops once, or crash.
                    change = {"compiles": True, "uncompiled": ""}
                    if result.kind == UNCOMPILED:
                        change["uncompiled"] = result.message
                    request = replace(request, options=request.options | change)
                    result = worker.run(request, scratch, progress)
            plan_store.adopt(scratch / "plans", plan_store.script_folder(request.program[0]))
        except BaseException:
            worker.end()
            raise
    if isinstance(result, Failure):
        raise result.raised()
    return result


@contextmanager
def _scratch() -> Iterator[Path]:
    """The folder that a script may write to, removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="wavecast-")).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _present_worker() -> _Worker:
    global _worker
    if _worker is None or not _worker.is_usable:
        _worker = _Worker()
    return _worker


class _Worker:
    """A process that imports what scripts need and forks a process for each script."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._control, theirs = socket.socketpair()
        output, their_output = os.pipe()
        os.set_blocking(output, False)
        self._output = output
        is_typed = sys.__stdin__ is not None and _is_terminal(0)
        self._process = subprocess.Popen(
            # Python's own switches, such as -W and -X, hold for the script as well.
            [
                *(sys.executable, *subprocess._args_from_interpreter_flags()),  # type: ignore[attr-defined]
                *("-m", _WORKER, str(theirs.fileno())),
            ],
            stdin=subprocess.DEVNULL if is_typed else None,
            stdout=their_output,
            stderr=their_output,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # Ctrl-C is ours to handle
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        theirs.close()
        os.close(their_output)
        atexit.register(self.end)

    @property
    def is_usable(self) -> bool:
        """Whether it still runs, and is this process's own and not that of a fork's parent."""
        return self._owner == os.getpid() and self._process.poll() is None

    def run(
        self, request: ScriptRequest, scratch: Path, progress: Callable[[int], None] | None
    ) -> ScriptRun | Failure:
        """What a script's process leaves."""
        shutil.rmtree(scratch / "result", ignore_errors=True)  # that of an earlier run
        (scratch / "result").mkdir()
        self._send(request, scratch)
        run = _Run(self._control, self._output, request, progress)
        try:
            run.follow()
        except KeyboardInterrupt:
            run.stop()
            run.follow()
        result = run.failure or read_result(scratch / "result") or run.crash()
        return run.explained(result) if isinstance(result, Failure) else result

    def end(self) -> None:
        """End the process, and with it what it runs."""
        atexit.unregister(self.end)
        if self._owner != os.getpid():
            return
        self._control.close()
        self._process.kill()
        self._process.wait()
        os.close(self._output)

    def _send(self, request: ScriptRequest, scratch: Path) -> None:
        gpu = None if request.gpu is None else str(save(request.gpu, scratch))
        message = {
            "program": request.program,
            "module": request.module,
            "options": request.options,
            "gpu": gpu,
            "patience_s": request.patience_s,
            "offline": request.offline,
            "landlock": request.landlock,
            "scratch": str(scratch),
            "plans": str(plan_store.script_folder(request.program[0])),
            "folder": str(Path.cwd()),
            "environment": dict(os.environ),
            "path": sys.path,
        }
        self._control.sendall(json.dumps(message, default=float).encode() + b"\n")


class _Run:
    """One script's process while it runs."""

    def __init__(
        self,
        control: socket.socket,
        output: int,
        request: ScriptRequest,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.failure: Failure | None = None
        self._control, self._output = control, output
        self._request, self._progress = request, progress
        self._pending = b""
        self._pid: int | None = None
        self._ended: int | None = None
        self._doing = ""
        self._late = ""
        self._heard_s = time.monotonic()
        self._stopped_s: float | None = None
        self._printed = b""
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)

    def follow(self) -> None:
        """Pass on what the script prints and hear what it does, until its process has ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ, self._hear)
            selector.register(self._output, selectors.EVENT_READ, self._pass_on)
            while self._ended is None:
                for key, _ in selector.select(timeout=0.5):
                    key.data()
                self._end_if_silent()
        self._pass_on()

    def stop(self) -> None:
        """Ask the script to stop, so that what is known so far comes back."""
        if self._pid is None:
            raise KeyboardInterrupt(f"while {_START}")
        self._stopped_s = time.monotonic()
        with suppress(ProcessLookupError):
            os.kill(self._pid, STOP)

    def crash(self) -> Failure:
        """The failure of a process that left no result."""
        code, script = self._ended or 0, self._request.program[0]
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
        message = f"the process of {script} {reason}{at}{self._said()}"
        return Failure(CaptureError.__name__, message)

    def explained(self, failure: Failure) -> Failure:
        """A failure with the script's last words, and with the reason of a refused write."""
        said, message = self._said(), failure.message
        if failure.exit_code is not None and ", after " not in message:
            message += said
        if "Permission denied" in f"{failure.traceback}{said}" and self._request.landlock != 0:
            message += _REFUSED if landlock.version() else ""
        return replace(failure, message=message)

    def _said(self) -> str:
        """The last lines that the script printed, as the end of a message."""
        lines = " | ".join(line[:_LONGEST_LINE] for line in self._lines)
        return f"; it had printed: {lines}" if lines else ""

    def _hear(self) -> None:
        data = b""
        with suppress(ConnectionResetError):
            data = self._control.recv(1 << 16)
        if not data:
            raise CaptureError("the process that runs scripts has ended; run the script again")
        self._heard_s = time.monotonic()
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            with suppress(ValueError, TypeError, AttributeError):  # a fork of the script wrote it
                self._note(json.loads(line))

    def _note(self, message: dict[str, Any]) -> None:
        if "pid" in message:
            self._pid = int(message["pid"])
            stages.say(f"running {self._request.program[0]}")
        self._ended = message.get("ended", self._ended)
        if "failed" in message:
            self.failure = Failure(**message["failed"])
        self._late = str(message.get("late", self._late))
        if "doing" in message:
            self._doing = str(message["doing"])
            stages.say(self._doing)
            if self._progress is not None:
                self._progress(int(message["ops"]))

    def _pass_on(self) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self._output, 1 << 16):
                text = data.decode(errors="backslashreplace")
                with suppress(OSError, ValueError, AttributeError):
                    sys.stderr.write("" if self._request.quiet else text)
                    sys.stderr.flush()
                *whole, self._printed = (self._printed + data).split(b"\n")
                shown = (line.decode(errors="replace").strip() for line in whole)
                self._lines.extend(filter(None, shown))

    def _end_if_silent(self) -> None:
        """End a process that is stuck: C code that holds Python's lock lets nobody speak."""
        silent_s = time.monotonic() - self._heard_s
        patience_s = self._request.patience_s
        is_stuck = patience_s is not None and silent_s > patience_s + _GRACE_S
        is_stubborn = self._stopped_s is not None and time.monotonic() - self._stopped_s > _GRACE_S
        if self._pid is None or not (is_stuck or is_stubborn):
            return
        if not is_stubborn:
            self.failure = Failure(
                CaptureError.__name__,
                f"{self._request.program[0]} came to no step and said nothing for {silent_s:.0f} "
                f"s; it was {self._doing or 'starting'}; give it more time with --patience "
                "(patience=)",
            )
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False
