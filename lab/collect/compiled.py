"""What do compiled steps take? Measures steps eager and compiled, kernel by kernel, on this GPU.

    python -m lab.collect.compiled OUT [--seconds 530] [--workers 10] [--only NAME ...] [--host]
                                   [--blind-2]

Needs a GPU, torch with Triton, torchvision and transformers. Compiling takes most of the time, so
that several processes compile at once. As soon as one is ready, the others are stopped (SIGSTOP),
it measures alone on the machine, and they go on. Writes OUT/steps.jsonl.gz (one line per step:
times, memory, and every kernel with the node of Inductor that it came from), OUT/kernels.jsonl.gz
(one line per bundle of small functions) and OUT/about.json. With --host, no profiler runs, and
`lab.collect.compiled_host` says what is measured.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

from lab.collect.compiled_host import tasks as host_tasks
from lab.collect.gpu_steps import folder_and_seconds
from lab.steps.compiled import HOST_STEPS, STEPS
from lab.steps.compiled_blind_2 import BLIND_2

FIRST_STEPS, FIRST_BUNDLES, BUNDLES = 26, 20, 400
QUIET_S = 0.15
"""What is queued on the GPU when the others are stopped needs this long to finish."""
MEASURE_S = 40.0
"""A measurement that takes longer is given up."""
LAST_START_S, LAST_MEASURE_S = 30.0, 4.0
"""Nothing is prepared, or measured, so shortly before the end."""


class Worker:
    """A process with its own caches, which prepares one task at a time."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number, self.folder = number, folder
        self.task: str | None = None
        self.since = time.monotonic()
        self._start()

    def _start(self) -> None:
        own = self.folder / f"caches-{self.number}"
        own.mkdir(exist_ok=True)
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
        with (self.folder / f"log-{self.number}.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lab.collect.compiled_worker", self.folder, str(writing)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(writing,),
                env=environment,
                start_new_session=True,
            )
        os.close(writing)
        self.replies = os.fdopen(reading, "r", encoding="utf-8")

    def send(self, command: str) -> None:
        """Give a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())
        self.process.stdin.flush()

    def prepare(self, task: str) -> None:
        """Begin to compile a task."""
        self.task, self.since = task, time.monotonic()
        self.send(f"prepare {task}")

    def reply(self, timeout_s: float) -> dict[str, Any] | None:
        """The answer to the last command; None if there is none in time."""
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

    def restart(self) -> None:
        """A new process in place of one that failed."""
        self.end()
        self.task = None
        self._start()


class Collection:
    """Tasks, workers and what has been measured so far."""

    def __init__(self, out: Path, until: float, tasks: deque[str], workers: list[Worker]) -> None:
        self.out, self.until, self.tasks, self.workers = out, until, tasks, workers
        self.failures: dict[str, str] = {}
        self.done: list[str] = []

    def run(self) -> None:
        """Measure until all is done or the time is up."""
        while time.monotonic() < self.until - LAST_MEASURE_S:
            for worker in self.workers:
                late = time.monotonic() > self.until - LAST_START_S
                if worker.task is None and self.tasks and not late:
                    worker.prepare(self.tasks.popleft())
            busy = [worker for worker in self.workers if worker.task is not None]
            if not busy:
                return
            self._wait(busy)

    def _wait(self, busy: list[Worker]) -> None:
        with selectors.DefaultSelector() as selector:
            for worker in busy:
                selector.register(worker.replies, selectors.EVENT_READ, worker)
            ready = [key.data for key, _ in selector.select(1.0)]
        waiting = []
        for worker in ready:
            answer = worker.reply(0.0)
            if answer is None:
                continue
            if "ready" in answer:
                waiting.append(worker)
            else:
                self._fail(worker, answer)
        if waiting:
            self._measure(waiting, [w for w in busy if w not in waiting])

    def _measure(self, waiting: list[Worker], others: list[Worker]) -> None:
        for worker in (*waiting, *others):
            worker.signal(signal.SIGSTOP)
        time.sleep(QUIET_S)
        for worker in waiting:
            if time.monotonic() > self.until - LAST_MEASURE_S:
                break
            worker.signal(signal.SIGCONT)
            worker.send("measure")
            answer = worker.reply(min(MEASURE_S, self.until - time.monotonic()))
            if answer is None or "done" not in answer:
                self._fail(worker, answer or {"failed": "took too long to measure"})
                continue
            self._keep(worker, Path(answer["done"]))
        for worker in self.workers:
            worker.signal(signal.SIGCONT)

    def _keep(self, worker: Worker, path: Path) -> None:
        assert worker.task is not None
        kind = worker.task.partition(" ")[0]
        name = {"bundle": "kernels", "step": "steps"}.get(kind, "host")
        text = gzip.decompress(path.read_bytes())
        path.unlink()
        with gzip.open(self.out / f"{name}.jsonl.gz", "ab") as file:
            file.write(text + b"\n")
        self.done.append(worker.task)
        worker.task = None
        if name == "steps":
            print(_line(json.loads(text)), flush=True)
            if self.tasks:  # the profiler would slow the next step down
                worker.restart()

    def _fail(self, worker: Worker, answer: dict[str, Any]) -> None:
        assert worker.task is not None
        self.failures[worker.task] = f"{answer['failed']} {answer.get('trace', '')}"[:900]
        print(f"{worker.task}: {answer['failed'][:200]}", flush=True)
        worker.restart()


def _line(row: dict[str, Any]) -> str:
    words = [f"{row['step']:26}"]
    for how in ("eager", "compiled"):
        if how in row:
            half = row[how]
            words.append(
                f"{how} {half['wall_s'] * 1e3:8.2f} ms, GPU {half['busy_s'] * 1e3:8.2f}, "
                f"{len(half['kernels']):5} kernels, {half.get('peak_bytes', 0) / 2**20:8.0f} MiB"
            )
    return "  ".join([*words, f"{row['compile_s']:.0f} s to compile"])


def tasks_of(only: list[str]) -> deque[str]:
    """All tasks, the most telling first; or only some steps."""
    if only:
        return deque(f"bundle {n}" if n.isdigit() else f"step {n}" for n in only)
    steps = [f"step {step.name}" for step in STEPS]
    host = [f"step {step.name}" for step in HOST_STEPS]
    bundles = [f"bundle {seed}" for seed in range(BUNDLES)]
    first = [*steps[:FIRST_STEPS], *host, *bundles[:FIRST_BUNDLES]]
    return deque([*first, *steps[FIRST_STEPS:], *bundles[FIRST_BUNDLES:]])


def about() -> dict[str, Any]:
    """The machine and its software."""
    import platform
    from importlib import metadata

    import torch

    names = ("torch", "triton", "torchvision", "transformers")
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "none"
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {"gpu": gpu, **versions, "python": platform.python_version(), "cores": os.cpu_count()}


def collect(out: Path, seconds: float, count: int, tasks: deque[str]) -> None:
    """Measure into a folder until the time is up."""
    begin = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="compiled-"))
    workers = [Worker(number, folder) for number in range(min(count, len(tasks)))]
    collection = Collection(out, begin + seconds, tasks, workers)
    try:
        collection.run()
    finally:
        for worker in workers:
            worker.end()
        document = {
            "about": about(),
            "seconds": round(time.monotonic() - begin, 1),
            "done": len(collection.done),
            "failures": collection.failures,
            "unfinished": [worker.task for worker in workers if worker.task is not None],
        }
        (out / "about.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
        logs = [path.read_bytes()[-3000:] for path in sorted(folder.glob("log-*.txt"))]
        (out / "logs.txt").write_bytes(b"\n----\n".join(logs))
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(collection.done)} tasks in {document['seconds']} s, "
          f"{len(collection.failures)} failed, unfinished: {document['unfinished']}")  # fmt: skip


def main() -> None:
    """Measure into a folder."""
    parser = folder_and_seconds(__doc__, 530.0)
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=[], help="names of steps, numbers of bundles")
    parser.add_argument("--host", action="store_true", help="only the host's side, no profiler")
    parser.add_argument("--blind-2", action="store_true", help="the steps of the second blind test")
    given = parser.parse_args()
    only = given.only or [step.name for step in BLIND_2 if given.blind_2]
    if given.host:
        tasks = deque(f"host {name}" for name in only) or deque(host_tasks())
    else:
        tasks = tasks_of(only)
    collect(given.out, given.seconds, given.workers, tasks)


if __name__ == "__main__":
    main()
