"""A confined process may write to its own folders only; a guard ends what it leaves running."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from wavecast.errors import InvalidInput
from wavecast.frameworks.confinement import kernel, system_calls
from wavecast.frameworks.confinement.kernel import adopt_orphans, end_with_parent, is_linux

_DEVICES = (
    *("null", "zero", "full", "random", "urandom", "ptmx"),
    *("nvidia*", "nvidia-caps/*", "kfd", "dri/*"),
)
"""Device files below /dev that hold nothing of the user's. Terminals are not: not those that are
open, nor `tty`, which is one that a process has made its own."""
_ROOT = 0


@dataclass(frozen=True)
class Confinement:
    """What the kernel refuses to a process and to all that it starts."""

    folders: tuple[str, ...]
    """The folders that it may write to."""
    files: bool
    """Whether files outside of its own folders cannot be written, made, moved or removed."""
    metadata: bool
    """Whether their permissions, owners, times and attributes cannot be changed."""
    network: bool
    """Whether no network can be reached."""
    signals: bool
    """Whether processes outside cannot be signalled."""
    shared_memory: bool
    """Whether the shared memory that it can write is its own."""
    is_root: bool
    """Whether its user is root."""

    @property
    def is_complete(self) -> bool:
        """Whether no file of the user's can be changed."""
        return self.files and self.metadata

    def unpromised(self) -> tuple[str, ...]:
        """What the kernel does not refuse, in words."""
        others_memory = f"changing what other programs put into {kernel.SHARED_MEMORY}"
        dangers = {
            "writing files through programs and libraries in C": not self.files,
            "changing permissions and times of files": not self.metadata,
            "signalling other processes": not self.signals,
            others_memory: not self.shared_memory,
            "reading all files and having services that obey root, such as those of containers, "
            "write some (you are root; run it as another user)": self.is_root,
        }
        return tuple(what for what, is_possible in dangers.items() if is_possible)


def confine(
    folders: tuple[str, ...], *, offline: bool = False, known: int | None = None
) -> Confinement:
    """Let this process and all that it starts write to some folders only, from here on.

    Call it while the process has one thread: others would keep their rights.

    Args:
        known: the version of Landlock. None to ask the kernel; 0 for a kernel that has none.

    Raises:
        InvalidInput: the network is to be refused, and this system cannot do that.
    """
    known = kernel.version() if known is None else known
    has_left = offline and is_linux() and kernel.leave_network()
    has_own_memory = bool(known) and kernel.own_shared_memory()
    folders += _shared_memory(has_own_memory) if known else ()
    if is_linux():
        _is_done(kernel.drop_capabilities)
    files = bool(known) and _is_done(partial(restrict_files, folders, known))
    metadata = is_linux() and _is_done(
        partial(system_calls.filter_calls, network=not offline or has_left)
    )
    if offline and not has_left and not metadata:
        raise InvalidInput(
            "this system cannot refuse the network to a script, so --offline (offline=) cannot be "
            "kept; run it on Linux, or disconnect the machine"
        )
    return Confinement(
        folders,
        files=files and known >= kernel.COMPLETE,
        metadata=metadata,
        network=offline,
        signals=files and known >= kernel.SIGNALS_SINCE,
        shared_memory=files and (has_own_memory or kernel.SHARED_MEMORY not in folders),
        is_root=os.getuid() == _ROOT,
    )


def restrict_files(folders: tuple[str, ...], known: int) -> None:
    """Let this process write to folders and harmless devices only.

    Done twice, the second time in a child, it also hides the parent from the child: neither can it
    signal its parent nor trace it.

    Raises:
        OSError: the kernel refuses.
    """
    kernel.restrict(kernel.Writable(folders, _devices()), known)


def _is_done(restrict: Callable[[], None]) -> bool:
    try:
        restrict()
    except OSError:
        return False
    return True


def _devices() -> tuple[str, ...]:
    paths = [path for name in _DEVICES for path in Path("/dev").glob(name)]
    return tuple(str(path) for path in paths if path.is_char_device())


def _shared_memory(is_own: bool) -> tuple[str, ...]:
    """The folder of shared memory, if nothing in it could be changed that is there already."""
    folder = Path(kernel.SHARED_MEMORY)
    if not folder.is_dir():
        return ()
    is_used = not is_own and any(os.access(path, os.W_OK) for path in folder.iterdir())
    return () if is_used else (str(folder),)


# The guard: a confined process that starts the script's, and ends all that the script leaves.
#
# A script can start processes of which nobody is told: a daemon leaves its parent and its session.
# The guard adopts what loses its parent. It runs nothing of the script's, and the script, which is
# confined once more, can neither signal nor trace it.


_PATIENCE_S = 10.0
"""How long processes may take to end: one may wait for a disk."""


def run_guarded(
    body: Callable[[], None], passed_on: int, parent: int, *, all_are_ours: bool
) -> int:
    """Run a function in a process; its exit code, once nothing runs that it has started.

    SIGTERM ends that process. So does the end of this process's parent.

    Args:
        passed_on: another signal, which is passed on to that process.
        all_are_ours: whether this process can signal only what the function's process has started:
            Landlock refuses all else (`Confinement.signals`).
    """
    starter, script = os.getpid(), 0

    def pass_on(number: int, _: object) -> None:
        if script:
            os.kill(script, signal.SIGKILL if number == signal.SIGTERM else number)
        elif number == signal.SIGTERM:
            os._exit(1)

    numbers = (signal.SIGTERM, passed_on)
    before = [signal.signal(number, pass_on) for number in numbers]
    adopt_orphans()
    end_with_parent(signal.SIGTERM, parent)
    script = os.fork()
    if not script:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        os.setsid()
        end_with_parent(signal.SIGKILL, starter)
        body()
        os._exit(0)
    ended, status = os.wait()
    while ended != script:
        ended, status = os.wait()
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):  # all that there is to do where orphans cannot be adopted
        os.killpg(script, signal.SIGKILL)
    end_children(all_are_ours=all_are_ours and not _can_signal(parent))
    return os.waitstatus_to_exitcode(status)


def end_children(*, all_are_ours: bool = False) -> None:
    """End all that this process has started or adopted, and that is left.

    Args:
        all_are_ours: whether it may signal all processes that it can. None escapes that by a fork.
    """
    until_s = time.monotonic() + _PATIENCE_S
    while _has_children() and time.monotonic() < until_s:
        for process in [-1] if all_are_ours else _children():
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.001)


def _has_children() -> bool:
    """Whether a child is left; those that have ended are forgotten."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    return False


def _children() -> list[int]:
    """The processes whose parent this one is, where there is a /proc."""
    here, children = str(os.getpid()), []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            if path.read_text(errors="replace").rpartition(")")[2].split()[1] == here:
                children.append(int(path.parent.name))
    return children


def _can_signal(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True
