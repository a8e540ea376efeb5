"""How fast do the threads of a step run, by the processors that they run on? On the GPU's machine.

    python -m lab collect host_threads OUT [--seconds 60]

The forward pass and the optimizer run in the thread of Python, the backward pass in a thread of
autograd. A small step is timed with these two on the same processor, on two processors of one
core, on two cores, and where the system puts them. Also every processor counts in a loop of
Python. Writes OUT/host_threads.json.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lab import needs
from lab.collect.turns import Turn, Turns

SYSTEM = Path("/sys/devices/system/cpu")
ROUNDS = 4
"""How often a placement is measured, each time a moment later."""
STEPS = ("host-graph", "host-plain-llama")
"""Steps that need no library to be imported."""

Placement = tuple[set[int], set[int]]


def siblings(processor: int) -> set[int]:
    """The processors of the same core; only itself where the system does not say."""
    path = SYSTEM / f"cpu{processor}" / "topology" / "thread_siblings_list"
    text = path.read_text() if path.exists() else str(processor)
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def placements() -> dict[str, Placement]:
    """Where the thread of Python and that of autograd may run."""
    usable = sorted(os.sched_getaffinity(0))
    first = usable[len(usable) // 2]
    beside = sorted(siblings(first) & set(usable) - {first})
    other = next(cpu for cpu in usable if cpu not in siblings(first))
    found: dict[str, Placement] = {
        "anywhere": (set(usable), set(usable)),
        "same": ({first}, {first}),
        "two-cores": ({first}, {other}),
        "two-cores-swapped": ({other}, {first}),
    }
    return found | ({"one-core": ({first}, {beside[0]})} if beside else {})


def counting_s() -> float:
    """The seconds of a loop of Python."""
    begin, total = time.perf_counter(), 0
    for number in range(200_000):
        total += number
    return time.perf_counter() - begin


def processors() -> list[dict[str, Any]]:
    """How long each processor takes for the loop, several times over."""
    usable = sorted(os.sched_getaffinity(0))
    times: dict[int, list[float]] = {cpu: [] for cpu in usable}
    for _ in range(ROUNDS):
        for cpu in usable:
            os.sched_setaffinity(0, {cpu})
            times[cpu].append(min(counting_s() for _ in range(2)))
    os.sched_setaffinity(0, usable)
    return [{"cpu": cpu, "siblings": sorted(siblings(cpu)), "loop_s": times[cpu]} for cpu in usable]


def placed(name: str, where: str, turn: Turn) -> list[dict[str, Any]]:
    """The parts of a step with its threads in a place, and the processors that they ran on."""
    from lab.collect.step_worker import parts, wait
    from lab.steps.timed_sets import step_named

    main, backward = placements()[where]
    os.sched_setaffinity(0, backward)  # the thread of autograd inherits it
    step = step_named(name)
    run: Any = step.make(step.mode)
    ran: list[int] = []
    current = ctypes.CDLL(None).sched_getcpu
    parameter = next(p for group in run.optimizer.param_groups for p in group["params"])
    parameter.register_hook(lambda gradient: ran.append(current()))
    for _ in range(4):
        run()
    wait()
    os.sched_setaffinity(0, main)
    rows = []
    with turn.taken():
        for _ in range(ROUNDS):
            ran.clear()
            row = parts(run)
            loop_s = statistics.median(counting_s() for _ in range(3))
            rows.append({**row, "loop_s": loop_s, "main": current(), "backward": sorted(set(ran))})
            time.sleep(0.3)
    return rows


def work(turn: Turn, folder: Path) -> str:
    """Do one task, (cpus | place) NAME, in a process of its own."""
    kind, name = turn.task.split()
    if kind == "cpus":
        with turn.taken():
            rows: list[dict[str, Any]] = processors()
    else:
        step, where = name.split("/")
        rows = placed(step, where, turn)
    (folder / f"{turn.task.replace('/', ' ')}.json").write_text(json.dumps(rows), encoding="utf-8")
    row = rows[-1]
    return str({key: round(row[key] * 1e3, 2) for key in ("forward_s", "backward_s") if key in row})


def main(given: Sequence[str] = ()) -> None:
    """Measure all placements into a folder until the time is up."""
    parser = needs.parser(__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write into")
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args(given)
    args.out.mkdir(parents=True, exist_ok=True)
    tasks = deque(["cpus all"])
    tasks.extend(f"place {step}/{where}" for step in STEPS for where in placements())
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        turns = Turns(partial(work, folder=folder), folder, tasks, 6,
                      time.monotonic() + args.seconds)  # fmt: skip
        turns.run()
        found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    document = {"failures": turns.failures, "measured": found}
    (args.out / "host_threads.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
