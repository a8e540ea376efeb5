"""Processor time counts worker processes, those that run and those that have ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wavecast.frameworks.pytorch.measurement.processor_time import processor_s

WORK = "sum(range(12_000_000))"


def process(folder: Path, pid: int, parent: int, *ticks: int, name: str = "python") -> None:
    """A running process as Linux describes it; user, system, and the same of its ended children."""
    (folder / str(pid)).mkdir()
    fields = f"S {parent} 1 1 0 -1 4194304 9 9 9 9 {' '.join(map(str, ticks))} 20 0 1 0"
    (folder / str(pid) / "stat").write_text(f"{pid} ({name}) {fields}\n")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_running_descendants_count_and_other_processes_do_not(tmp_path: Path) -> None:
    here = os.getpid()
    process(tmp_path, here, 1, 7, 7, 7, 7)  # its own time comes from the clock of the process
    process(tmp_path, 90001, here, 100, 20, 3, 1, name="a worker (pt) 1")
    process(tmp_path, 90002, 90001, 1000, 0, 0, 0)
    process(tmp_path, 90003, 1, 50_000, 0, 0, 0)
    (tmp_path / "meminfo").write_text("")
    empty = tmp_path / "empty"
    empty.mkdir()
    without = processor_s(empty)
    ticks = os.sysconf("SC_CLK_TCK")
    assert processor_s(tmp_path) - without == pytest.approx(1124 / ticks, abs=0.5 / ticks * 100)
    assert processor_s(tmp_path / "nothing") >= without


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_counts_while_it_runs_and_after_it_has_ended() -> None:
    before = processor_s()
    code = f"{WORK}; print(1, flush=True); input(); {WORK}"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        worker.stdout.read(1)
        running = processor_s()
        worker.communicate(b"\n")
    assert running > before
    assert processor_s() > running
