"""How much GPU memory do steps take, and which batch is the largest that fits? Measures many steps.

    python -m lab.collect.memory_reality OUT [--seconds 240] [--predictions FILE]

Needs a GPU, torchvision and transformers. Memory does not depend on timing, so many new processes
share the GPU, each with a part of its memory. Results that OUT already has are not measured again.
`--pretend` tries the script without a GPU. Writes

- OUT/alone.jsonl: the memory of whole processes that run alone, if nvidia-smi shows no processes,
- OUT/context.jsonl: the memory of a process before and after it first uses each library,
- OUT/steps.jsonl: one line for each of `lab.steps.memory.STEPS`,
- OUT/growing.jsonl: the largest batch, one line for each of `GROWING` and each memory limit,
- OUT/traces.tar.gz: each step as recorded with the real allocator and as traced without the GPU.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lab.collect.memory_worker import GIB, MIB, TRACES, processes, work
from lab.needs import require

ALONE_S = 50.0
"""The seconds that are reserved for processes that must run alone."""
TASK_S = 150.0
"""A task that takes longer is stopped."""
MOST_TRIES = 9
"""The most batches that a search for the largest batch tries."""
LARGE_GIB = 25.0
"""Processes that need more memory than this share a separate part of the GPU's memory."""


class Room:
    """A part of the GPU's memory, which processes reserve before they use it."""

    def __init__(self, gib: float) -> None:
        self._left = gib
        self._changed = threading.Condition()

    def take(self, gib: float) -> None:
        """Wait until enough memory is free, and reserve it."""
        with self._changed:
            self._changed.wait_for(lambda: self._left >= gib)
            self._left -= gib

    def give(self, gib: float) -> None:
        """Free reserved memory."""
        with self._changed:
            self._left += gib
            self._changed.notify_all()


def device_used() -> int:
    """The bytes of GPU memory that all processes use together."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        text = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
        return int(text.splitlines()[0]) * MIB
    return 0


class Parent:
    """Starts workers, grants them memory, and writes their results."""

    def __init__(self, out: Path, options: argparse.Namespace) -> None:
        self.out, self.options = out, options
        self.until = time.monotonic() + options.seconds
        # Memory is split in two, so that small steps do not keep large ones waiting.
        large = options.gib * 0.7
        self.rooms = {False: Room(options.gib - large), True: Room(large)}
        self.slots = threading.Semaphore(options.workers)
        self.searching = {False: threading.Semaphore(4), True: threading.Semaphore(3)}
        self.tried: dict[str, dict[str, Any]] = {}
        self.writing = threading.Lock()
        self.creating = threading.Lock()
        self.visible = any(row.get("process_bytes") for row in _rows(out / FILES["step"]))
        """Whether nvidia-smi shows processes on this machine, now or in an earlier run."""
        # A server process that never uses the GPU loads the libraries once; workers are its forks.
        self.making: Any = multiprocessing.get_context("forkserver")
        self.making.set_forkserver_preload(["lab.collect.memory_libraries"])
        self.running: set[Any] = set()

    def run(self) -> None:
        """Run all tasks, until the time is up."""
        self.out.mkdir(parents=True, exist_ok=True)
        TRACES.mkdir(parents=True, exist_ok=True)
        done = self._done()
        if ("context", "context") not in done:
            self._task("context", "context")
        if ("context", "context") not in self._done():  # a forked process cannot use this GPU
            self.making = multiprocessing.get_context("spawn")
            self._task("context", "context")
        # If nvidia-smi shows no processes, some steps run alone at the end: then the total memory
        # in use tells how much they take.
        alone = [] if self.visible else [task for task in _alone() if task not in done]
        end = self.until
        if alone:
            self.until -= ALONE_S
        self._together([task for task in _tasks() if task not in done], self._searches(done))
        self.until = end
        self._together(alone)
        with tarfile.open(self.out / "traces.tar.gz", "w:gz") as archive:
            archive.add(TRACES, "traces")

    def _searches(self, done: set[tuple[str, str]]) -> list[threading.Thread]:
        """A thread for each model and memory limit whose largest batch is not known yet."""
        from lab.steps.memory import GROWING, LIMITS_GIB

        start = json.loads(Path(self.options.predictions or "/dev/null").read_text() or "{}")
        return [
            threading.Thread(
                target=self._search, args=(name, gib, start.get(name, {})), daemon=True
            )
            for gib in reversed(LIMITS_GIB)
            for name in GROWING
            if ("growing", f"{name} {gib}") not in done
        ]

    def _search(self, name: str, gib: int, start: dict[str, int]) -> None:
        tries: list[dict[str, Any]] = []

        def fits(batch: int) -> bool:
            self._task("try", f"{name} {gib} {batch}")
            row = self.tried.pop(f"{name} {gib} {batch}", {})
            tries.append(row)
            return bool(row["fits"])  # KeyError if the process was lost, which ends the search

        with self.searching[gib > LARGE_GIB]:
            if time.monotonic() > self.until:
                return
            guess = int(start.get(str(gib), 8 * gib))
            with suppress(KeyError):
                low, high = search(fits, guess, self.until)
                exact = high is not None and high - low <= max(1, low // 66)
                row = {"name": f"{name} {gib}", "model": name, "gib": gib, "guess": guess}
                row |= {"fits": low, "too_large": high, "tries": tries}
                self.write("growing", {**row, "status": "ok" if exact else "part"})

    def _together(
        self, tasks: list[tuple[str, str]], others: Sequence[threading.Thread] = ()
    ) -> None:
        threads = [threading.Thread(target=self._slot, args=task, daemon=True) for task in tasks]
        threads += others
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.1, self.until + 12 - time.monotonic()))
        for process in list(self.running):
            process.kill()

    def _done(self) -> set[tuple[str, str]]:
        done = set()
        for kind, file in FILES.items():
            for row in _rows(self.out / file):
                if row.get("status") == "ok":
                    done.add((kind, row["name"]))
        return done

    def _slot(self, kind: str, name: str) -> None:
        with self.slots:
            if time.monotonic() < self.until:
                self._task(kind, name)

    def _task(self, kind: str, name: str) -> None:
        ours, theirs = self.making.Pipe()
        process = self.making.Process(target=work, args=(theirs, kind, name, self.options))
        process.start()
        theirs.close()
        self.running.add(process)
        timer = threading.Timer(self._limit_s(kind), process.kill)
        timer.start()
        talk = Talk(self, process, ours, kind)
        try:
            talk.run()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            if not talk.ended:
                self.write(kind, {"name": name, "status": "stopped"})
        finally:
            timer.cancel()
            talk.end()
            self.running.discard(process)

    def _limit_s(self, kind: str) -> float:
        left: float = self.until + 5 - time.monotonic()
        return max(1.0, min(TASK_S, left))

    def write(self, kind: str, row: dict[str, Any]) -> None:
        """Write a result to its file, or keep it for the search that waits for it."""
        if kind == "try":
            self.tried[row["name"]] = row
            return
        with self.writing, (self.out / FILES[kind]).open("a") as file:
            file.write(json.dumps(row) + "\n")


class Talk:
    """Answers the requests of one worker process."""

    def __init__(self, parent: Parent, process: Any, pipe: Any, kind: str) -> None:
        self.parent, self.process, self.pipe, self.kind = parent, process, pipe, kind
        self.pid = process.pid
        self.held = 0.0
        self.ended = self.creating = False
        self.before: set[int] = set()

    def run(self) -> None:
        """Answer requests until the process ends."""
        while True:
            word, *rest = self.pipe.recv()
            self.pipe.send(getattr(self, f"hear_{word}")(*rest))

    def end(self) -> None:
        """End the process and free what it had reserved."""
        if self.creating:
            self.parent.creating.release()
        self.process.kill()
        self.process.join()
        self.hear_give()

    def hear_need(self, gib: float) -> None:
        """Reserve memory for the process."""
        self.parent.rooms[gib > LARGE_GIB].take(gib)
        self.held = gib

    def hear_give(self) -> None:
        """Free the memory of the process."""
        self.parent.rooms[self.held > LARGE_GIB].give(self.held)
        self.held = 0.0

    def hear_create(self) -> None:
        """The process is about to create its CUDA context; only one does so at a time."""
        self.parent.creating.acquire()
        self.creating = True
        self.before = set(processes())

    def hear_created(self) -> None:
        """The process has a CUDA context: the new process in nvidia-smi is this one."""
        now = set(processes())
        new = now - self.before
        if self.pid not in now:
            self.pid = min(new, default=self.pid)
        self.parent.visible = self.parent.visible or bool(new)
        self.parent.creating.release()
        self.creating = False

    def hear_used(self) -> int:
        """The bytes of GPU memory that the process uses."""
        return processes().get(self.pid, 0)

    def hear_device(self) -> int:
        """The bytes of GPU memory that all processes use."""
        return device_used()

    def hear_row(self, row: dict[str, Any]) -> None:
        """Write a result of the process."""
        self.ended = True
        self.parent.write(self.kind, row)


FILES = {
    "context": "context.jsonl",
    "step": "steps.jsonl",
    "alone": "alone.jsonl",
    "growing": "growing.jsonl",
}


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        for line in path.read_text().splitlines():
            with suppress(ValueError):
                yield json.loads(line)


def _tasks() -> list[tuple[str, str]]:
    from lab.steps.memory import STEPS

    return [("step", name) for name in STEPS]


def _alone() -> list[tuple[str, str]]:
    from lab.steps.memory import ALONE

    return [("alone", name) for name in ALONE]


def search(fits: Callable[[int], bool], guess: int, until: float) -> tuple[int, int | None]:
    """Search for the largest batch that fits, starting with a guess.

    Returns:
        The largest batch that was seen to fit, and the smallest that was seen not to.
    """
    low, high, step = 0, None, max(1, round(0.015 * guess))
    batch = max(1, guess)
    for _ in range(MOST_TRIES):
        if time.monotonic() > until or (high is not None and high - low <= max(1, low // 66)):
            break
        if fits(batch):
            low = batch
        else:
            high = batch
        if high is None:
            batch, step = low + step, 2 * step
        elif low == 0:
            batch, step = max(1, high - step), 2 * step
        else:
            batch = (low + high) // 2
    return low, high


def report(out: Path) -> None:
    """Print a short table of the results."""
    rows = list(_rows(out / FILES["step"]))
    for row in rows:
        if row["status"] == "ok":
            cells = (row.get(key, 0) / GIB for key in ("allocated_bytes", "reserved_bytes"))
            process = row.get("process_bytes", 0) / GIB
            print(
                f"{row['name'][:60]:60} {' '.join(f'{c:7.2f}' for c in cells)} {process:7.2f} GiB"
            )
        else:
            print(f"{row['name'][:60]:60} {row['status'][:100]}")
    for row in _rows(out / FILES["growing"]):
        if "gib" in row:
            print(
                f"{row['name']:35} {row['fits']} fits, {row['too_large']} does not; "
                f"guess {row['guess']}, {len(row['tries'])} tries"
            )
    done = sum(row["status"] == "ok" for row in rows)
    print(f"{done} steps, {sum('gib' in r for r in _rows(out / FILES['growing']))} largest batches")


def main() -> None:
    """Measure into a folder and print a table."""
    parser = argparse.ArgumentParser(description="Measure the memory of many steps on a GPU.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--gib", type=float, default=120.0, help="memory for all processes")
    parser.add_argument(
        "--predictions", default="", help="JSON file of the batches that searches start with"
    )
    parser.add_argument("--pretend", action="store_true", help="try it without a GPU")
    options = parser.parse_args()
    if not options.pretend:
        require("measuring memory", "torch", "torchvision", "transformers")
    # Without this, checking for a GPU would make it unusable in forked processes.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    os.environ["OMP_NUM_THREADS"] = "2"
    Parent(options.out, options).run()
    report(options.out)


if __name__ == "__main__":
    main()
