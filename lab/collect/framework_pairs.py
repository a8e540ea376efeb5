"""Measure six models in torch and in JAX on this machine's GPU: which is faster?

    python -m lab collect framework_pairs OUT [--seconds 110] [--workers 12]

Needs a GPU, torch and jax. Each step has a process of its own; they prepare and compile at the same
time, and are measured one at a time (`lab.collect.turns`). Writes OUT/pairs.json.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab import needs
from lab.collect.turns import Turn, Turns, in_new_process
from lab.steps.framework_pairs import FRAMEWORKS, PAIRS, pair_named

TIMED_S, ROUNDS = 0.3, 3
WARM_UP = 4
Row = dict[str, Any]


def timed_s(run: Callable[[], Any], wait: Callable[[], Any]) -> list[float]:
    """Seconds of one iteration of many in a row, in several rounds."""
    for _ in range(WARM_UP):
        run()
    wait()
    begin = time.perf_counter()
    run()
    wait()
    repeats = int(min(max(TIMED_S / (time.perf_counter() - begin), 6), 300))
    rounds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(repeats):
            run()
        wait()
        rounds.append((time.perf_counter() - begin) / repeats)
    return rounds


def measure_torch(name: str, ready: Callable[[], None]) -> Row:
    """The times of a step in torch, its memory and its kernels."""
    import torch

    from lab.collect.profiled import busy_s, kernels_of, profiled

    run = pair_named(name).torch()
    for _ in range(WARM_UP):
        run()
    torch.cuda.synchronize()
    ready()
    rounds = timed_s(run, torch.cuda.synchronize)
    peak = torch.cuda.max_memory_allocated()
    kernels = kernels_of(profiled(run))
    return {
        "version": torch.__version__,
        "rounds_s": rounds,
        "gpu_s": busy_s(kernels),
        "kernels": len(kernels),
        "memory_bytes": peak,
    }


def measure_jax(name: str, ready: Callable[[], None]) -> Row:
    """The times of a step in JAX, its memory and its kernels."""
    import jax

    from lab.collect.jax_steps import profile_of, sizes_of

    training = pair_named(name).make_jax()
    state, batch = jax.block_until_ready(training.arrays())
    compiled = training.step.lower(*training.shapes()).compile()
    state, _ = jax.block_until_ready(compiled(state, batch))

    def run() -> None:
        nonlocal state
        state, _ = compiled(state, batch)

    ready()
    rounds = timed_s(run, lambda: jax.block_until_ready(state))
    seen = profile_of(run, lambda: jax.block_until_ready(state))
    sizes = sizes_of(compiled)
    return {
        "version": jax.__version__,
        "rounds_s": rounds,
        "gpu_s": seen["gpu_s"],
        "kernels": seen["count"],
        "memory_bytes": sizes["argument"] + sizes["temp"] + sizes["output"] - sizes["alias"],
    }


def work(folder: Path, framework: str, name: str, descriptor: int) -> None:
    """Measure one step when it is its turn."""
    turn = Turn(name, descriptor)
    try:
        measure = {"torch": measure_torch, "jax": measure_jax}[framework]
        row = {"name": name, "framework": framework, **measure(name, turn.wait)}
        row["seconds"] = statistics.median(row["rounds_s"])
        (folder / f"{framework}-{name}.row.json").write_text(json.dumps(row), encoding="utf-8")
        turn.say(done=f"{row['seconds'] * 1e3:.3f} ms, GPU {row['gpu_s'] * 1e3:.3f} ms")
    except Exception as error:
        text = traceback.format_exc(limit=-3)[-500:]
        turn.say(failed=f"{type(error).__name__}: {str(error)[:300]} {text}")


def main(given: Sequence[str] = ()) -> None:
    """Measure all steps, or one of them as a worker."""
    parser = needs.parser(__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write into")
    parser.add_argument("--seconds", type=float, default=110.0)
    parser.add_argument("--workers", type=int, default=12)
    options = parser.parse_args(given)
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    begin = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    # Those that compile longest begin first.
    names = sorted((pair.name for pair in PAIRS), key=["gpt2", "resnet50"].__contains__)
    tasks = deque(f"{one} {name}" for one in reversed(FRAMEWORKS) for name in reversed(names))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        work_alone = in_new_process("-m", "lab.collect.framework_pairs", "--worker", name)
        turns = Turns(work_alone, folder, tasks, options.workers, begin + options.seconds)
        unfinished = turns.run()
        rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*.row.json"))]
    seconds = round(time.monotonic() - begin, 1)
    said = {"seconds": seconds, "failures": turns.failures, "unfinished": unfinished, "rows": rows}
    (options.out / "pairs.json").write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    print(f"{len(rows)} steps in {seconds} s; unfinished {unfinished}; failed {turns.failures}")


if __name__ == "__main__":
    work(Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
