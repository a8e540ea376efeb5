"""The process in which scripts run: `python -m wavecast.frameworks.pytorch.scripts.worker FD`.

It imports torch once, if it is installed, and waits for requests. For each script it forks a guard,
which gives up its rights and forks the script's process. That one reports what it does by a pipe,
and leaves its result in a folder. All else stays between the processes in which no script runs:
requests come in on a socket; what the script can do, and how its process ended, go out.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import tempfile
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from wavecast.errors import CaptureError, WavecastError, needing_extra
from wavecast.files import remove_folder
from wavecast.frameworks import children
from wavecast.frameworks.confinement import kernel
from wavecast.frameworks.confinement.confining import (
    confine,
    end_children,
    restrict_files,
    run_guarded,
)
from wavecast.frameworks.confinement.kernel import adopt_orphans
from wavecast.frameworks.pytorch.compiled import plans
from wavecast.frameworks.pytorch.recording.user_lines import failing_line
from wavecast.frameworks.pytorch.scripts.jax_runner import run_jax
from wavecast.frameworks.pytorch.scripts.program import Program, own_traceback
from wavecast.frameworks.pytorch.scripts.watching import Watcher, end_at_once
from wavecast.frameworks.script_results import (
    INTERRUPTED,
    LONGEST_REPORT,
    REQUEST,
    STOP,
    STOPS,
    Doing,
    Failure,
    Late,
    Report,
    RunOptions,
    report_line,
    write_result,
)
from wavecast.hardware.devices import Device, read_device
from wavecast.traces.script import ScriptRun

_HAS_TORCH = importlib.util.find_spec("torch") is not None
_LONGEST_DOING = 500


def main(descriptor: int) -> None:
    """Run scripts until nobody asks any more."""
    if _HAS_TORCH:
        importlib.import_module("wavecast.frameworks.pytorch.scripts.runner")
    adopt_orphans()
    top = None
    with socket.socket(fileno=descriptor) as control:
        control.set_inheritable(False)
        command, reports, *_ = socket.recv_fds(control, 1, 1)
        while command:
            if command == REQUEST:  # others are for a script that has ended meanwhile
                request = children.received(lambda n: control.recv(n, socket.MSG_WAITALL))
                top = Path(request["top"])
                _run(control, request, reports[0])
            command, reports, *_ = socket.recv_fds(control, 1, 1)
    if top is not None:  # who asked may have been ended before removing it
        remove_folder(top)


def _run(control: socket.socket, request: dict[str, Any], reports: int) -> None:
    """Run one script below a guard, and pass on what the guard says."""
    worker = os.getpid()
    heard, says = os.pipe()
    guard = os.fork()
    if not guard:
        control.close()
        os.close(heard)
        _guard(request, worker, says, reports)
    os.close(says)
    os.close(reports)
    _pass_on(control, heard, guard)
    os.close(heard)
    os.waitpid(guard, 0)
    end_children()  # where the guard was ended: memory ran out
    with suppress(OSError):
        control.sendall(b'{"over": true}\n')


def _pass_on(control: socket.socket, heard: int, guard: int) -> None:
    """Pass messages on between a guard and who asked for the script."""
    listens = [control]
    while True:
        waiting: list[Any] = [heard, *listens]
        ready, _, _ = select.select(waiting, [], [])
        if heard in ready:
            if not (said := os.read(heard, select.PIPE_BUF)):
                return
            with suppress(OSError):
                control.sendall(said)
        if control in ready:
            command = b""
            with suppress(ConnectionResetError):
                command = control.recv(1)
            listens = [control] if command else []  # none: who asked for the script is gone
            os.kill(guard, STOP if command == STOPS else signal.SIGTERM)


def _guard(request: dict[str, Any], worker: int, says: int, reports: int) -> NoReturn:
    """Give up rights, run the script in a process of its own, and end what it leaves."""
    try:
        folders = tuple(request["writable"])
        confinement = confine(folders, offline=request["offline"], known=request["landlock"])
        _say(says, confined=confinement.is_complete, unpromised=confinement.unpromised())

        def serve() -> None:
            os.close(says)
            if confinement.files:
                restrict_files(confinement.folders, kernel.version())
            _serve(request, _Reports(reports))

        code = run_guarded(serve, STOP, worker, all_are_ours=confinement.signals)
        _say(says, ended=code)
    except BaseException as error:
        _Reports(reports).tell(_failure(error))
    os._exit(0)


def _say(says: int, **message: Any) -> None:
    os.write(says, json.dumps(message).encode() + b"\n")


def _serve(request: dict[str, Any], reports: _Reports) -> None:
    """Run one script in this process, which ends with it."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        result = _result(request, reports)
        plans.leave(Path(request["new_plans"]))
        write_result(result, Path(request["result"]))
    except BaseException as error:
        reports.tell(_failure(error))
    end_at_once(0)


def _result(request: dict[str, Any], reports: _Reports) -> ScriptRun | Failure:
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"] | {"TMPDIR": request["temporary"]})
    tempfile.tempdir = request["temporary"]
    sys.path[:] = request["path"]
    plans.keep_apart(Path(request["plans"]))
    gpu = None if request["gpu"] is None else read_device(request["gpu"])
    options = RunOptions.read(request["options"])
    name, *arguments = request["program"]
    program = Program(name, tuple(arguments), request["module"])

    def give_up(message: str) -> None:
        """End this process although the script does not: it catches whatever would stop it."""
        kind = INTERRUPTED if watcher.interrupted else CaptureError.__name__
        reports.tell(Failure(kind, message))
        end_at_once(0)

    watcher = Watcher(
        program.shown,
        request["patience_s"],
        lambda doing, ops: reports.tell(Doing(doing[:_LONGEST_DOING], ops)),
        lambda message: reports.tell(Late(message)),
        give_up,
    )
    try:
        return _followed(program, watcher, gpu, options)
    except KeyboardInterrupt as error:
        return Failure(INTERRUPTED, f"{program.shown} was interrupted at {failing_line(error)}")
    except Exception as error:
        failure = _failure(error)
        return replace(failure, kind=INTERRUPTED) if watcher.interrupted else failure


def _followed(
    program: Program, watcher: Watcher, gpu: Device | None, options: RunOptions
) -> ScriptRun | Failure:
    if _HAS_TORCH and not program.is_jax():
        from wavecast.frameworks.pytorch.scripts.runner import follow  # imported by `main` before

        return follow(program, watcher, gpu, options)
    try:
        return run_jax(program, watcher, gpu, options)
    except CaptureError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name == "torch":
            with needing_extra(f"running {program.shown}"):
                raise cause from error
        raise


def _failure(error: BaseException) -> Failure:
    """An error as plain data, with the traceback of the script alone."""
    cause = error.__cause__
    if not isinstance(error, WavecastError):
        lines = traceback.format_exception(error)
        return Failure(
            CaptureError.__name__,
            f"the script could not be traced ({type(error).__name__}: {error}); please report this",
            "".join(lines),
        )
    message, code = str(error), None
    if isinstance(cause, SystemExit):
        code = cause.code & 0xFF or 1 if isinstance(cause.code, int) else 1  # as in a shell
        shown = cause.code if isinstance(cause.code, str) else ""
        return Failure(type(error).__name__, message, shown, code)
    own = "" if cause is None else "".join(own_traceback(cause)).rstrip("\n")
    return Failure(type(error).__name__, message, own)


class _Reports:
    """The pipe on which the script's process says what it does; the script can write to it, too."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._pipe = descriptor, os.fstat(descriptor)

    def tell(self, report: Report) -> None:
        """Write a report; nothing if nobody listens, or if the script has closed all files."""
        line = report_line(report)
        if len(line) > LONGEST_REPORT and isinstance(report, Failure):
            message = report.message[:_LONGEST_DOING]
            line = report_line(replace(report, message=message, traceback=""))
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._descriptor), self._pipe):
                os.write(self._descriptor, line)


if __name__ == "__main__":
    main(int(sys.argv[1]))
