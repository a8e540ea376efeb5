"""Measure JAX training steps on this machine's GPU: iterations, kernels, memory, scheduled HLO.

    python -m lab.collect.jax_steps fit --out FOLDER --seconds 330

It needs jax and numpy only. Each step runs in a process of its own. Processes compile at the same
time; when one is ready to measure, the others are stopped until it is done. Each step is compiled
twice: as usual, for the time of an iteration, and without command buffers (CUDA graphs), where the
profiler names the HLO instruction of every kernel.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.steps.jax_steps import HOST, step_named, steps_of

NO_GRAPHS = {"xla_gpu_graph_min_graph_size": 1_000_000}
READY, GO, DONE = "ready", "go", "done"
PROFILED = 3
"""Iterations under the profiler."""
_MEMORY = ("argument", "output", "temp", "alias")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the steps of a group, or one of them as a worker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("group", help="a group of lab.steps.jax_steps, or the name of a step")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=330, help="begin no step after this")
    parser.add_argument("--end", type=float, default=550, help="end all steps after this")
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.worker:
        _write(options.out / f"{options.group}.json.gz", _measured(options.group))
        return
    names = [step.name for step in steps_of(options.group)]
    with tempfile.TemporaryDirectory() as folder:

        def gather() -> None:
            _gather(names, Path(folder), options.out / options.group)

        together = CompilingTogether(names, Path(folder), options.seconds, gather)
        end = threading.Timer(options.end, together.end)
        end.start()
        together.run(options.workers)
        end.cancel()
        gather()


def _gather(names: Sequence[str], folder: Path, out: Path) -> None:
    """Write what the steps have found so far."""
    parts = [path for name in names if (path := folder / f"{name}.json.gz").exists()]
    results = [json.loads(gzip.decompress(path.read_bytes())) for path in parts]
    texts = {result["name"]: result.pop("hlo", None) for result in results}
    _write(out.with_name(f"{out.name}-steps.json.gz"), results)
    _write(out.with_name(f"{out.name}-hlo.json.gz"), texts)
    failed = {one["name"]: one["error"] for one in results if "error" in one}
    print(f"{len(results)} of {len(names)} steps; failed: {failed}", flush=True)


def _write(path: Path, data: object) -> None:
    part = path.with_suffix(".part")
    part.write_bytes(gzip.compress(json.dumps(data).encode(), 6))
    part.replace(path)


class CompilingTogether:
    """Workers that compile together and measure alone."""

    def __init__(
        self, names: Sequence[str], folder: Path, seconds: float, gather: Callable[[], None]
    ) -> None:
        self._left, self._folder, self._gather = list(names), folder, gather
        self._begin, self._seconds = time.monotonic(), seconds
        self._measuring, self._gathering = threading.Lock(), threading.Lock()
        self._running: dict[str, subprocess.Popen[str]] = {}

    def run(self, workers: int) -> None:
        """Measure all steps, as far as time allows."""
        threads = [threading.Thread(target=self._take) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def end(self) -> None:
        """End the processes that still run."""
        self._left.clear()
        for process in list(self._running.values()):
            process.kill()

    def _take(self) -> None:
        while self._left and time.monotonic() - self._begin < self._seconds:
            name = self._left.pop(0)
            command = [sys.executable, "-m", "lab.collect.jax_steps", name, "--worker"]
            environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
            with subprocess.Popen(
                [*command, "--out", str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            ) as process:
                self._running[name] = process
                self._follow(name, process)
                process.wait()
                self._running.pop(name)
            with self._gathering:
                self._gather()

    def _follow(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() != READY:
                continue
            with self._measuring, self._others_stopped(name):
                process.stdin.write(GO + "\n")
                process.stdin.flush()
                for later in process.stdout:
                    if later.strip() == DONE:
                        break
            print(f"{time.monotonic() - self._begin:6.1f} s {name}", flush=True)

    @contextmanager
    def _others_stopped(self, name: str) -> Iterator[None]:
        others = [process for other, process in list(self._running.items()) if other != name]
        for process in others:
            if process.poll() is None:
                process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in others:
                if process.poll() is None:
                    process.send_signal(signal.SIGCONT)


def _measured(name: str) -> dict[str, Any]:
    """What one step's process finds; `error` if it fails."""
    result: dict[str, Any] = {"name": name}
    try:
        _measure(name, result)
    except Exception as error:  # one step must not end the others
        result["error"] = f"{type(error).__name__}: {error}"[:2000]
        print(DONE, flush=True)
    return result


def _measure(name: str, result: dict[str, Any]) -> None:
    import jax

    case = step_named(name)
    training = case.make()
    arguments = jax.block_until_ready(training.arrays())
    lowered = training.step.lower(*training.shapes())
    begin = time.perf_counter()
    compiled, plain = lowered.compile(), lowered.compile(compiler_options=NO_GRAPHS)
    result |= {
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "compile_s": time.perf_counter() - begin,
        "memory": sizes_of(compiled),
        "memory_before": jax.devices()[0].memory_stats(),
    }
    print(READY, flush=True)
    sys.stdin.readline()
    state, batch = arguments
    for _ in range(3):
        state, loss = compiled(state, batch)
    jax.block_until_ready(state)
    result["memory_after"] = jax.devices()[0].memory_stats()
    for mode, step in (("default", compiled), ("nograph", plain)):
        state, times = _iterations(step, state, batch)
        result[mode] = times
        state, seen = _profiled(step, state, batch, full=mode == "nograph")
        times |= seen
    if case.family == HOST:  # as users call it, not as an executable
        state, _ = jax.block_until_ready(training.step(state, batch))
        state, result["jitted"] = _iterations(training.step, state, batch)
    result["loss"] = float(loss)
    print(DONE, flush=True)
    result["hlo"] = plain.as_text()
    result["default_instructions"] = compiled.as_text().count(" = ")


def sizes_of(compiled: Any) -> dict[str, int]:
    """The bytes of a compiled step's buffers."""
    found = compiled.memory_analysis()
    sizes = {part: getattr(found, f"{part}_size_in_bytes") for part in _MEMORY}
    return sizes | {"peak": getattr(found, "peak_memory_in_bytes", 0)}


def _iterations(step: Any, state: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
    """The state afterwards, and seconds of one iteration: in a row, to issue it, and alone."""
    import jax

    begin = time.perf_counter()
    state, _ = jax.block_until_ready(step(state, batch))
    once = [time.perf_counter() - begin]
    repeats = max(5, min(200, int(0.25 / once[0])))
    rows, issued = [], []
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(repeats):
            state, loss = step(state, batch)
        issued.append((time.perf_counter() - begin) / repeats)
        jax.block_until_ready((state, loss))
        rows.append((time.perf_counter() - begin) / repeats)
    for _ in range(5):
        begin = time.perf_counter()
        state, _ = jax.block_until_ready(step(state, batch))
        once.append(time.perf_counter() - begin)
    times = {"seconds": statistics.median(rows), "all_s": rows, "repeats": repeats}
    return state, times | {"issue_s": statistics.median(issued), "once_s": statistics.median(once)}


def _profiled(step: Any, state: Any, batch: Any, *, full: bool) -> tuple[Any, dict[str, Any]]:
    import jax

    def run() -> None:
        nonlocal state
        state, _ = step(state, batch)

    seen = profile_of(run, lambda: jax.block_until_ready(state), full=full)
    return state, seen


def profile_of(
    run: Callable[[], Any], wait: Callable[[], Any], *, full: bool = False
) -> dict[str, Any]:
    """What the profiler sees of an iteration: how many kernels, and how long the GPU is busy."""
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.host_tracer_level = 1
    with tempfile.TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder, profiler_options=options)
        for _ in range(PROFILED):
            run()
        wait()
        jax.profiler.stop_trace()
        return _kernels(Path(folder), full=full)


def _kernels(folder: Path, *, full: bool) -> dict[str, Any]:
    """The kernels of one profiled iteration, each by the median of its times in all of them."""
    from jax.profiler import ProfileData

    file = next(iter(sorted(folder.rglob("*.xplane.pb"))))
    rows = []
    for plane in ProfileData.from_file(str(file)).planes:
        for line in plane.lines:
            if not plane.name.startswith("/device:GPU") or "Stream" not in line.name:
                continue
            for event in line.events:
                stats = {str(key): value for key, value in event.stats}
                about = stats.get("kernel_details") or stats.get("memcpy_details") or ""
                instruction = str(stats.get("hlo_op") or stats.get("name") or "")
                place = str(about), line.name.partition("(")[0]
                rows.append((event.start_ns, event.duration_ns, event.name, instruction, *place))
    rows.sort(key=lambda row: row[0])
    count = len(rows) // PROFILED
    turns = [rows[n * count : (n + 1) * count] for n in range(PROFILED)]
    names = [[row[2:4] for row in turn] for turn in turns]
    same = len(rows) % PROFILED == 0 and all(turn == names[0] for turn in names)
    last = turns[-1]
    lengths_us = [
        statistics.median(turn[n][1] for turn in turns) / 1e3 if same else last[n][1] / 1e3
        for n in range(count)
    ]
    busy_s = statistics.median(_busy_s(turn) for turn in turns) if same else _busy_s(last)
    found: dict[str, Any] = {"count": len(rows) / PROFILED, "same": same, "gpu_s": busy_s}
    found["span_s"] = (last[-1][0] + last[-1][1] - last[0][0]) / 1e9 if last else None
    found["kernel_s"] = sum(lengths_us) / 1e6
    if full:
        found["kernels"] = [
            [row[2][:120], row[3], round(us, 3), row[4], row[5], round((row[0] - last[0][0]) / 1e3)]
            for row, us in zip(last, lengths_us, strict=True)
        ]
    return found


def _busy_s(rows: Sequence[tuple[Any, ...]]) -> float:
    """Seconds in which at least one kernel ran."""
    busy, until = 0.0, 0.0
    for start, length, *_ in rows:
        busy += max(0.0, start + length - max(start, until))
        until = max(until, start + length)
    return busy / 1e9


if __name__ == "__main__":
    main()
