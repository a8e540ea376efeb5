"""Commands that are killed at random moments lose nothing and store nothing twice.

`collect`, a campaign of the suite, `runs add` and `runs export` run in processes of their own, are
killed with SIGKILL and started again. After each kill the file is read: what was there must still
be there, whole and once. In the end the command runs to its end, and everything must be there
once. The steps of the campaign are not measured, because that needs a GPU; its file is real.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sqlalchemy", reason="needs wavecast[runs]")

from wavecast.campaigns.layer_times import read_rows
from wavecast.errors import InvalidInput
from wavecast.runs.run import Run
from wavecast.runs.store.store import RunStore, export
from wavecast.runs.suite_results import read_results

KILLS = 2
LAYERS, STEPS, RUNS = 60, 500, 25_000
_LATEST_S = 0.5
_ASK_AGAIN_S = 0.005
_COMMAND = (sys.executable, "-m", "wavecast")
_CAMPAIGN = """
import sys, time
from pathlib import Path
from wavecast.campaigns.suite_runs import run
from wavecast.runs.suite_results import SuiteResult, SuiteStep

def measure(step):
    time.sleep(0.001)
    return SuiteResult(step.model, step.batch, step.precision, "h200-sxm", "oom", "images")

steps = [SuiteStep("resnet50", 1 + n, "fp32") for n in range(int(sys.argv[2]))]
run(steps, Path(sys.argv[1]), measure, gpu="h200-sxm")
"""


@dataclass(frozen=True)
class Killable:
    """A command that is killed, and what its file holds."""

    name: str
    command: Sequence[str]
    file: Path
    """The file whose growth shows that the command is at work."""
    content: Callable[[], Sequence[object]]
    """What is stored now, in order."""
    whole: int
    """How many things are stored in the end."""
    again: Callable[[], None]
    """Forgets everything, when there is nothing left to do."""


def killables(folder: Path) -> tuple[Killable, ...]:
    """The commands, with their files in a folder."""
    rows, results, out = folder / "bmm.csv", folder / "suite.csv", folder / "out.csv"
    store, full, table = folder / "new.sqlite", folder / "full.sqlite", folder / "runs.csv"
    export(generated_runs(RUNS), table)
    with RunStore(full) as filled:
        filled.add(generated_runs(RUNS))
    collect = (*_COMMAND, "collect", "bmm", "--device", "cpu", "-n", str(LAYERS), "-o", str(rows))
    return (
        Killable("collect", collect, rows, lambda: _rows(rows), LAYERS, rows.unlink),
        Killable(
            "campaign of the suite",
            (sys.executable, "-c", _CAMPAIGN, str(results), str(STEPS)),
            results,
            lambda: read_results(results) if results.exists() else (),
            STEPS,
            results.unlink,
        ),
        Killable(
            "runs add",
            (*_COMMAND, "runs", "add", str(table), "--store", str(store)),
            store,
            lambda: _stored(store),
            RUNS,
            lambda: _remove(store),
        ),
        Killable(
            "runs export",
            (*_COMMAND, "runs", "export", str(out), "--store", str(full)),
            out,
            lambda: out.read_text().splitlines()[1:] if out.exists() else (),
            RUNS,
            lambda: None,  # the next export replaces the file, and must not lose it
        ),
    )


def outlive(tried: Killable, kills: int, draw: random.Random) -> tuple[int, int, int]:
    """Kill a command some times, look after each time, then let it end.

    Returns how much was stored in the end, and how much was lost and stored twice on the way.
    """
    done = lost = twice = 0
    before: Sequence[object] = ()
    while done < kills:
        killed = _kill(tried, draw)
        after = tried.content()
        done += killed
        lost += sum(old != new for old, new in zip(before, after, strict=False))
        lost += max(0, len(before) - len(after))
        twice += len(after) - len(set(map(repr, after)))
        before = after
        if len(after) == tried.whole:
            tried.again()
            before = tried.content()
    subprocess.run(tried.command, check=True, capture_output=True)
    after = tried.content()
    lost += tried.whole - len(set(map(repr, after)))
    return len(after), lost, twice


def _kill(tried: Killable, draw: random.Random) -> bool:
    """Kill the command while it works; false if it ended before."""
    began = _state(tried.file)
    with subprocess.Popen(
        tried.command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        # Every fourth kill comes at any moment, also while Python starts.
        if draw.random() < 0.25:
            time.sleep(draw.random() * 2)
        else:
            while process.poll() is None and _state(tried.file) == began:
                time.sleep(_ASK_AGAIN_S)
            time.sleep(draw.random() * _LATEST_S)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode == -signal.SIGKILL


def _state(file: Path) -> list[tuple[str, int, int]]:
    """The names, sizes and times of a file and of drafts and logs beside it."""
    there = []
    for path in sorted(file.parent.glob(f"*{file.name}*")):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        there.append((path.name, status.st_size, status.st_mtime_ns))
    return there


def _rows(path: Path) -> Sequence[object]:
    return read_rows(path) if path.exists() else ()


def _remove(store: Path) -> None:
    for path in store.parent.glob(f"{store.name}*"):  # with the log beside it
        path.unlink()


def _stored(place: Path) -> Sequence[object]:
    """The runs of a store; none if it was killed before it had tables."""
    try:
        with RunStore(place, read_only=True) as store:
            return tuple(store.runs())
    except InvalidInput:
        return ()


_SLOPES = {"AlexNet": 0.002, "GoogLeNet": 0.0045, "VGG-16": 0.016}
"""Seconds per sample and iteration, in the formula that makes the runs."""


def generated_runs(count: int) -> Iterator[Run]:
    """Runs of three networks with random batches and iterations, and 2% of noise."""
    draw, names = random.Random(0), list(_SLOPES)
    for number in range(count):
        model = draw.choice(names)
        batch, iterations = draw.choice([16, 32, 64, 128, 256]), draw.randrange(50, 5000)
        seconds = 2 + 0.02 * batch + 0.02 * iterations + _SLOPES[model] * batch * iterations
        seconds *= draw.gauss(1, 0.02)
        yield Run(model, batch, iterations, seconds, gpu="m6000", source=f"made:{number}")


COMMANDS = ("collect", "campaign of the suite", "runs add", "runs export")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=COMMANDS)
def test_a_killed_command_loses_nothing(number: int, tmp_path: Path) -> None:
    tried = killables(tmp_path)[number]
    assert tried.name == COMMANDS[number]
    assert outlive(tried, KILLS, random.Random(1)) == (tried.whole, 0, 0)
