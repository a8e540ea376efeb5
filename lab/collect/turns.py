"""Processes that prepare at the same time and measure one at a time.

A process builds and compiles its task, says that it is ready, and waits for its turn. While one has
its turn, all others are stopped (SIGSTOP), so that it has the machine to itself. A task may ask for
several turns. Each task has a process of its own, since a profiler slows a process down for good.
The processes are forked from one that has imported the libraries already, which takes longer than
many a measurement.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

QUIET_S = 0.1
"""What is queued on the GPU when the others are stopped needs this long to finish."""
MEASURE_S = 40.0
"""A turn that takes longer is given up."""
LAST_MEASURE_S = 4.0
"""Nothing is measured so shortly before the end."""


ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "3",
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
}
"""What torch must find in the environment of a task when it is imported."""


@dataclass(frozen=True)
class Turn:
    """What the process of a task says to the one that gives turns, which answers on stdin."""

    task: str
    descriptor: int

    def say(self, **words: str) -> None:
        """Say `ready`, `over`, `done` or `failed`, each with some words."""
        os.write(self.descriptor, (json.dumps(words) + "\n").encode())

    def wait(self) -> None:
        """Say that all is ready to be measured, and wait for the turn, which lasts to the end."""
        self.say(ready=self.task)
        while os.read(0, 1) not in (b"\n", b""):
            pass

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for the turn, and give it up afterwards."""
        self.wait()
        yield
        self.say(over=self.task)


Work = Callable[[Turn], str]
"""Does a task in a process of its own, and returns a few words about what it found."""


def in_new_process(*command: str) -> Work:
    """Work by a command of Python, to which the words of the task and a descriptor are added."""

    def work(turn: Turn) -> str:
        os.set_inheritable(turn.descriptor, True)
        words = (*command, *turn.task.split(), str(turn.descriptor))
        os.execve(sys.executable, [sys.executable, *words], os.environ | ENVIRONMENT)

    return work


class Worker:
    """The process of one task, with caches of its own."""

    def __init__(self, work: Work, task: str, folder: Path) -> None:
        self.task, self.since = task, time.monotonic()
        own = folder / f"caches-{task.replace(' ', '-')}"
        own.mkdir(parents=True, exist_ok=True)
        self.log = own / "log.txt"
        hearing, saying = os.pipe()
        reading, self._going = os.pipe()
        sys.stdout.flush()
        self.process = os.fork()
        if self.process == 0:
            os.dup2(reading, 0)
            self._work(work, own, Turn(task, saying))
        os.close(saying)
        os.close(reading)
        self.replies = os.fdopen(hearing, "rb", buffering=0)  # or a line waits where none looks

    def _work(self, work: Work, own: Path, turn: Turn) -> None:
        """Do the task and end, in the new process."""
        os.setsid()
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(own)
        os.environ["TRITON_CACHE_DIR"] = str(own / "triton")
        try:
            turn.say(done=work(turn))
        except BaseException as error:
            text = traceback.format_exc(limit=-3)[-500:]
            turn.say(failed=f"{type(error).__name__}: {str(error)[:300]} {text}")
        finally:
            os._exit(0)

    def go(self) -> None:
        """Let it have its turn."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._going, b"go\n")

    def reply(self, timeout_s: float) -> dict[str, Any] | None:
        """What it says next; None if there is nothing in time."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.replies, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                return None
        line = self.replies.readline()
        if not line:
            return {"failed": "the process ended"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def signal(self, number: int) -> None:
        """Send a signal to the process and to those that compile for it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, number)

    def end(self) -> None:
        """Kill the process."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # before it became the leader of its group
            os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        self.replies.close()
        os.close(self._going)


@dataclass
class Turns:
    """Tasks that are prepared by several processes at once and measured in turn."""

    work: Work
    folder: Path
    tasks: deque[str]
    count: int
    """How many processes there are at a time."""
    until: float
    """When all ends, by `time.monotonic`."""
    after: Callable[[], None] = lambda: None
    """Called after each task that was done, so that a run that is killed leaves what it has."""
    failures: dict[str, str] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    _busy: list[Worker] = field(default_factory=list)

    def run(self) -> list[str]:
        """Measure until all is done or the time is up; returns the tasks that are not finished."""
        try:
            while time.monotonic() < self.until - LAST_MEASURE_S:
                while self.tasks and len(self._busy) < self.count:
                    self._busy.append(Worker(self.work, self.tasks.popleft(), self.folder))
                if not self._busy:
                    break
                self._wait()
        finally:
            open_tasks = [worker.task for worker in self._busy]
            for worker in self._busy:
                worker.end()
        return [*open_tasks, *self.tasks]

    def _wait(self) -> None:
        with selectors.DefaultSelector() as selector:
            for worker in self._busy:
                selector.register(worker.replies, selectors.EVENT_READ, worker)
            heard = [key.data for key, _ in selector.select(1.0)]
        waiting = []
        for worker in heard:
            answer = worker.reply(0.0) or {"failed": "no reply"}
            if "ready" in answer:
                waiting.append(worker)
            else:
                self._keep(worker, answer)
        if waiting:
            self._measure(waiting)

    def _measure(self, waiting: Sequence[Worker]) -> None:
        for worker in self._busy:
            worker.signal(signal.SIGSTOP)
        time.sleep(QUIET_S)
        for worker in waiting:
            left_s = self.until - time.monotonic()
            if left_s < LAST_MEASURE_S:
                break
            worker.signal(signal.SIGCONT)
            worker.go()
            answer = worker.reply(min(MEASURE_S, left_s)) or {"failed": "took too long to measure"}
            if "over" in answer:
                worker.signal(signal.SIGSTOP)
            else:
                self._keep(worker, answer)
        for worker in self._busy:
            worker.signal(signal.SIGCONT)

    def _keep(self, worker: Worker, answer: dict[str, Any]) -> None:
        if "done" in answer:
            self.done.append(worker.task)
            self.after()
        else:
            log = worker.log.read_bytes()[-600:].decode(errors="replace")
            self.failures[worker.task] = f"{answer['failed']} {log}"[:1500]
        took_s = time.monotonic() - worker.since
        said = answer.get("done", answer.get("failed", ""))
        print(f"{worker.task:36} {took_s:5.0f} s  {str(said)[:150]}", flush=True)
        self._busy.remove(worker)
        worker.end()
