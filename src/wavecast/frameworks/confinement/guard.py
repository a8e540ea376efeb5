"""The guard: a confined process that starts the script's, and ends all that the script leaves.

A script can start processes of which nobody is told: a daemon leaves its parent and its session.
The guard adopts what loses its parent. It runs nothing of the script's, and the script, which is
confined once more, can neither signal nor trace it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from wavecast.frameworks.confinement.kernel import adopt_orphans, end_with_parent

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
