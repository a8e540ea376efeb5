"""The process in which scripts run: `python -m wavecast.frameworks.pytorch.scripts.worker FD`.

It imports torch once, if it is installed, waits for requests, and forks a process for each script.
The fork gives up its right to write files before it runs the script, and leaves its result in the
scratch folder. Messages are lines of JSON on a socket: requests come in; what a script does, and
how its process ended, go out.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from wavecast.errors import CaptureError, WavecastError, needing_extra
from wavecast.frameworks.confinement import confine
from wavecast.frameworks.confinement.kernel import end_with_parent
from wavecast.frameworks.pytorch.compiled import plan_store
from wavecast.frameworks.pytorch.recording.user_lines import failing_line
from wavecast.frameworks.pytorch.scripts.jax_runner import run_jax
from wavecast.frameworks.pytorch.scripts.program import Program, own_traceback
from wavecast.frameworks.pytorch.scripts.watching import Watcher, end_at_once
from wavecast.frameworks.script_results import INTERRUPTED, Failure, write_result
from wavecast.hardware.device_files import read_device
from wavecast.traces.script import ScriptRun

_HAS_TORCH = importlib.util.find_spec("torch") is not None


def main(descriptor: int) -> None:
    """Run scripts until nobody asks any more."""
    if _HAS_TORCH:
        importlib.import_module("wavecast.frameworks.pytorch.scripts.runner")
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    _tell(control, {"ready": True})
    with control.makefile("r", encoding="utf-8") as requests:
        for line in requests:
            child = os.fork()
            if not child:
                _serve(control, json.loads(line))
            _, status = os.waitpid(child, 0)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)  # what the script has left running
            _tell(control, {"ended": os.waitstatus_to_exitcode(status)})


def _serve(control: socket.socket, request: dict[str, Any]) -> None:
    """Run one script in this process, which ends with it."""
    try:
        os.setsid()
        end_with_parent(signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _tell(control, {"pid": os.getpid()})
        result = _result(control, request)
        plan_store.leave(Path(request["scratch"]) / "plans")
        write_result(result, Path(request["scratch"]) / "result")
    except BaseException as error:
        _tell(control, {"failed": asdict(_failure(error))})
    end_at_once(0)


def _result(control: socket.socket, request: dict[str, Any]) -> ScriptRun | Failure:
    scratch = Path(request["scratch"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"] | {"TMPDIR": str(scratch)})
    tempfile.tempdir = str(scratch)
    sys.path[:] = request["path"]
    plan_store.keep_apart(Path(request["plans"]))
    options = request["options"]
    if request["gpu"] is not None:
        options["gpu"] = read_device(request["gpu"])
    if options["capability"] is not None:
        options["capability"] = tuple(options["capability"])
    name, *arguments = request["program"]
    program = Program(name, tuple(arguments), request["module"])
    watcher = Watcher(
        program.shown,
        request["patience_s"],
        lambda doing, ops: _tell(control, {"doing": doing, "ops": ops}),
        lambda message: _tell(control, {"late": message}),
        lambda message: _abandon(control, _kind_of(watcher), message),
    )
    try:
        confinement = confine(str(scratch), offline=request["offline"], known=request["landlock"])
        done = _followed(program, watcher, options)
    except KeyboardInterrupt as error:
        return Failure(INTERRUPTED, f"{program.shown} was interrupted at {failing_line(error)}")
    except Exception as error:
        failure = _failure(error)
        return replace(failure, kind=INTERRUPTED) if watcher.interrupted else failure
    return done if isinstance(done, Failure) else replace(done, confined=confinement.is_complete)


def _followed(program: Program, watcher: Watcher, options: dict[str, Any]) -> ScriptRun | Failure:
    if _HAS_TORCH and not program.is_jax():
        from wavecast.frameworks.pytorch.scripts.runner import follow  # imported by `main` before

        return follow(program, watcher, options)
    try:
        return run_jax(program, watcher=watcher, **options)
    except CaptureError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name == "torch":
            with needing_extra(f"running {program.shown}"):
                raise cause from error
        raise


def _kind_of(watcher: Watcher) -> str:
    return INTERRUPTED if watcher.interrupted else CaptureError.__name__


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
        code = cause.code if isinstance(cause.code, int) else 1
        shown = cause.code if isinstance(cause.code, str) else ""
        return Failure(type(error).__name__, message, shown, code)
    own = "" if cause is None else "".join(own_traceback(cause)).rstrip("\n")
    return Failure(type(error).__name__, message, own)


def _abandon(control: socket.socket, kind: str, message: str) -> None:
    """End this process although the script does not: it catches whatever would stop it."""
    _tell(control, {"failed": asdict(Failure(kind, message))})
    end_at_once(0)


def _tell(control: socket.socket, message: dict[str, Any]) -> None:
    with suppress(OSError):  # the script has closed all files, or nobody listens any more
        control.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
