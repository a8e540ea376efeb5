"""Memory of many steps on a real GPU: allocated, reserved, the whole process, the largest batch.

    python -m lab.collect.memory_reality OUT [--seconds 240] [--predictions FILE]

Memory does not depend on timing, so that many fresh processes share the GPU, each with its part of
the memory. What is in OUT already is not measured again. `--pretend` tries all of it without a GPU.

OUT/alone.jsonl    whole processes, one at a time, where nvidia-smi does not show them
OUT/context.jsonl  what a process takes before and after it first uses each library
OUT/steps.jsonl    one line for each of `memory_steps.STEPS`
OUT/growing.jsonl  one line for each of `memory_steps.GROWING` and limit: the largest batch
OUT/traces.tar.gz  the steps as the real allocator saw them, and as traced without using the GPU
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

GIB, MIB = 1 << 30, 1 << 20
ALONE_S = 50.0
"""Kept for processes that run alone, where there must be any."""
TASK_S = 150.0
"""A task that takes longer is stopped."""
MOST_TRIES = 9
FIRST_STEPS = 12
"""In float16 the first few overflow, and are not followed by an update."""


LARGE_GIB = 25.0


TRACES = Path(tempfile.gettempdir()) / "wavecast-memory-traces"
"""Many files, which OUT gets as one."""


class Room:
    """GPU memory that processes ask for before they take it."""

    def __init__(self, gib: float) -> None:
        self._left = gib
        self._changed = threading.Condition()

    def take(self, gib: float) -> None:
        """Wait until there is so much."""
        with self._changed:
            self._changed.wait_for(lambda: self._left >= gib)
            self._left -= gib

    def give(self, gib: float) -> None:
        """Return it."""
        with self._changed:
            self._left += gib
            self._changed.notify_all()


def processes() -> dict[int, int]:
    """What nvidia-smi says of each process: bytes by its id."""
    command = [
        "nvidia-smi",
        "--query-compute-apps=pid,used_memory",
        "--format=csv,noheader,nounits",
    ]
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        text = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
        rows = (line.split(",") for line in text.splitlines() if "," in line)
        return {int(pid): int(mib) * MIB for pid, mib in rows if mib.strip().isdigit()}
    return {}


def device_used() -> int:
    """Bytes of the GPU that all processes take together."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        text = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
        return int(text.splitlines()[0]) * MIB
    return 0


class Parent:
    """Starts workers, gives them memory, and writes down what they say."""

    def __init__(self, out: Path, options: argparse.Namespace) -> None:
        self.out, self.options = out, options
        self.until = time.monotonic() + options.seconds
        # Two rooms, lest many small steps keep the large ones waiting.
        large = options.gib * 0.7
        self.rooms = {False: Room(options.gib - large), True: Room(large)}
        self.slots = threading.Semaphore(options.workers)
        self.searching = {False: threading.Semaphore(4), True: threading.Semaphore(3)}
        self.tried: dict[str, dict[str, Any]] = {}
        self.writing = threading.Lock()
        self.creating = threading.Lock()
        self.visible = any(row.get("process_bytes") for row in _rows(out / FILES["step"]))
        """Whether nvidia-smi shows processes here; it did if it has shown one before."""
        # Libraries are loaded once, in a server that uses no GPU; its forks are fresh processes.
        self.making: Any = multiprocessing.get_context("forkserver")
        self.making.set_forkserver_preload(["lab.collect.memory_libraries"])
        self.running: set[Any] = set()

    def run(self) -> None:
        """Everything, as far as the time goes."""
        self.out.mkdir(parents=True, exist_ok=True)
        TRACES.mkdir(parents=True, exist_ok=True)
        done = self._done()
        if ("context", "context") not in done:
            self._task("context", "context")
        if ("context", "context") not in self._done():  # a forked process cannot use this GPU
            self.making = multiprocessing.get_context("spawn")
            self._task("context", "context")
        # Where nvidia-smi shows no processes, some run alone in the end: the GPU's total tells.
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
        """A thread for each model and limit whose largest batch is not known."""
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
            found = self.tried.pop(f"{name} {gib} {batch}", {})
            tries.append(found)
            return bool(found["fits"])  # a lost try ends the search

        with self.searching[gib > LARGE_GIB]:
            if time.monotonic() > self.until:
                return
            guess = int(start.get(str(gib), 8 * gib))
            with suppress(KeyError):
                low, high = search(fits, guess, self.until)
                known = high is not None and high - low <= max(1, low // 66)
                row = {"name": f"{name} {gib}", "model": name, "gib": gib, "guess": guess}
                row |= {"fits": low, "too_large": high, "tries": tries}
                self.write("growing", {**row, "status": "ok" if known else "part"})

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
        found = set()
        for kind, file in FILES.items():
            for row in _rows(self.out / file):
                if row.get("status") == "ok":
                    found.add((kind, row["name"]))
        return found

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
        """Write a result down."""
        if kind == "try":
            self.tried[row["name"]] = row
            return
        with self.writing, (self.out / FILES[kind]).open("a") as file:
            file.write(json.dumps(row) + "\n")


class Talk:
    """The questions of one process, and the answers."""

    def __init__(self, parent: Parent, process: Any, pipe: Any, kind: str) -> None:
        self.parent, self.process, self.pipe, self.kind = parent, process, pipe, kind
        self.pid = process.pid
        self.held = 0.0
        self.ended = self.creating = False
        self.before: set[int] = set()

    def run(self) -> None:
        """Until the process ends."""
        while True:
            word, *rest = self.pipe.recv()
            self.pipe.send(getattr(self, f"hear_{word}")(*rest))

    def end(self) -> None:
        """Give back what it had."""
        if self.creating:
            self.parent.creating.release()
        self.process.kill()
        self.process.join()
        self.hear_give()

    def hear_need(self, gib: float) -> None:
        """Memory."""
        self.parent.rooms[gib > LARGE_GIB].take(gib)
        self.held = gib

    def hear_give(self) -> None:
        """No more of it."""
        self.parent.rooms[self.held > LARGE_GIB].give(self.held)
        self.held = 0.0

    def hear_create(self) -> None:
        """It is about to show up on the GPU, one at a time."""
        self.parent.creating.acquire()
        self.creating = True
        self.before = set(processes())

    def hear_created(self) -> None:
        """It did: whoever is new is this one."""
        now = set(processes())
        new = now - self.before
        if self.pid not in now:
            self.pid = min(new, default=self.pid)
        self.parent.visible = self.parent.visible or bool(new)
        self.parent.creating.release()
        self.creating = False

    def hear_used(self) -> int:
        """What it takes of the GPU."""
        return processes().get(self.pid, 0)

    def hear_device(self) -> int:
        """What all take."""
        return device_used()

    def hear_row(self, row: dict[str, Any]) -> None:
        """A result."""
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


class Asking:
    """A process's end of the talk."""

    pipe: Any = None


def ask(*words: Any) -> Any:
    """Say something to the parent and wait for its answer."""
    Asking.pipe.send(words)
    return Asking.pipe.recv()


@contextmanager
def room(gib: float) -> Iterator[None]:
    """Memory from the parent."""
    ask("need", gib)
    try:
        yield
    finally:
        ask("give")


class GpuMemory:
    """The real one."""

    def create(self) -> None:
        """Make the process known to the GPU, alone, so that the parent can tell which it is."""
        import torch

        ask("create")
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        ask("created")

    def state(self) -> dict[str, int]:
        """What the allocator, the whole device and nvidia-smi say."""
        import torch

        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return {
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "reserved_now_bytes": torch.cuda.memory_reserved(),
            "device_used_bytes": total - free,
            "process_bytes": ask("used"),
        }

    def measure(self, make: Callable[[], Any], folder: Path, name: str) -> dict[str, Any]:
        """A step's memory: of the whole run, of a later step, and op by op."""
        import torch

        step = make()
        built = torch.cuda.memory_allocated()
        for _ in range(FIRST_STEPS):
            step()
        whole = self.state()
        torch.cuda.reset_peak_memory_stats()
        step()
        later = self.state()
        self._look(step, folder, name)
        return {
            "built_bytes": built,
            **whole,
            "later_allocated_bytes": later["allocated_bytes"],
            "later_reserved_bytes": later["reserved_bytes"],
        }

    def _look(self, step: Any, folder: Path, name: str) -> None:
        from wavecast.frameworks.pytorch.measurement.memory import traced_memory

        traced_memory(step).save(folder / f"{name}.measured.json.gz")

    def trace(self, make: Callable[[], Any], folder: Path, name: str) -> None:
        """The same without using the GPU."""
        import wavecast

        wavecast.trace(make, capability=(9, 0)).save(folder / f"{name}.traced.json.gz")

    def fits(self, make: Callable[[], Any], gib: float) -> dict[str, Any]:
        """Whether two steps run in so much memory."""
        import torch

        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(gib * GIB / total)
        try:
            step = make()
            for _ in range(2):
                step()
            torch.cuda.synchronize()
            fits = True
        except torch.OutOfMemoryError:
            fits = False
        return {
            "fits": fits,
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
        }


class Pretended(GpuMemory):
    """None, to try the rest."""

    def create(self) -> None:
        """Pretend."""
        ask("create")
        ask("created")

    def state(self) -> dict[str, int]:
        """Pretend."""
        return {"allocated_bytes": 1, "reserved_bytes": 2, "process_bytes": ask("used")}

    def measure(self, make: Callable[[], Any], folder: Path, name: str) -> dict[str, Any]:
        """Pretend."""
        (folder / f"{name}.measured.json.gz").write_bytes(b"")
        return self.state()

    def trace(self, make: Callable[[], Any], folder: Path, name: str) -> None:
        """Pretend."""

    def fits(self, make: Callable[[], Any], gib: float) -> dict[str, Any]:
        """Pretend that a sample takes 70 MB, after 2 GB."""
        time.sleep(0.05)
        batch = make.args[0]  # type: ignore[attr-defined]
        return {"fits": 2e9 + 70e6 * batch <= gib * GIB}


def work(pipe: Any, kind: str, name: str, options: argparse.Namespace) -> None:
    """What one process does."""
    Asking.pipe = pipe
    gpu = Pretended() if options.pretend else GpuMemory()
    try:
        if kind == "context":
            row = _context(gpu, options.pretend)
        elif kind == "alone":
            row = _run_alone(gpu, name, options)
        elif kind == "step":
            row = _step(gpu, name, TRACES)
        else:
            row = _try(gpu, name)
        ask("row", {"name": name, "status": "ok", **row})
    except Exception as error:
        ask("row", {"name": name, "status": f"{type(error).__name__}: {str(error)[:300]}"})


def _step(gpu: GpuMemory, name: str, folder: Path) -> dict[str, Any]:
    from lab.steps.memory import STEPS

    chosen = STEPS[name]
    file = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
    with room(chosen.gib + 1):
        gpu.create()
        row = gpu.measure(chosen.make, folder, file)
    with suppress(Exception):
        gpu.trace(chosen.make, folder, file)
    return row


def _run_alone(gpu: GpuMemory, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The whole process, by what the GPU has more to show while it lives; room until it ends."""
    from lab.steps.memory import STEPS

    ask("need", options.gib * 0.69)  # nearly all of the large room: one at a time
    before = ask("device")
    step = None if options.pretend else STEPS[name].make()
    for _ in range(FIRST_STEPS):
        if step is not None:
            step()
    state = gpu.state()
    return {**state, "process_bytes": ask("device") - before}


def _context(gpu: GpuMemory, pretend: bool) -> dict[str, Any]:
    """What a process takes as it uses one library after the other."""
    stages: dict[str, Any] = {}
    before = processes()
    gpu.create()
    stages["context"] = gpu.state()
    if not pretend:
        import torch
        import torch.nn.functional as F

        def later(name: str) -> None:
            torch.cuda.empty_cache()
            stages[name] = gpu.state()

        square = torch.randn(1024, 1024, device="cuda", requires_grad=True)
        (square * 2 + 1).relu().sum().backward()
        later("elementwise kernels")
        (square @ square).sum().backward()
        later("cuBLAS float32")
        (square.bfloat16() @ square.bfloat16()).sum().backward()
        later("cuBLAS bfloat16")
        F.linear(square, square, square[0]).sum().backward()
        later("cuBLASLt")
        for dtype in (torch.float32, torch.bfloat16):
            images = torch.randn(8, 16, 32, 32, device="cuda", dtype=dtype, requires_grad=True)
            kernel = torch.randn(16, 16, 3, 3, device="cuda", dtype=dtype, requires_grad=True)
            F.batch_norm(F.conv2d(images, kernel), None, None, training=True).sum().backward()
            later(f"cuDNN convolution {dtype}")
        heads = torch.randn(2, 8, 128, 64, device="cuda", dtype=dtype, requires_grad=True)
        F.scaled_dot_product_attention(heads, heads, heads).sum().backward()
        later("attention")
        lstm = torch.nn.LSTM(64, 64).cuda()
        lstm(torch.randn(16, 8, 64, device="cuda"))[0].sum().backward()
        later("cuDNN LSTM")
        optimizer = torch.optim.AdamW([square], fused=True)
        optimizer.step()
        later("fused AdamW")
        found = torch.cuda.get_device_properties(0)
        stages["gpu"] = {"name": found.name, "total_bytes": found.total_memory}
    return {"before": before, "stages": stages}


def _try(gpu: GpuMemory, name: str) -> dict[str, Any]:
    """One batch of one model under one limit, in a process of its own."""
    from lab.steps.memory import GROWING

    model, gib, batch = name.rsplit(" ", 2)
    _skip_initial_values()
    with room(float(gib) + 1):
        return {"batch": int(batch), **gpu.fits(partial(GROWING[model], int(batch)), float(gib))}


def _skip_initial_values() -> None:
    """Memory does not depend on the weights' values, and drawing them takes longer than a step."""
    import torch

    for name in ("kaiming_uniform_", "kaiming_normal_", "uniform_", "normal_", "trunc_normal_"):
        setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)


def search(fits: Callable[[int], bool], guess: int, until: float) -> tuple[int, int | None]:
    """The largest batch that fits, as (one that does, one that does not), from a guess on."""
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
    """A short table."""
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
    """Run as parent or worker."""
    parser = argparse.ArgumentParser(description="Memory of many steps on a real GPU.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--gib", type=float, default=120.0, help="memory for all processes")
    parser.add_argument("--predictions", default="", help="largest batches to begin with, as JSON")
    parser.add_argument("--pretend", action="store_true", help="try it without a GPU")
    options = parser.parse_args()
    # Without it, asking for a GPU would make it unusable in forked processes.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    os.environ["OMP_NUM_THREADS"] = "2"
    Parent(options.out, options).run()
    report(options.out)


if __name__ == "__main__":
    main()
