"""Processes that prepare at the same time and measure one at a time.

A process builds and compiles its task, says that it is ready, and waits. While one measures, all
others are stopped (SIGSTOP), so that it has the machine to itself. Each task has a process of its
own, since a profiler slows a process down for good.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

QUIET_S = 0.15
"""What is queued on the GPU when the others are stopped needs this long to finish."""
MEASURE_S = 40.0
"""A measurement that takes longer is given up."""
LAST_MEASURE_S = 4.0
"""Nothing is measured so shortly before the end."""


@dataclass(frozen=True)
class Turn:
    """What the process of a task says to the one that gives turns, through a pipe."""

    task: str
    descriptor: int

    def say(self, **words: str) -> None:
        """Say `done` or `failed`, each with some words."""
        os.write(self.descriptor, (json.dumps(words) + "\n").encode())

    def wait(self) -> None:
        """Say that all is ready to be measured, and wait for the turn."""
        self.say(ready=self.task)
        sys.stdin.readline()


class Worker:
    """The process of one task, with caches of its own."""

    def __init__(self, command: Sequence[str], task: str, folder: Path) -> None:
        self.task, self.since = task, time.monotonic()
        own = folder / f"caches-{task.replace(' ', '-')}"
        own.mkdir(parents=True, exist_ok=True)
        reading, writing = os.pipe()
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(own),
            "TRITON_CACHE_DIR": str(own / "triton"),
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
            "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
            "TORCHINDUCTOR_COMPILE_THREADS": "2",
            "OMP_NUM_THREADS": "1",
        }
        self.log = own / "log.txt"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command, *task.split(), str(writing)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(writing,),
                env=environment,
                start_new_session=True,
            )
        os.close(writing)
        self.replies = os.fdopen(reading, "r", encoding="utf-8")

    def go(self) -> None:
        """Let it measure."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(b"go\n")
            self.process.stdin.flush()

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
            os.killpg(self.process.pid, number)

    def end(self) -> None:
        """Kill the process."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        self.process.wait()
        self.replies.close()


@dataclass
class Turns:
    """Tasks that are prepared by several processes at once and measured in turn."""

    command: Sequence[str]
    """The command of a worker, to which the words of its task and a file descriptor are added."""
    folder: Path
    tasks: deque[str]
    count: int
    until: float
    """When all ends, by `time.monotonic`."""
    failures: dict[str, str] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    _busy: list[Worker] = field(default_factory=list)

    def run(self) -> list[str]:
        """Measure until all is done or the time is up; returns the tasks that are not finished."""
        try:
            while time.monotonic() < self.until - LAST_MEASURE_S:
                while self.tasks and len(self._busy) < self.count:
                    self._busy.append(Worker(self.command, self.tasks.popleft(), self.folder))
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
            answer = worker.reply(min(MEASURE_S, left_s))
            self._keep(worker, answer or {"failed": "took too long to measure"})
        for worker in self._busy:
            worker.signal(signal.SIGCONT)

    def _keep(self, worker: Worker, answer: dict[str, Any]) -> None:
        if "done" in answer:
            self.done.append(worker.task)
        else:
            log = worker.log.read_bytes()[-600:].decode(errors="replace")
            self.failures[worker.task] = f"{answer['failed']} {log}"[:1500]
        took_s = time.monotonic() - worker.since
        said = answer.get("done", answer.get("failed", ""))
        print(f"{worker.task:36} {took_s:5.0f} s  {str(said)[:150]}", flush=True)
        self._busy.remove(worker)
        worker.end()
