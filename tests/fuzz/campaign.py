"""A long run of the fuzzers: worker processes, a table of what they saw, and every fault kept."""

from __future__ import annotations

import math
import multiprocessing as mp
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

from fuzz import judgement
from fuzz.judgement import ACCEPTED, BAD, FAULTS, HANG, LARGE, RAW, REFUSED, Verdict
from fuzz.readers import READERS, Reader

BLOCK = 25
"""How many inputs a worker gets at once."""
KEPT = 2
"""How many inputs of the same fault are kept as files."""
_PATIENCE_S = judgement.LONGEST_WAIT_S + 30
"""After this long, a worker that does not even answer its alarm is killed."""
_FRESH_BYTES = 400 << 20
"""A worker that has grown by this much is replaced by a new one, since caches fill."""


@dataclass
class Tally:
    """What the inputs of one reader did."""

    counts: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0
    """The CPU time of the worker, that of making the inputs included."""
    slowest_s: float = 0.0
    places: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    @property
    def inputs(self) -> int:
        return self.counts.total()


@dataclass(frozen=True)
class Block:
    """Inputs of a reader, by their numbers."""

    reader: int
    begin: int
    end: int


def blocks(inputs: int, readers: Sequence[Reader], first: int = 0) -> list[Block]:
    """The inputs of a campaign, shared among the readers by their weights."""
    whole = sum(reader.weight for reader in readers)
    shares = [max(inputs * reader.weight // whole, 1) for reader in readers]
    shares[0] += max(inputs - sum(shares), 0)
    made = [
        Block(index, begin, min(begin + BLOCK, first + share))
        for index, share in enumerate(shares)
        for begin in range(first, first + share, BLOCK)
    ]
    # Every part of the campaign has all readers, so that a campaign that is stopped has them too.
    return sorted(made, key=lambda block: (block.begin - first) / shares[block.reader])


def judged(
    block: Block, readers: Sequence[Reader], campaign: int, folder: Path
) -> Iterator[tuple[int, Verdict, float, bytes, str]]:
    """The verdict on each input of a block; within `judgement.watched`."""
    reader = readers[block.reader]
    for number in range(block.begin, block.end):
        given = judgement.make_input(reader, number, campaign)
        begun = time.process_time()
        verdict = judgement.within_time(reader, given, folder)
        taken_s = time.process_time() - begun
        if verdict.kind in FAULTS or len(given.seed.parts) > 1:
            judgement.empty(folder)
        kept = given.content if verdict.kind in FAULTS else b""
        yield number, verdict, taken_s, kept, given.changed


def _work(pipe: Connection, readers: Sequence[Reader], campaign: int) -> None:
    """A worker: takes blocks until it is told to stop, and reports each input that it begins."""
    shared = Path("/dev/shm")
    place = str(shared) if shared.is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as name, judgement.watched():
        folder = Path(name)
        os.environ["XDG_CONFIG_HOME"] = str(folder / "none")
        while (block := pipe.recv()) is not None:
            tally = Tally()
            begun = time.process_time()
            for number, verdict, taken_s, kept, changed in judged(block, readers, campaign, folder):
                tally.counts[verdict.kind] += 1
                tally.slowest_s = max(tally.slowest_s, taken_s)
                if verdict.kind in FAULTS:
                    pipe.send(("fault", (number, verdict, kept, changed)))
                if number % 10 == 0 or taken_s > 1:
                    pipe.send(("at", number))
            judgement.empty(folder)
            tally.cpu_s = time.process_time() - begun
            pipe.send(("done", tally))


@dataclass
class _Worker:
    process: mp.process.BaseProcess
    pipe: Connection
    block: Block | None = None
    at: int = 0
    heard: float = 0.0


@dataclass
class Campaign:
    """A campaign that runs; its tallies grow."""

    readers: Sequence[Reader]
    number: int
    keep: Path | None
    tallies: list[Tally]
    left: list[Block]

    def run(self, workers: int, longest_s: float | None = None) -> None:
        """Run all blocks in worker processes, of which a killed one is replaced.

        Args:
            workers: the number of processes.
            longest_s: after this long no further block is begun. None for no limit.
        """
        end = math.inf if longest_s is None else time.monotonic() + longest_s
        context = mp.get_context("fork")
        running: list[_Worker] = []
        try:
            while self.left or any(worker.block for worker in running):
                while len(running) < workers and self.left:
                    running.append(self._begun(context))
                self._hear(running)
                if time.monotonic() > end:
                    self.left.clear()
                running = [worker for worker in running if self._goes_on(worker)]
        finally:
            for worker in running:
                worker.process.kill()
                worker.process.join()

    def run_here(self, folder: Path) -> None:
        """Run all blocks in this process, which is enough for a few inputs."""
        with judgement.watched(), tempfile.TemporaryDirectory(dir=folder) as name:
            for block in self.left:
                tally = self.tallies[block.reader]
                for number, verdict, taken_s, kept, changed in judged(
                    block, self.readers, self.number, Path(name)
                ):
                    tally.counts[verdict.kind] += 1
                    tally.slowest_s = max(tally.slowest_s, taken_s)
                    if verdict.kind in FAULTS:
                        self.keep_fault(block.reader, number, verdict, kept, changed)

    def _begun(self, context: mp.context.ForkContext) -> _Worker:
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, self.readers, self.number))
        process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self._give(worker)
        return worker

    def _give(self, worker: _Worker) -> None:
        worker.block = self.left.pop(0) if self.left else None
        worker.heard = time.monotonic()
        worker.at = worker.block.begin if worker.block else 0
        worker.pipe.send(worker.block)

    def _hear(self, running: Sequence[_Worker]) -> None:
        by_pipe = {worker.pipe: worker for worker in running}
        for pipe in wait(list(by_pipe), timeout=1.0):
            worker = by_pipe[pipe]  # type: ignore[index]
            try:
                kind, value = worker.pipe.recv()
            except (EOFError, ConnectionError):
                self._lost(worker, RAW, "the process ended")
                continue
            worker.heard = time.monotonic()
            assert worker.block is not None
            tally = self.tallies[worker.block.reader]
            if kind == "at":
                worker.at = value
            elif kind == "fault":
                self.keep_fault(worker.block.reader, *value)
            else:
                tally.counts += value.counts
                tally.cpu_s += value.cpu_s
                tally.slowest_s = max(tally.slowest_s, value.slowest_s)
                worker.block = None
                self._give(worker) if self._is_fresh(worker) else worker.pipe.send(None)

    def _is_fresh(self, worker: _Worker) -> bool:
        try:
            pages = Path(f"/proc/{worker.process.pid}/statm").read_text(encoding="ascii").split()
        except OSError:
            return False
        own = int(pages[1]) - int(pages[2])
        return own * os.sysconf("SC_PAGE_SIZE") < _FRESH_BYTES + _own_bytes()

    def _goes_on(self, worker: _Worker) -> bool:
        if worker.block is not None and time.monotonic() - worker.heard > _PATIENCE_S:
            worker.process.kill()
            self._lost(worker, HANG, "the process did not answer")
        if worker.block is None:
            worker.process.join(5)
            worker.process.kill()
        return worker.block is not None

    def _lost(self, worker: _Worker, kind: str, place: str) -> None:
        """A worker died within the ten inputs after the last one that it named."""
        block = worker.block
        worker.block = None
        if block is None:
            return
        tally = self.tallies[block.reader]
        tally.counts[kind] += 1
        tally.places[kind, place, f"inputs {worker.at} to {worker.at + 10}"] += 1
        rest = Block(block.reader, worker.at + 11, block.end)
        if rest.begin < rest.end:
            self.left.append(rest)

    def keep_fault(
        self, index: int, number: int, verdict: Verdict, content: bytes, changed: str
    ) -> None:
        """Count a fault of a reader, and keep its input as a file if it is one of the first."""
        reader, tally = self.readers[index], self.tallies[index]
        known = [key for key in tally.places if key[:2] == (verdict.kind, verdict.place)]
        key = known[0] if known else (verdict.kind, verdict.place, verdict.detail)
        tally.places[key] += 1
        if self.keep is not None and tally.places[key] <= KEPT:
            name = f"{reader.name.replace(' ', '-')}-{self.number}-{number}"
            folder = self.keep / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / Path(changed).name).write_bytes(content)
            line = f"{verdict.kind}: {verdict.place}: {verdict.detail}\n"
            (folder / "verdict.txt").write_text(line, encoding="utf-8", errors="replace")


def _own_bytes() -> int:
    resident, shared = Path("/proc/self/statm").read_text(encoding="ascii").split()[1:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def start(
    inputs: int,
    campaign: int,
    keep: Path | None,
    names: Sequence[str] = (),
    first: int = 0,
    among: Sequence[Reader] = READERS,
) -> Campaign:
    """A campaign of this many inputs, over all readers or those named."""
    readers = [reader for reader in among if not names or reader.name in names]
    for reader in readers:
        reader.seeds()  # made once, before the workers are forked
    tallies = [Tally() for _ in readers]
    return Campaign(readers, campaign, keep, tallies, blocks(inputs, readers, first))


def table(campaign: Campaign) -> str:
    """The table of a campaign, as Markdown."""
    columns = (
        "inputs",
        ACCEPTED,
        REFUSED,
        RAW,
        HANG,
        BAD,
        LARGE,
        "slowest",
        "inputs per CPU second",
    )
    lines = [f"| reader | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    whole = Tally()
    for reader, tally in zip(campaign.readers, campaign.tallies, strict=True):
        lines.append(_row(reader.name, tally))
        whole.counts += tally.counts
        whole.cpu_s += tally.cpu_s
        whole.slowest_s = max(whole.slowest_s, tally.slowest_s)
    return "\n".join([*lines, _row("all", whole)])


def _row(name: str, tally: Tally) -> str:
    counts = [tally.counts[kind] for kind in (ACCEPTED, REFUSED, RAW, HANG, BAD, LARGE)]
    speed = tally.inputs / tally.cpu_s if tally.cpu_s else 0.0
    numbers = [f"{value:,}" for value in (tally.inputs, *counts)]
    return f"| {name} | {' | '.join(numbers)} | {tally.slowest_s:.1f} s | {speed:,.0f} |"


def faults(campaign: Campaign) -> list[str]:
    """A line for each distinct fault, the most frequent first."""
    rows = [
        (count, reader.name, *key)
        for reader, tally in zip(campaign.readers, campaign.tallies, strict=True)
        for key, count in tally.places.items()
    ]
    return [
        f"{count:>6} {name}: {kind}: {place} {detail}"
        for count, name, kind, place, detail in sorted(rows, reverse=True)
    ]
