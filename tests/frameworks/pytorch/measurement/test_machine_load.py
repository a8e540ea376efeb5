"""The CPU time of this process and its workers, and how busy other programs keep the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wavecast.frameworks.pytorch.measurement import whole_runs
from wavecast.frameworks.pytorch.measurement.whole_runs import CpuTimes, others_share, processor_s

WORK = "sum(range(12_000_000))"


@pytest.fixture
def stat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "stat"
    monkeypatch.setattr(whole_runs, "_STAT", path)
    return path


def test_the_share_of_others_leaves_out_idle_time_and_our_own() -> None:
    before = CpuTimes(busy_s=100.0, total_s=1000.0, own_s=7.0)
    assert others_share(before, CpuTimes(130.0, 1100.0, 17.0)) == pytest.approx(0.2)
    assert others_share(before, CpuTimes(110.0, 1100.0, 17.0)) == 0.0
    # The counts of the machine have coarser steps than those of the process.
    assert others_share(before, CpuTimes(109.0, 1100.0, 17.0)) == 0.0


def test_without_counts_the_share_is_unknown() -> None:
    times = CpuTimes(1.0, 2.0, 0.5)
    assert others_share(None, times) is None
    assert others_share(times, None) is None
    assert others_share(times, times) is None


def test_the_counts_of_linux_are_read(stat: Path) -> None:
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    # user nice system idle iowait irq softirq steal guest guest_nice
    stat.write_text("cpu  100 20 30 5000 600 7 8 9 55 5\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    times = whole_runs.cpu_times()
    assert times is not None
    assert times.busy_s == pytest.approx((100 + 20 + 30 + 7 + 8 + 9) * tick_s)
    assert times.total_s == pytest.approx((100 + 20 + 30 + 5000 + 600 + 7 + 8 + 9) * tick_s)
    assert times.own_s > 0


@pytest.mark.parametrize("text", ["", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8", "cpu a b c d e f g h"])
def test_other_counts_are_not_guessed_at(stat: Path, text: str) -> None:
    assert whole_runs.cpu_times() is None
    stat.write_text(text)
    assert whole_runs.cpu_times() is None


def test_a_context_is_watched_from_its_beginning_to_its_end(stat: Path) -> None:
    stat.write_text("cpu 0 0 0 0 0 0 0 0 0 0\n")
    with whole_runs.watched() as load:
        assert load.share is None
        stat.write_text("cpu 6000000 0 0 4000000 0 0 0 0 0 0\n")
    assert load.share == pytest.approx(0.6, abs=1e-3)


def test_the_machine_is_watched_for_some_seconds(
    stat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat.write_text("cpu 0 0 0 0 0 0 0 0 0 0\n")
    waited = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        stat.write_text("cpu 2500000 0 0 7500000 0 0 0 0 0 0\n")

    monkeypatch.setattr("time.sleep", sleep)
    assert whole_runs.share_in(1.5) == pytest.approx(0.25, abs=1e-3)
    assert waited == [1.5]


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
