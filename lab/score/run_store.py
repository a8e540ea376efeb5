"""How fast is the store with a million runs, and does an import survive a killed server?

    python -m lab.score.run_store

Each case runs in a new process, which reports its time, its CPU time (without the server's) and its
peak memory. The runs are made up; the store, the files and the PostgreSQL server are real. Use
`--runs 10000` for a quick try.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from sqlalchemy import Connection

from lab.score.postgres import Server, programs
from wavecast.errors import StoreUnavailable
from wavecast.regression.end_to_end import EndToEnd
from wavecast.runs.run import Run
from wavecast.runs.store.export import export
from wavecast.runs.store.imports import add_file
from wavecast.runs.store.store import RunStore, insert

KILLED_AT = 40_000
"""The server is killed right after the batch that begins with this row was inserted."""
KILLED_OF = 100_000
"""How many rows that import has."""
SLOPES = {"AlexNet": 0.002, "GoogLeNet": 0.0045, "VGG-16": 0.016}
"""Seconds per sample and iteration, in the formula that makes the runs."""
_RESULT = "RESULT "


def main() -> None:
    """Run every case and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--case", nargs=3, metavar=("CASE", "STORE", "FOLDER"))
    chosen = parser.parse_args()
    if chosen.case:
        name, place, folder = chosen.case
        print(_RESULT + json.dumps(_measured(CASES[name], place, Path(folder))))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export(made(chosen.runs), folder / "runs.csv")
        print("| case | SQLite | PostgreSQL |\n|---|---|---|")
        server = _server()
        places = [str(folder / "runs.sqlite"), server and server.new_database()]
        try:
            for case in CASES:
                shown = [_in_process(case, place, folder) if place else "-" for place in places]
                print(f"| {case} | {' | '.join(shown)} |", flush=True)
            if server is not None:
                print(f"\n{_killed(server, folder)}")
        finally:
            if server is not None:
                server.close()


def made(count: int) -> Iterator[Run]:
    """Runs of three networks with random batches and iterations, and 2% of noise."""
    draw, names = random.Random(0), list(SLOPES)
    for number in range(count):
        model = draw.choice(names)
        batch, iterations = draw.choice([16, 32, 64, 128, 256]), draw.randrange(50, 5000)
        seconds = 2 + 0.02 * batch + 0.02 * iterations + SLOPES[model] * batch * iterations
        seconds *= draw.gauss(1, 0.02)
        yield Run(model, batch, iterations, seconds, gpu="m6000", source=f"made:{number}")


def _add(place: str, folder: Path) -> str:
    with RunStore(place) as store:
        return f"{add_file(store, folder / 'runs.csv').new:,} new"


def _list(place: str, folder: Path) -> str:
    with RunStore(place) as store:
        return f"{len(list(store.runs(last=20)))} of {store.count():,}"


def _go_through(place: str, folder: Path) -> str:
    with RunStore(place) as store:
        return f"{sum(1 for _ in store.runs()):,} runs"


def _fit(place: str, folder: Path) -> str:
    """Fit one network's runs, as `wavecast fit --runs` does."""
    return _fitted(place, "AlexNet")


def _fit_all(place: str, folder: Path) -> str:
    """Fit a model for each network, so that every run is used."""
    return "; ".join(_fitted(place, name) for name in SLOPES)


def _fitted(place: str, model: str) -> str:
    with RunStore(place) as store:
        fitted = EndToEnd().fit(store.runs(model=model, phase="training"))
    off = fitted.coefficients[-1].value / SLOPES[model] - 1
    return f"{len(fitted.table):,} runs, MAPE {fitted.mape:.1%}, b*i coefficient off by {off:+.2%}"


def _export(place: str, folder: Path) -> str:
    with RunStore(place) as store:
        return f"{export(store.runs(), folder / 'out.csv'):,} runs"


CASES: dict[str, Callable[[str, Path], str]] = {
    "add a table": _add,
    "add it again": _add,
    "list the last 20": _list,
    "go through all": _go_through,
    "fit one network's": _fit,
    "fit each network's": _fit_all,
    "export": _export,
}


def _measured(case: Callable[[str, Path], str], place: str, folder: Path) -> dict[str, Any]:
    began, worked = time.perf_counter(), time.process_time()
    what = case(place, folder)
    return {
        "what": what,
        "seconds": time.perf_counter() - began,
        "cpu_s": time.process_time() - worked,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _in_process(case: str, place: str, folder: Path) -> str:
    command = [sys.executable, "-m", "lab.score.run_store", "--case", case, place, str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith(_RESULT))
    result = json.loads(line.removeprefix(_RESULT))
    times = f"{result['seconds']:.1f} s ({result['cpu_s']:.1f} s of CPU)"
    return f"{times}, {result['peak_bytes'] / 1e6:.0f} MB, {result['what']}"


def _server() -> Server | None:
    folder = programs()
    if folder is None:
        return None
    server = Server(folder)
    server.start()
    return server


def _killed(server: Server, folder: Path) -> str:
    """Kill the server in the middle of an import, start it again and repeat the import."""
    table = folder / "some.csv"
    export(made(KILLED_OF), table)

    def insert_and_kill(connection: Connection, runs: Sequence[tuple[str, Run]]) -> int:
        count = insert(connection, runs)
        if runs[0][1].source == f"made:{KILLED_AT}":  # inserted, but not yet committed
            server.kill()
        return count

    with RunStore(server.new_database()) as store:
        try:
            with mock.patch("wavecast.runs.store.imports.insert", insert_and_kill):
                add_file(store, table)
        except StoreUnavailable as error:
            message = str(error)
        else:
            raise RuntimeError("the import ended before the server was killed")
        server.start()
        there = store.count()
        began = time.perf_counter()
        again = add_file(store, table)
        seconds = time.perf_counter() - began
        whole = len({run.source for run in store.runs()}) == store.count() == KILLED_OF
    return (
        f"PostgreSQL was killed during an import of {KILLED_OF:,} rows. {there:,} were stored, in "
        f"whole transactions of 10,000. The repeated import skipped {again.resumed_at:,} rows and "
        f"added {again.new:,} in {seconds:.1f} s. Every row is stored exactly once: {whole}. "
        f"The error was: {message}"
    )


if __name__ == "__main__":
    main()
