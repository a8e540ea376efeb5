"""The process of a script: what stops it, what it may not do, and what it says about its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from shell import run_in_terminal

import wavecast
from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.confinement import kernel, system_calls
from wavecast.targets.scripts import Printed, ScriptRequest, run_in_process

TRAINS = """
import ctypes, os, socket, sys, time
import torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def update():
    model(torch.ones(2, 8).cuda()).sum().backward()
    optimizer.step()
"""
NEEDS_LANDLOCK = pytest.mark.skipif(
    kernel.version() < kernel.COMPLETE, reason="the kernel cannot confine a process"
)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a script into the current folder, which is otherwise empty."""
    monkeypatch.chdir(tmp_path)

    def make(body: str) -> str:
        Path("train.py").write_text(TRAINS + body)
        return "train.py"

    return make


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("while True: pass", 9),
        ("time.sleep(1000)", 9),
        ("while True:\n    try:\n        time.sleep(100)\n    except BaseException: pass", 11),
        ("while True:\n    model(torch.ones(2, 8).cuda()).sum()", 10),
        ("import threading\nthreading.Event().wait()", 10),
    ],
)
def test_a_script_that_comes_to_no_step_is_ended(
    body: str, line: int, script: Callable[[str], str]
) -> None:
    where = rf"came to no optimizer step in 1 s.*train\.py:{line}.*--until.*--patience"
    with pytest.raises(CaptureError, match=where):
        wavecast.run_script(script(body), patience=1)


def test_the_hint_for_an_endless_loop_is_about_its_value(script: Callable[[str], str]) -> None:
    body = "x = torch.randn(8, device='cuda')\nwhile not x.sum() == 0:\n    time.sleep(0.02)"
    hint = r"came to no optimizer step.*GPU value at train\.py:10 more than.*--assume train\.py:10="
    with pytest.raises(CaptureError, match=hint):
        wavecast.run_script(script(body), patience=8)


def test_steps_that_were_seen_are_kept(script: Callable[[str], str]) -> None:
    run = wavecast.run_script(script("update()\nupdate()\ntime.sleep(1000)"), patience=1)
    assert run.step == 2
    assert "came to no further step in 1 s" in run.choice
    assert "at train.py:11" in run.choice


def test_patience_is_positive(script: Callable[[str], str]) -> None:
    with pytest.raises(InvalidInput, match="more than 0 s"):
        wavecast.run_script(script(""), patience=0)


@pytest.mark.parametrize("trains", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_ctrl_c_gives_what_is_known(trains: bool, script: Callable[[str], str]) -> None:
    steps = "update()\nupdate()\n" if trains else ""
    script(f"{steps}print('waits', flush=True)\ntime.sleep(1000)")
    command = [sys.executable, "-m", "wavecast", "run", "--gpu", "l4", "train.py"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stderr is not None
        while "waits" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    if trains:
        assert process.returncode == 0, err
        assert "the script was interrupted while running step 2 of the loop at train.py:8" in out
        assert any(line.startswith("l4") for line in out.splitlines())
    else:
        assert (process.returncode, out) == (130, "")
        assert "train.py was interrupted while running train.py up to its first step" in err
        assert re.search(r"at train\.py:(9|10)", err)


def test_what_was_printed_before_sys_exit_is_shown(script: Callable[[str], str]) -> None:
    said = "print('set the dataset in config.yaml', file=sys.stderr)\nsys.exit(2)"
    with pytest.raises(CaptureError, match=r"it had printed: set the dataset in config\.yaml"):
        wavecast.run_script(script(said))


def test_a_process_that_dies_is_explained(script: Callable[[str], str]) -> None:
    with pytest.raises(CaptureError, match="signal SIGKILL; perhaps memory ran out"):
        wavecast.run_script(script(f"os.kill(os.getpid(), {int(signal.SIGKILL)})"))
    with pytest.raises(CaptureError, match=r"exit code 5.*it had printed: bye"):
        wavecast.run_script(script("print('bye', flush=True)\nos._exit(5)"))
    assert wavecast.run_script(script("while True: update()")).step == 3


def test_what_a_script_leaves_running_is_ended(script: Callable[[str], str]) -> None:
    body = "import subprocess\nprint(subprocess.Popen(['sleep', '1000']).pid, file=sys.stderr)\n"
    command = [sys.executable, "-c", "import wavecast; wavecast.run_script('train.py')"]
    script(body + "while True: update()")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    number = int(done.stderr.splitlines()[-1])
    for _ in range(50):
        status = Path(f"/proc/{number}/status")
        if not status.exists() or "State:\tZ" in status.read_text():
            return
        time.sleep(0.1)
    raise AssertionError("it still runs")


@NEEDS_LANDLOCK
def test_a_write_that_the_kernel_refuses_is_explained(script: Callable[[str], str]) -> None:
    body = "import _io\n_io.open('log.txt', 'w')\n"
    with pytest.raises(CaptureError, match=r"PermissionError at train\.py:10.*switch it off"):
        wavecast.run_script(script(body))
    body = "import subprocess\nsubprocess.run(['mkdir', 'made'], check=True)\n"
    with pytest.raises(CaptureError, match=r"CalledProcessError at train\.py:10.*switch it off"):
        wavecast.run_script(script(body))


@pytest.mark.skipif(sys.platform != "linux", reason="needs a Linux kernel")
@pytest.mark.parametrize("has_namespaces", [True, False])
def test_the_network_is_refused_offline(
    has_namespaces: bool, script: Callable[[str], str], tmp_path: Path
) -> None:
    body = """
try:
    socket.create_connection(("192.0.2.1", 80), timeout=5)
except OSError as error:
    assert error.errno == 101, error
    while True: update()
"""
    if has_namespaces:
        assert wavecast.run_script(script(body), offline=True).step == 3
        return
    # Where namespaces are not allowed, a filter of system calls refuses sockets.
    code = (
        "import socket\nfrom wavecast.frameworks.confinement.system_calls import filter_calls\n"
        "filter_calls(network=False)\nsocket.socket(socket.AF_UNIX)\nsocket.socket()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "[Errno 101] Network is unreachable" in done.stderr
    assert system_calls.is_known()
    assert kernel.SHARED_MEMORY == "/dev/shm"


def test_without_landlock_the_promise_is_weaker_and_said_to_be(
    script: Callable[[str], str], tmp_path: Path
) -> None:
    from rich.console import Console

    from wavecast.report.results.profiles import script_run

    body = (
        "open('mine.txt', 'w').write('x')\nos.rename('kept.txt', 'moved.txt')\n"
        "import _io\n_io.open('through.txt', 'w').close()\nwhile True: update()\n"
    )
    script(body)
    Path("kept.txt").write_text("kept")
    run = run_in_process(ScriptRequest(("train.py",), landlock=0))
    assert not run.confined
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "kept.txt",
        "through.txt",
        "train.py",
    ]
    console = Console(width=300)
    with console.capture() as capture:
        console.print(script_run(run))
    assert "this kernel cannot confine the script" in capture.get()


@pytest.mark.slow
def test_a_terminal_shows_what_is_being_done(script: Callable[[str], str]) -> None:
    script("update()\nupdate()\ntime.sleep(2)\nupdate()\nupdate()\n")
    shown = run_in_terminal("run", "train.py")
    assert "importing torch" in shown
    assert "running step 2 of the loop at train.py:8, at train.py:11" in shown


# What is kept of a script's output: little, however much it prints.

CHUNK = 1 << 16


@pytest.mark.parametrize("text", [b"x", b"\r", b"ab\r", b"\n", b"\xc3\xa9"])
def test_little_is_kept_of_output_without_line_ends(text: bytes) -> None:
    printed, chunk = Printed(), text * (CHUNK // len(text))
    for _ in range(50):
        printed.add(chunk)
        assert printed.kept_bytes < 5000  # what the next chunk is joined to


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_the_last_lines_are_shown_as_a_terminal_does(size: int) -> None:
    printed = Printed()
    text = b"first\nsecond\r\n10%\r 50%\r100%\n\n  \nlast: " + b"x" * 300 + b"\nno end"
    for begin in range(0, len(text), size):
        printed.add(text[begin : begin + size])
    assert printed.shown() == f"; it had printed: second | 100% | last: {'x' * 194}"
