"""Does the web page bear a crowd? 200 clients at once on loopback, for a minute.

    python -m lab score web_load
    python -m lab score web_load --clients 200 --new 20 --seconds 300

A real server is started. Most clients ask for predictions that were made before, some for new ones:
each changes one control of the page (model, batch, precision, GPUs, strategy) as a person does.
Every client has an address of its own and asks again as soon as it has its answer, so that 200
requests are always on their way. The table has the times of the answers, the lines below it how
many answers each client got (one without any starved) and the memory of the server with its
workers. The clients run on the same machine, so an idle one is needed for times that mean
something; the load is printed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import needs
from lab.pages import heading

GPUS = ("h100-sxm-80gb", "a100-sxm-80gb", "l4", "rtx-4090", "t4", "v100-sxm-16gb", "l40s")
MODELS = {"resnet50": 64, "gpt2": 8, "bert-base": 16, "dcgan": 64, "vit": 32}
_PATH = "/api/predictions"


@dataclass
class SeenAnswers:
    """What the clients saw."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int | str] = field(default_factory=Counter)
    by_client: Counter[int] = field(default_factory=Counter)

    def shared(self) -> str:
        """How the answers are shared among the clients that asked."""
        counts = self.by_client.values() or [0]
        starved = sum(not count for count in counts)
        return f"{min(counts):,} to {max(counts):,} answers a client, {starved} clients without any"

    def row(self, name: str) -> str:
        times = sorted(self.seconds) or [0.0]
        ends = [times[min(len(times) - 1, int(len(times) * share))] for share in (0.5, 0.95, 0.99)]
        wrong = sum(count for status, count in self.statuses.items() if status != 200)
        cells = [name, f"{len(self.seconds):,}", str(wrong), *(f"{1e3 * t:,.0f} ms" for t in ends)]
        return "| " + " | ".join([*cells, f"{1e3 * times[-1]:,.0f} ms"]) + " |"


def main(given: Sequence[str] = ()) -> None:
    """Run the load and print a table in Markdown."""
    parser = needs.parser(__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--new", type=int, default=2, help="how many of them ask for new ones")
    parser.add_argument("--seconds", type=float, default=60.0)
    chosen = parser.parse_args(given)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        server, port = start_server(Path(folder))
        try:
            known, new, memory = asyncio.run(
                crowd(port, server.pid, chosen.clients, chosen.new, chosen.seconds)
            )
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(20)
    print(f"{os.cpu_count()} cores, load before: {load:.1f}; {chosen.clients} clients, ", end="")
    print(f"{chosen.new} of them ask for new predictions, {chosen.seconds:g} s\n")
    print(*heading("predictions | answers | errors | median | 95% | 99% | longest"), sep="\n")
    print(known.row("made before"))
    print(new.row("new"))
    print(f"\nmade before: {known.shared()}; new: {new.shared()}")
    print(f"memory of the server and its workers: {_memory_over_time(memory)}")
    for status, count in (known.statuses + new.statuses).items():
        if status != 200:
            print(f"{status}: {count}")


def _memory_over_time(memory: Sequence[int]) -> str:
    """At the start, at the end, and the most in each half: one that grows without end shows."""
    half = len(memory) // 2
    halves = [f"{max(part) / 2**20:,.0f} MiB" for part in (memory[: half + 1], memory[half:])]
    ends = [f"{memory[place] / 2**20:,.0f} MiB" for place in (0, -1)]
    return (
        f"{ends[0]} at the start, at most {' and '.join(halves)} in the first and second half, "
        f"{ends[1]} at the end"
    )


def start_server(folder: Path, *options: str) -> tuple[subprocess.Popen[str], int]:
    """A server on a free port, once it listens."""
    command = [sys.executable, "-m", "wavecast", "serve", "--port", "0", "--folder", str(folder)]
    command += options
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    for line in server.stderr:
        if "http://" in line:
            return server, int(line.split("http://")[1].split()[0].rsplit(":", 1)[1])
    raise SystemExit("the server did not start")


def questions(seed: int) -> Iterator[dict[str, Any]]:
    """Questions that differ from each other by one control, without end."""
    choose = random.Random(seed)
    asked = set()
    question: dict[str, Any] = _first(choose)
    while True:
        control = choose.choice(
            ("model", "batch", "batch", "precision", "gpus", "gpus", "parallel")
        )
        match control:
            case "model":
                question = _first(choose)
            case "batch":
                usual = MODELS[question["model"]]
                question = question | {"batch": choose.randint(max(2, usual // 4), usual * 2)}
            case "precision":
                question = question | {"precision": choose.choice(("fp32", "tf32", "bf16", "fp16"))}
            case "gpus":
                question = question | {"gpus": choose.sample(GPUS, choose.randint(1, 4))}
            case "parallel":
                spread = {"data": choose.choice((2, 4, 8, 16)), "shard": choose.choice((0, 3))}
                question = question | {"parallel": choose.choice((None, spread))}
        text = json.dumps(question, sort_keys=True)
        if text not in asked:
            asked.add(text)
            yield question


def _first(choose: random.Random) -> dict[str, Any]:
    model = choose.choice(list(MODELS))
    batch = choose.randint(max(2, MODELS[model] // 4), MODELS[model] * 2)
    return {"model": model, "batch": batch, "precision": "bf16", "gpus": choose.sample(GPUS, 3)}


class LoadClient:
    """One connection that asks one question after the other, from an address of its own."""

    def __init__(self, port: int, number: int = 0) -> None:
        self._port = port
        self._number = number
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, question: dict[str, Any], answers: SeenAnswers) -> None:
        """Ask, and note the time and status of the answer."""
        body = json.dumps(question).encode()
        head = (
            f"POST {_PATH} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        start_s = time.perf_counter()
        try:
            status = await self._exchange(head.encode() + body)
        except (OSError, EOFError, ValueError) as error:
            answers.statuses[type(error).__name__] += 1
            self._streams = None
            return
        answers.seconds.append(time.perf_counter() - start_s)
        answers.statuses[status] += 1
        answers.by_client[self._number] += status == 200

    async def _exchange(self, request: bytes) -> int:
        if self._streams is None:
            own = (f"127.0.{1 + self._number // 250}.{1 + self._number % 250}", 0)
            self._streams = await asyncio.open_connection(
                "127.0.0.1", self._port, local_addr=own if sys.platform == "linux" else None
            )
        reader, writer = self._streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        return int(head.split(b" ")[1])


async def crowd(
    port: int, pid: int, clients: int, new: int, seconds: float
) -> tuple[SeenAnswers, SeenAnswers, list[int]]:
    """Let all clients ask for a while; their answers, and the memory of the server over time."""
    known, fresh, memory = SeenAnswers(), SeenAnswers(), []
    common = [question for question, _ in zip(questions(0), range(50), strict=False)]
    warming = SeenAnswers()
    for question in common:
        await LoadClient(port).ask(question, warming)
    assert set(warming.statuses) == {200}, warming.statuses
    end = time.perf_counter() + seconds

    async def ask_known(number: int) -> None:
        client, choose = LoadClient(port, number), random.Random(number)
        known.by_client[number] = 0
        while time.perf_counter() < end:
            await client.ask(choose.choice(common), known)

    async def ask_new(number: int) -> None:
        client, source = LoadClient(port, number), questions(1000 + number)
        fresh.by_client[number] = 0
        while time.perf_counter() < end:
            await client.ask(next(source), fresh)

    async def watch() -> None:
        while time.perf_counter() < end:
            memory.append(memory_of(pid))
            await asyncio.sleep(1)

    asking = [*map(ask_known, range(clients - new)), *map(ask_new, range(clients - new, clients))]
    await asyncio.gather(watch(), *asking)
    return known, fresh, memory


def memory_of(pid: int) -> int:
    """The memory of a process and its children, in bytes; shared pages count once for each."""
    pids = [pid]
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    pids += map(int, children)
    pages = (int(Path(f"/proc/{process}/statm").read_text().split()[1]) for process in pids)
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")
