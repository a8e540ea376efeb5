"""Training scripts, run unchanged and without a GPU until their step repeats itself."""

from __future__ import annotations

import ast
import atexit
import codecs
import importlib.util
import json
import os
import re
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

from wavecast.errors import CaptureError, InvalidInput, needing_extra
from wavecast.files import remove_folder
from wavecast.frameworks import children, stages
from wavecast.frameworks.confinement import kernel
from wavecast.frameworks.pytorch.compiled import plans as plan_store
from wavecast.frameworks.script_results import (
    COMPILES,
    ENDS,
    INTERRUPTED,
    LONGEST_REPORT,
    REQUEST,
    STOPS,
    UNCOMPILED,
    Doing,
    Failure,
    Late,
    Report,
    RunOptions,
    read_report,
    read_result,
)
from wavecast.hardware.devices import Device, device, save
from wavecast.traces.script import ScriptRun

PATIENCE_S = 120.0
"""How many seconds a script may take to a step."""


def run_script(
    script: str | PathLike[str],
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    gpu: Device | str | None = None,
    capability: tuple[int, int] | None = None,
    steps: int | None = None,
    until: str | None = None,
    samples: int | None = None,
    progress: Callable[[int], None] | None = None,
    assume: Mapping[str, Any] | None = None,
    ranks: int | None = None,
    patience: float | None = PATIENCE_S,
    offline: bool = False,
    changes: Sequence[str] = (),
    lines: bool = False,
    loader: bool = False,
    quiet: bool = False,
) -> ScriptRun:
    """The step that a training script repeats. The script runs as it is, and no GPU is needed.

    The script runs in a process of its own, as on a machine with a GPU, until two steps in a row
    did the same. It can write to a scratch folder only (`ScriptRun.confined`).

    Example:
        ```python
        trace = wavecast.run_script("train.py", ["--batch-size", "64"]).trace
        ```

    Args:
        script: the path of the script.
        arguments: what it finds in `sys.argv` after its own name.
        module: whether `script` is the name of a module, as in `python -m package.train`.
        gpu: the GPU for which to choose kernels; a recent data-centre GPU if None.
        capability: its compute capability, instead of `gpu`.
        steps: how many steps to run. None to stop as soon as two in a row are equal.
        until: `FILE:LINE`. A step ends when this line is reached, not at an optimizer step.
        samples: the samples of one step. None to count those that a data loader gives.
        progress: called from time to time with the number of ops traced so far.
        assume: what the step reads from the GPU, by line, as for `wavecast.trace`.
        ranks: how many ranks the script's own parallel code has, as for `wavecast.trace`.
        patience: how many seconds the script may take to a step; None for any number.
        offline: whether to refuse the network to the script.
        changes: changes to its code while it runs, by the names that `wavecast.advise` has.
        lines: whether the trace names the line of code of every op, as `--by line` needs.
        loader: whether to time its data loader apart, with its workers (`ScriptRun.loading`).
        quiet: whether to leave out what it prints, which else goes to the standard error.

    Raises:
        CaptureError: the script failed, ended with an error code, or comes to no step. Its
            `__cause__` is the script's own traceback as text, its `script_code` the exit code.
        InvalidInput: there is no such script or line, or the network cannot be refused.
    """
    _check(arguments, patience)
    given, kept = assume and dict(assume), tuple(changes)
    options = RunOptions(capability, steps, until, samples, given, ranks, kept, lines, loader)
    program, target = (fspath(script), *map(str, arguments)), _device(gpu)
    request = ScriptRequest(program, module, options, target, patience, offline, quiet)
    return run_in_process(request, progress)


def _device(gpu: Device | str | None) -> Device | None:
    return device(gpu) if isinstance(gpu, str) else gpu


def _check(arguments: Sequence[str], patience: float | None) -> None:
    """Refuse wrong arguments, and to go on without a framework."""
    if isinstance(arguments, str):
        raise InvalidInput(f"arguments is the text {arguments!r}; give a list of texts")
    if patience is not None and not patience > 0:
        raise InvalidInput(f"patience is {patience}; it must be more than 0 s")
    if not any(map(importlib.util.find_spec, ("torch", "jax"))):
        with needing_extra("running a script"):
            raise ModuleNotFoundError(name="torch")


# A training script as a target: its arguments, how it is run, and which option is its batch.


_BATCH = re.compile(
    r"(per_(device|gpu)_|train(ing)?_|micro_|mini_|device_|local_)*"
    r"(batch|batch_?size|bs|b)(_per_(gpu|device)|_train)?"
)
"""The names that scripts give to the samples of a batch, without dashes and in small letters."""


@dataclass(frozen=True)
class ScriptOptions:
    """How a script is run: how many steps, where they end, how long to wait, its batch."""

    steps: int | None = None
    until: str | None = None
    patience: float = PATIENCE_S
    offline: bool = False
    batch_option: str | None = None
    """The option of the script that sets its batch. None to look for it."""
    loader: bool = False
    """Whether its data loader is timed apart."""
    quiet: bool = False
    """Whether what it prints is left out."""

    def arguments(self) -> dict[str, Any]:
        """The arguments of `wavecast.run_script`."""
        names = ("steps", "until", "patience", "offline", "loader", "quiet")
        return {name: getattr(self, name) for name in names}

    def given(self) -> list[str]:
        """The options that differ from their defaults, as they are typed."""
        names = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        return ["--" + name.replace("_", "-") for name in names]


NO_SCRIPT_OPTIONS = ScriptOptions()


@dataclass(frozen=True)
class Script:
    """A script with its arguments."""

    path: str
    """The file, or the name of a module."""
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    options: ScriptOptions = NO_SCRIPT_OPTIONS
    is_asked: bool = False
    """Whether its batch is not the user's own but asked for, so that its data may be too small."""

    @property
    def text(self) -> str:
        """The script as it is typed."""
        return shlex.join((*(("-m",) if self.is_module else ()), self.path, *self.arguments))

    @property
    def batch(self) -> int | None:
        """The batch that its arguments ask for. None if they do not say."""
        try:
            option = self._batch_option()
        except InvalidInput:
            return None
        value = self._value(option)
        return int(value) if value is not None and value.isdecimal() and int(value) else None

    def with_batch(self, batch: int) -> Script:
        """The script, asked for another batch by its own option.

        Raises:
            InvalidInput: no option of the script is known to be its batch.
        """
        option = self._batch_option()
        name, joined = option.rstrip("="), not option.startswith("-") or option.endswith("=")
        words = list(self.arguments)
        for index, word in enumerate(words):
            if word == name and not joined and index + 1 < len(words):
                words[index + 1] = str(batch)
                break
            if word.startswith(f"{name}="):
                words[index] = f"{name}={batch}"
                break
        else:
            words += [f"{name}={batch}"] if joined else [name, str(batch)]
        return replace(self, arguments=tuple(words), is_asked=True)

    def _value(self, option: str) -> str | None:
        """The value of an option among the arguments; the last one counts."""
        name, value = option.rstrip("="), None
        for word, following in pairwise((*self.arguments, None)):
            if word is not None and word.startswith(f"{name}="):
                value = word.partition("=")[2]
            elif word == name:
                value = following
        return value

    def _batch_option(self) -> str:
        """The option that sets the batch: the one that was named, or the only one there is."""
        if self.options.batch_option is not None:
            return self.options.batch_option
        words = (word.partition("=") for word in self.arguments)
        given = [name + sign for name, sign, _ in words if _is_batch(name, sign)]
        known = list(dict.fromkeys(given)) or list(self._declared())
        if len(known) == 1:
            return known[0]
        count = f"{len(known)} of its options may be: {', '.join(known)}" if known else "none is"
        raise InvalidInput(
            f"which option of {self.path} sets its batch is not known ({count}); name it, as in "
            "--batch-option --batch-size, or --batch-option train.batch= where the value follows "
            "an equals sign"
        )

    def _declared(self) -> Iterator[str]:
        """The options for a batch that the script's own file gives to an argument parser."""
        try:
            tree = ast.parse(Path(self.path).read_bytes())
        except (SyntaxError, ValueError, OSError):
            return  # running it will say what is wrong
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".add_argument"):
                names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                options = [str(name) for name in names if _is_batch(str(name), "")]
                if options:
                    yield max(options, key=len)

    def may_have(self, option: str) -> bool:
        """Whether the script's own code may take an option: it names it, or cannot be read."""
        name, seen = option.lstrip("-").replace("-", "_"), set[Path]()
        module = Path(*self.path.split("."))
        first = (module.with_suffix(".py"), module / "__main__.py") if self.is_module else ()
        waiting = [path for path in first or (Path(self.path),) if path.is_file()]
        while waiting:
            path = waiting.pop()
            seen.add(path)
            try:
                tree = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError, OSError):
                return True
            if name in _option_names(tree):
                return True
            folders = {Path(self.path).parent if not self.is_module else Path(), path.parent}
            waiting += [p for p in _local_files(tree, folders) if p not in seen]
        return not seen


def _option_names(tree: ast.Module) -> Iterator[str]:
    """The names that code may give to options: texts, arguments, fields and global variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (part.lstrip("-").replace("-", "_") for part in node.value.split("/"))
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            yield from (target.id for target in statement.targets if isinstance(target, ast.Name))


def _local_files(tree: ast.Module, folders: set[Path]) -> Iterator[Path]:
    """The files beside a script that its code imports, or names as text."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names |= {module, *(f"{module}.{alias.name}".lstrip(".") for alias in node.names)}
    paths = {Path(*name.split(".")) for name in names if name}
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    named = {Path(text) for text in texts if isinstance(text, str) and text.endswith(".py")}
    for folder in folders:
        for path in (
            {p.with_suffix(".py") for p in paths} | {p / "__init__.py" for p in paths} | named
        ):
            if (folder / path).is_file():
                yield folder / path


def _is_batch(name: str, sign: str) -> bool:
    """Whether an option's name, or the name before an equals sign, is that of a batch."""
    if not name.startswith("-") and not sign:
        return False
    last = name.lstrip("-").rpartition(".")[2]
    return _BATCH.fullmatch(last.replace("-", "_").lower()) is not None


def script_of(text: str, options: ScriptOptions = NO_SCRIPT_OPTIONS) -> Script | None:
    """The script that a text names, with its arguments; None if it names none.

    A script is `train.py --lr 0.1`, or `-m package.train --lr 0.1`.

    Raises:
        InvalidInput: there is no such file, or a quotation mark is missing.
    """
    if text.endswith(".py") and Path(text).is_file():
        return Script(text, options=options)  # its name may have spaces
    if ".py" not in text and not text.startswith("-m"):
        return None
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidInput(f"the script {text!r} cannot be read: {error}") from None
    is_module = words[:1] == ["-m"]
    path, *arguments = words[1:] if is_module else words
    if not is_module and (not path.endswith(".py") or ":" in path):
        return None
    if not is_module and not Path(path).is_file():
        raise InvalidInput(f"there is no script {path} (looked in {Path.cwd()})")
    return Script(path, tuple(arguments), is_module, options)


# One pass of a script, seen from outside: what it prints, what it says, and how it ends.
#
# The worker and its guards run no script, so they are believed. A script can write whatever its
# process can: reports, the result and the files of its folders. They are read like a stranger's
# (`script_results`), and only the worker signals processes.


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
    module: bool = False
    options: RunOptions = field(default_factory=RunOptions)
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

    def close_reports(self) -> None:
        """Hear no reports any more."""
        if self._reports >= 0:
            os.close(self._reports)

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
            reason = f"was ended by {children.signal_named(code)}"
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
            message += _REFUSED if kernel.version() else ""
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


# The process in which a script runs, seen from outside.
#
# Scripts run below one worker, which has torch imported if it is installed. Each pass of a script
# has folders of its own, into which nothing is written from here.


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
            options = replace(request.options, compiles=True, uncompiled=uncompiled)
            request = replace(request, options=options)
            result = _present_worker().run(request, progress)
    if isinstance(result, Failure):
        raise result.raised()
    return result


class _Folders(NamedTuple):
    """The folders of one pass of a script: the script can write to all but the first."""

    top: Path
    """The folder of the others, which the script cannot replace."""
    temporary: Path
    """The folder of the script's own files."""
    result: Path
    plans: Path
    """The folder of new plans of compiled graphs."""


@contextmanager
def _new_folders() -> Iterator[_Folders]:
    """Folders that are removed at the end."""
    top = Path(tempfile.mkdtemp(prefix="wavecast-")).resolve()
    folders = _Folders(top, top / "temporary", top / "result", top / "plans")
    try:
        for folder in folders[1:]:
            folder.mkdir()
        yield folders
    finally:
        remove_folder(top)


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
        is_typed = False
        with suppress(OSError):
            is_typed = sys.__stdin__ is not None and os.isatty(0)
        self._process = subprocess.Popen(
            children.command(_WORKER, theirs.fileno(), switches=True),
            stdin=subprocess.DEVNULL if is_typed else None,
            stdout=their_output,
            stderr=their_output,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # Ctrl-C is ours to handle
            env=children.environment(),
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
                run.close_reports()
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
            "options": asdict(request.options),
            "gpu": gpu,
            "patience_s": request.patience_s,
            "offline": request.offline,
            "landlock": request.landlock,
            "top": str(folders.top),
            "writable": [str(folder) for folder in folders[1:]],
            "temporary": str(folders.temporary),
            "result": str(folders.result),
            "new_plans": str(folders.plans),
            "plans": str(plan_store.script_folder(request.program[0])),
            "folder": str(Path.cwd()),
            "environment": dict(os.environ),
            "path": sys.path,
        }
        body = children.packed(message, default=float)
        theirs = run.open_reports()
        try:
            socket.send_fds(self._control, [REQUEST], [theirs])
        finally:
            os.close(theirs)
        self._control.sendall(body)
