"""The process in which a script runs, seen from outside.

Scripts run below one worker, which has torch imported if it is installed. Each pass of a script has
folders of its own, into which nothing is written from here.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from wavecast.files import remove_folder
from wavecast.frameworks import stages
from wavecast.frameworks.pytorch.compiled import plan_store
from wavecast.frameworks.script_passes import GRACE_S, START, ScriptPass, ScriptRequest
from wavecast.frameworks.script_results import (
    COMPILES,
    REQUEST,
    UNCOMPILED,
    Failure,
    read_result,
)
from wavecast.hardware.device_files import save
from wavecast.traces.script import ScriptRun

_WORKER = "wavecast.frameworks.pytorch.scripts.worker"
_MORE_PASSES = 2
"""A script that compiles is run once more, and again if its compiled code cannot be followed."""
_one_script = threading.Lock()
_worker: _Worker | None = None


def run_in_process(
    request: ScriptRequest, progress: Callable[[int], None] | None = None
) -> ScriptRun:
    """What a script's run gives, in a process of its own that cannot write the user's files."""
    with _one_script, stages.stage(START):  # until the script's process says more
        result = _present_worker().run(request, progress)
        for _ in range(_MORE_PASSES):
            if isinstance(result, ScriptRun) or result.kind not in (COMPILES, UNCOMPILED):
                break
            # In a new process: libraries register their ops once, or crash.
            uncompiled = result.message if result.kind == UNCOMPILED else ""
            change = {"compiles": True, "uncompiled": uncompiled}
            request = replace(request, options=request.options | change)
            result = _present_worker().run(request, progress)
    if isinstance(result, Failure):
        raise result.raised()
    return result


@dataclass(frozen=True)
class _Folders:
    """The folders of one pass of a script."""

    top: Path
    """The folder of the others. The script cannot write to it, so it cannot replace them."""

    @property
    def temporary(self) -> Path:
        """The folder of the script's own files."""
        return self.top / "temporary"

    @property
    def result(self) -> Path:
        """The folder of the result."""
        return self.top / "result"

    @property
    def plans(self) -> Path:
        """The folder of new plans of compiled graphs."""
        return self.top / "plans"

    @property
    def writable(self) -> tuple[Path, ...]:
        """Those that the script may write to."""
        return self.temporary, self.result, self.plans


@contextmanager
def _new_folders() -> Iterator[_Folders]:
    """Folders that are removed at the end."""
    folders = _Folders(Path(tempfile.mkdtemp(prefix="wavecast-")).resolve())
    try:
        for folder in folders.writable:
            folder.mkdir()
        yield folders
    finally:
        remove_folder(folders.top)


def _present_worker() -> _Worker:
    global _worker
    if _worker is None or not _worker.is_usable:
        _worker = _Worker()
    return _worker


class _Worker:
    """A process that imports what scripts need and forks a process for each script."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._run: ScriptPass | None = None
        self._control, theirs = socket.socketpair()
        output, their_output = os.pipe()
        os.set_blocking(output, False)
        self._output = output
        is_typed = sys.__stdin__ is not None and _is_terminal(0)
        self._process = subprocess.Popen(
            # Python's own switches, such as -W and -X, hold for the script as well. With -P, no
            # file of the current folder is imported: the worker is not confined.
            [
                *(sys.executable, *subprocess._args_from_interpreter_flags()),  # type: ignore[attr-defined]
                *("-P", "-m", _WORKER, str(theirs.fileno())),
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
        self, request: ScriptRequest, progress: Callable[[int], None] | None
    ) -> ScriptRun | Failure:
        """What a script's process leaves."""
        with _new_folders() as folders:
            run = self._run = ScriptPass(self._control, self._output, request, progress)
            try:
                self._ask(request, folders, run)
                try:
                    run.follow()
                except KeyboardInterrupt:
                    run.stop()
                    run.follow()
                result = run.failure or read_result(folders.result) or run.crash()
            except BaseException:
                self.end()
                raise
            finally:
                self._run = None
                run.close()
            plan_store.adopt(folders.plans, plan_store.script_folder(request.program[0]))
        if isinstance(result, Failure):
            return run.explained(result)
        return replace(result, confined=run.confined)

    def end(self) -> None:
        """End the process, and with it what it runs."""
        atexit.unregister(self.end)
        if self._owner != os.getpid() or self._control.fileno() < 0:
            return
        self._control.close()
        if self._run is not None and self._run.has_begun:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)  # it ends the script and itself
        self._process.kill()
        self._process.wait()
        os.close(self._output)

    def _ask(self, request: ScriptRequest, folders: _Folders, run: ScriptPass) -> None:
        gpu = None if request.gpu is None else str(save(request.gpu, folders.top))
        message = {
            "program": request.program,
            "module": request.module,
            "options": request.options,
            "gpu": gpu,
            "patience_s": request.patience_s,
            "offline": request.offline,
            "landlock": request.landlock,
            "top": str(folders.top),
            "writable": [str(folder) for folder in folders.writable],
            "temporary": str(folders.temporary),
            "result": str(folders.result),
            "new_plans": str(folders.plans),
            "plans": str(plan_store.script_folder(request.program[0])),
            "folder": str(Path.cwd()),
            "environment": dict(os.environ),
            "path": sys.path,
        }
        body = json.dumps(message, default=float).encode()
        theirs = run.open_reports()
        try:
            socket.send_fds(self._control, [REQUEST], [theirs])
        finally:
            os.close(theirs)
        self._control.sendall(len(body).to_bytes(8) + body)


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False
