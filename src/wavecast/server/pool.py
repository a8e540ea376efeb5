"""The worker processes of a server: a bounded number, each with one question at a time."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import wavecast
from wavecast.errors import DoubtfulInput, InvalidInput, WavecastError
from wavecast.frameworks import children
from wavecast.server.guard import ServerLimits
from wavecast.server.store import make_folder

_END_S = 5.0
"""The longest that a worker takes to end after its last words."""


class ServerBusy(WavecastError):
    """Too many questions wait already; ask again in a few seconds."""


class Unanswerable(WavecastError):
    """A question took a worker more time or memory than it may have."""


@dataclass(eq=False)
class _Waiting:
    """A question that somebody waits for."""

    question: Mapping[str, Any]
    topic: str
    """Questions of one topic are best answered by the same worker: it has the trace at hand."""
    visitor: str
    answer: asyncio.Future[dict[str, Any]]
    waiters: int = 0


@dataclass(eq=False)
class _WorkerProcess:
    process: asyncio.subprocess.Process
    topic: str = ""
    jobs: int = 0

    async def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(children.packed(question, allow_nan=False))
        await self.process.stdin.drain()
        length = int.from_bytes(await self.process.stdout.readexactly(children.LENGTH_BYTES))
        answer: dict[str, Any] = json.loads(await self.process.stdout.readexactly(length))
        return answer

    async def status(self) -> int | None:
        """The exit status of a process that stopped answering; None if it goes on."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                return await self.process.wait()
        return None

    async def end(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


@dataclass(eq=False)
class WorkerPool:
    """Worker processes that answer questions, equal ones only once."""

    limits: ServerLimits
    folder: Path
    """The working folder of the workers."""
    _waiting: OrderedDict[str, _Waiting] = field(default_factory=OrderedDict)
    _running: dict[str, _Waiting] = field(default_factory=dict)
    _idle: list[_WorkerProcess] = field(default_factory=list)
    _all: set[_WorkerProcess] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _closed: bool = False

    def __post_init__(self) -> None:
        make_folder(self.folder)

    async def start(self) -> None:
        """Start the workers, and let each load what most questions need."""
        for _ in range(self.limits.workers):
            self._spawn_later()

    async def close(self) -> None:
        """End all workers. Questions that wait get no answer."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        for waiting in (*self._waiting.values(), *self._running.values()):
            waiting.answer.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in self._all))

    @property
    def load(self) -> dict[str, int]:
        """How many questions wait and run, and how many workers there are."""
        return {
            "waiting": len(self._waiting),
            "running": len(self._running),
            "workers": len(self._all),
        }

    def places(self, visitor: str) -> list[int]:
        """Where the questions of a visitor are in the queue; 0 for one that is being answered."""
        running = [0 for waiting in self._running.values() if waiting.visitor == visitor]
        queue = enumerate(self._waiting.values(), start=1)
        return running + [place for place, waiting in queue if waiting.visitor == visitor]

    async def ask(
        self, key: str, topic: str, question: Mapping[str, Any], visitor: str = ""
    ) -> dict[str, Any]:
        """The answer of a worker. Questions are answered in the order in which they came.

        A question of the same key that already waits or runs is not asked again. If all who wait
        for a question go away before it has begun, it is forgotten.

        Raises:
            ServerBusy: too many questions wait, or of this visitor, or this one has waited too
                long.
            Unanswerable: it took too long, or too much memory.
            WavecastError: the worker refused; says why.
        """
        waiting = self._waiting.get(key) or self._running.get(key)
        if waiting is None:
            if len(self._waiting) >= self.limits.queue:
                raise ServerBusy("too many questions wait for an answer; try again in a moment")
            if visitor and len(self.places(visitor)) >= self.limits.visitor_queue:
                raise ServerBusy(
                    f"{self.limits.visitor_queue} of your questions wait already; try again when "
                    "one is answered"
                )
            answer = asyncio.get_running_loop().create_future()
            waiting = _Waiting(question, topic, visitor, answer)
            self._waiting[key] = waiting
            self._dispatch()
        waiting.waiters += 1
        try:
            async with asyncio.timeout(self.limits.answer_s):
                reply = await asyncio.shield(waiting.answer)
        except TimeoutError:
            raise ServerBusy("the answer took too long; try again later") from None
        finally:
            waiting.waiters -= 1
            if not waiting.waiters and self._waiting.get(key) is waiting:
                del self._waiting[key]
        return _checked(reply)

    def _dispatch(self) -> None:
        """Give waiting questions to idle workers, the longest waiting one first."""
        self._replace_dead()
        while self._idle and self._waiting:
            key, waiting = self._waiting.popitem(last=False)
            near = [worker for worker in self._idle if worker.topic == waiting.topic]
            worker = (near or self._idle)[-1]
            self._idle.remove(worker)
            self._running[key] = waiting
            self._background(self._serve(worker, key, waiting))

    def _replace_dead(self) -> None:
        """Replace workers that ended while they had nothing to do: the system wanted memory."""
        for worker in [idle for idle in self._idle if idle.process.returncode is not None]:
            self._idle.remove(worker)
            self._all.discard(worker)
            self._spawn_later()

    async def _serve(self, worker: _WorkerProcess, key: str, waiting: _Waiting) -> None:
        reply: dict[str, Any] = {"ended": "worker", "status": None}
        try:
            async with asyncio.timeout(self.limits.job_s):
                reply = await worker.ask(waiting.question)
        except TimeoutError:
            reply = {"ended": "time", "limit_s": self.limits.job_s}
        except (OSError, EOFError, ValueError):
            reply = {"ended": "worker", "status": await worker.status()}
        finally:
            self._running.pop(key, None)
            worker.topic, worker.jobs = waiting.topic, worker.jobs + 1
            if not waiting.answer.done():
                waiting.answer.set_result(reply)
            await self._keep_or_replace(worker, broken="ended" in reply)

    async def _keep_or_replace(self, worker: _WorkerProcess, broken: bool) -> None:
        if broken or worker.jobs >= self.limits.jobs:
            self._all.discard(worker)
            await worker.end()
            if not self._closed:
                self._spawn_later()
            return
        self._idle.append(worker)
        self._dispatch()

    def _spawn_later(self) -> None:
        self._background(self._spawn())

    async def _spawn(self) -> None:
        try:
            worker = _WorkerProcess(await self._process())
        except OSError:  # the system has no room for a process at the moment
            await asyncio.sleep(1)
            self._spawn_later()
            return
        self._all.add(worker)
        try:
            async with asyncio.timeout(self.limits.job_s):
                await worker.ask({"ask": "warm"})
        except (TimeoutError, OSError, EOFError, ValueError):
            worker.jobs = self.limits.jobs  # it answers, or is replaced, with its first question
        self._idle.append(worker)
        self._dispatch()

    async def _process(self) -> asyncio.subprocess.Process:
        source = str(Path(wavecast.__file__).parents[1])
        environment = children.environment(
            [source, *os.environ.get("PYTHONPATH", "").split(os.pathsep)],
            OMP_NUM_THREADS="1",  # one question on one core; there are as many workers as cores
            MKL_NUM_THREADS="1",
            TMPDIR=tempfile.gettempdir(),
        )
        return await asyncio.create_subprocess_exec(
            *children.command("wavecast.server.pool", self.limits.job_bytes, os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=self.folder,
            env=environment,
        )

    def _background(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _checked(reply: Mapping[str, Any]) -> dict[str, Any]:
    """The reply of a worker, if it is an answer."""
    if "answer" in reply:
        return dict(reply)
    if "refused" in reply:
        kinds = {kind.__name__: kind for kind in _refusals()}
        raise kinds.get(str(reply["kind"]), InvalidInput)(reply["refused"])
    if reply["ended"] == "time":
        raise Unanswerable(
            f"this took longer than {reply['limit_s']:g} seconds and was ended; ask for a smaller "
            "model or fewer GPUs"
        )
    if reply["ended"] == "memory":
        raise Unanswerable(
            "this needs more memory than a question may take; ask for a smaller model, or upload "
            "a smaller file"
        )
    if reply["ended"] == "worker":
        raise Unanswerable(
            f"the process that worked on this ended {_manner(reply['status'])}; ask again, and if "
            "that ends so too, ask for a smaller model or upload a smaller file"
        )
    raise Unanswerable(f"this could not be answered ({reply['ended']}); it is our fault")


def _manner(status: int | None) -> str:
    """How a worker ended, as far as its exit status says."""
    if status is None:
        return "its answers without a reason"
    if status >= 0:
        return f"by itself (exit status {status})"
    return f"by {children.signal_named(status)}"


def _refusals() -> list[type[WavecastError]]:
    classes, kinds = [WavecastError], [WavecastError]
    while kinds:
        kinds = [kind for parent in kinds for kind in parent.__subclasses__()]
        classes += kinds
    return classes


# A worker process: it answers one question after the other until its input ends.
#
# Questions come on the standard input, answers leave on the standard output; what libraries print
# goes elsewhere. The process limits its
# own memory, and the server ends it when it takes too long, so a hostile file costs one worker at
# most. It ends by itself when its server is gone, whatever it is doing then.


_CANNOT_GO_ON = 70
"""The exit code after an error that leaves the process in an unknown state."""
_LOOK_S = 1.0
"""How often a worker looks whether its server is still there."""


def main() -> None:
    """Answer questions until there are no more."""
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    limit_memory(int(sys.argv[1]))
    threading.Thread(target=end_without, args=(int(sys.argv[2]),), daemon=True).start()
    while (question := children.received(questions.read)) is not None:
        answer = answered(question)
        answers.write(children.packed(answer, allow_nan=False))
        answers.flush()
        if answer.get("ended"):
            sys.exit(_CANNOT_GO_ON)


def end_without(parent: int) -> None:
    """End this process as soon as its parent is another one: the server was killed."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(0)


def limit_memory(most_bytes: int) -> None:
    """Let this process allocate no more than this, where the system can hold it to that."""
    with suppress(ImportError):  # not on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def answered(question: dict[str, Any]) -> dict[str, Any]:
    """The answer to a question, or why there is none; never an exception."""
    from wavecast.server import answers

    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answer = answers.ANSWERS[question["ask"]](question)
        doubts = [str(w.message) for w in caught if issubclass(w.category, DoubtfulInput)]
        return {"answer": answer, "doubts": doubts}
    except WavecastError as error:
        return {"refused": str(error), "kind": type(error).__name__}
    except MemoryError:
        return {"ended": "memory"}
    except Exception as error:
        # The message may hold anything, a path for example: only its kind leaves the process.
        return {"ended": type(error).__name__}


if __name__ == "__main__":
    main()
