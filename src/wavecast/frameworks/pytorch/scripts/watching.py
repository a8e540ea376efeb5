"""A look at a running script from another thread: what it does, where, and whether it gets on."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from wavecast.frameworks.pytorch.recording.user_lines import (
    UNKNOWN_LINE,
    is_ours,
    is_users,
    source_line,
    user_line_of,
)
from wavecast.frameworks.script_results import STOP
from wavecast.frameworks.stages import Watched, current

_TICK_S = 0.25
_GRACE_S = 5.0
"""How long a script that is stopped may take to end."""
_AHEAD_S = 10.0
"""For how long a script may look for rare work at most, once its step is known."""
_open = open  # the real one: the script's is redirected


class Watcher:
    """Tells twice a second what a script does, and stops one that comes to no step.

    Args:
        script: the script's name.
        patience_s: how many seconds it may take to the end of a step. None for any number.
            Compiling does not count, nor does waiting for a free processor.
        tell: called with what the script does and how many ops were recorded.
        warn: called with a message before the script is stopped, which may end the process.
        give_up: called with a message if the script does not let itself be stopped.
    """

    def __init__(
        self,
        script: str,
        patience_s: float | None,
        tell: Callable[[str, int], None],
        warn: Callable[[str], None],
        give_up: Callable[[str], None],
    ) -> None:
        self._script, self._patience_s = script, patience_s
        self._tell, self._warn, self._give_up = tell, warn, give_up
        self._loop: Watched | None = None
        self._why = ""
        self._has_looked = False
        self.interrupted = False
        """Whether the user stopped the script."""
        self._thread = threading.get_ident()
        self._clock = PatienceClock()

    @contextmanager
    def watching(self, loop: Watched) -> Iterator[None]:
        """Watch a loop inside the block. The script must run in the main thread."""
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(loop, over), daemon=True)
        before = signal.signal(STOP, self._stop)
        show = threading.excepthook

        def show_while_running(error: threading.ExceptHookArgs) -> None:
            if loop.running:  # later, its files are gone, and a logger's thread fails
                show(error)

        threading.excepthook = show_while_running
        self._loop = loop
        watch.start()
        try:
            yield
        finally:
            self._loop = None
            over.set()
            signal.signal(STOP, before)
            threading.excepthook = show

    def doing(self) -> str:
        """What the script does, and at which line."""
        frame = sys._current_frames().get(self._thread)
        line = user_line_of(frame)
        at = "" if line == UNKNOWN_LINE else f", at {line}"
        if module := _imported(frame):
            return f"importing {module}{at}"
        if current():
            return f"{current()}{at}"
        loop = self._loop
        if loop is None:
            return f"running {self._script}"
        if loop.boundaries:
            end = loop.boundaries[-1].line
            return f"running step {len(loop.boundaries) + 1} of the loop at {end}{at}"
        if loop.first_trained is not None:
            return f"running the first step{at}"
        return f"running {self._script} up to its first step{at}"

    def _watch(self, loop: Watched, over: threading.Event) -> None:
        steps, since_s, asked_s, known_s = -1, 0.0, None, None
        while not over.wait(_TICK_S):
            doing, now_s = self.doing(), self._clock.spent_s(is_paused=bool(current()))
            self._tell(doing, loop.ops_recorded)
            if len(loop.boundaries) != steps:
                steps, since_s = len(loop.boundaries), now_s
            if loop.looks_ahead:
                known_s = now_s if known_s is None else known_s
                self._has_looked = now_s - known_s > _AHEAD_S
            if self._has_looked and loop.running:
                signal.pthread_kill(self._thread, STOP)
                continue
            is_late = self._patience_s is not None and now_s - since_s > self._patience_s
            if not self._why and is_late:
                self._why = self._impatience(steps, doing)
                self._warn(f"{self._script} {self._why}")
            if self._why and loop.running:
                asked_s = asked_s or time.monotonic()
                if time.monotonic() - asked_s > _GRACE_S and not over.is_set():
                    self._give_up(f"{self._script} {self._why}")
                signal.pthread_kill(self._thread, STOP)

    def _stop(self, _signal: int, frame: FrameType | None) -> None:
        loop = self._loop
        if not self._why and not self._has_looked:
            self.interrupted = True
            self._why = f"was interrupted while {self.doing()}{_inner(frame)}"
        if loop is not None and loop.running:
            loop.cut(self._why)

    def _impatience(self, steps: int, doing: str) -> str:
        frame = sys._current_frames().get(self._thread)
        come = f"came to no {'further ' if steps else 'optimizer '}step in {self._patience_s:g} s"
        loop = self._loop
        endless = "" if loop is None else loop.why_endless()
        advice = endless or (
            "give it more time with --patience (patience=)"
            if steps
            else "if it trains, name the line that ends a step with --until FILE:LINE (until=); if "
            "it prepares something, do that before, or give more time with --patience (patience=)"
        )
        return f"{come}; it was {doing}{_inner(frame)}; {advice}"


def _imported(frame: FrameType | None) -> str:
    """The module that the innermost line of the user's code imports; empty if it does not."""
    name = ""
    while frame is not None and not is_users(frame.f_code.co_filename):
        if frame.f_code.co_name == "_find_and_load":
            name = str(frame.f_locals.get("name", name))
        frame = frame.f_back
    return name if frame is not None else ""


def _inner(frame: FrameType | None) -> str:
    """The line of a library in which the user's line is, as the end of a sentence."""
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None or is_users(frame.f_code.co_filename):
        return ""
    return f" (in {source_line(frame.f_code.co_filename, frame.f_lineno)})"


class PatienceClock:
    """The time that a script spends, without pauses and without waiting for a free processor."""

    def __init__(self) -> None:
        self._schedule = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        self._last_s = self._raw_s()
        self._spent_s = 0.0

    def spent_s(self, *, is_paused: bool) -> float:
        """The seconds so far. Those since the last call do not count if they were a pause."""
        now_s = self._raw_s()
        self._spent_s += 0.0 if is_paused else max(0.0, now_s - self._last_s)
        self._last_s = now_s
        return self._spent_s

    def _raw_s(self) -> float:
        waited_ns = 0
        with suppress(OSError, ValueError, IndexError), _open(self._schedule) as file:
            waited_ns = int(file.read().split()[1])
        return time.monotonic() - waited_ns * 1e-9


def end_at_once(code: int) -> None:
    """End this process without running anything that was left for its end."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)
