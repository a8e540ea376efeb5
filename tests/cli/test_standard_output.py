"""The standard output has results alone, whatever the user's code prints, and however."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from made import step
from shell import run, run_process

from wavecast.cli.output import standard_output
from wavecast.traces.step import Kernel, Measurement

TALKATIVE = """
import atexit, ctypes, os, subprocess, sys, threading
import torch

print("at import")
os.write(1, b"by descriptor\\n")
sys.__stdout__.write("by the first stream\\n")
ctypes.CDLL(None).puts(b"from C")
subprocess.run(["echo", "from a subprocess"], check=True)
atexit.register(print, "at exit")
atexit.register(os.write, 1, b"at exit by descriptor\\n")

def wait_for_the_end():
    threading.main_thread().join()
    print("from a thread after the end")

threading.Thread(target=wait_for_the_end).start()

def make_step(batch=4):
    print("in make_step")
    data = torch.ones(batch, 64, device=DEVICE, requires_grad=True)

    def step():
        print("in step")
        data.sum().backward()

    return step
"""
PRINTED = (
    *("at import", "by descriptor", "by the first stream", "from C", "from a subprocess"),
    *("at exit", "at exit by descriptor", "from a thread after the end", "in make_step", "in step"),
)
COMMANDS = {
    "predict": ("--gpu", "l4"),
    "max-batch": ("--gpu", "l4", "--limit-gib", "0.01"),
    "trace": (),
}
"""Commands that trace a step once and several times, and the one that makes a file of it."""


@pytest.fixture
def talkative(tmp_path: Path) -> Path:
    path = tmp_path / "talkative.py"
    path.write_text(TALKATIVE.replace("DEVICE", "'cuda'"))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_json_is_valid_whatever_is_printed(talkative: Path, command: str) -> None:
    done = run_process(command, f"{talkative}:make_step", *COMMANDS[command], "--json")
    assert done.code == 0
    assert json.loads(done.out)
    lines = done.err.splitlines()
    assert [text for text in PRINTED if text not in lines] == []


@pytest.mark.slow
@pytest.mark.parametrize("command", ["measure", "profile", "memory"])
def test_so_it_is_on_a_gpu(tmp_path: Path, command: str) -> None:
    """The GPU is not there: the measurement runs the step on the CPU, and its trace is made up."""
    saved, path = tmp_path / "measured.json.gz", tmp_path / "talkative.py"
    made = step()
    calls = tuple(replace(c, kernels=(Kernel("kernel", 1e-4),)) for c in made.calls)
    type(made)(calls, made.allocations, measurement=Measurement("Tesla T4", 1e-3)).save(saved)
    path.write_text(TALKATIVE.replace("DEVICE", "'cpu'"))
    instead = f"""
import types, wavecast, wavecast.cli.steps.memory
from wavecast.cli.steps import sources as steps
from wavecast.frameworks.pytorch.measurement import memory
measured = wavecast.load_trace({str(saved)!r})
steps.require_gpu = lambda: None
wavecast.measure = lambda step, **_: (step(), measured)[1]
memory.measure_memory = lambda make: (
    make()(), memory.MeasuredMemory(1 << 20, 1 << 21, 1 << 22, measured))[1]
wavecast.cli.steps.memory.step_source = lambda *_: types.SimpleNamespace(on=lambda *_: measured)
"""
    more = ("--measure",) if command == "memory" else ()
    done = run_process(command, f"{path}:make_step", *more, "--json", python=instead)
    assert (done.code, done.err.count("in step")) == (0, 1)
    assert json.loads(done.out)
    assert [text for text in PRINTED if text not in done.err.splitlines()] == []


@pytest.mark.slow
def test_tables_are_kept_clean_too(talkative: Path) -> None:
    done = run_process("predict", f"{talkative}:make_step", "--gpu", "l4")
    assert done.out.startswith(f"{talkative}:make_step\n")
    assert done.out.splitlines()[-1].startswith("range: holds ")


def test_a_caller_gets_its_standard_output_back(
    talkative: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = sys.stdout
    done = run("predict", f"{talkative}:make_step".replace("talkative", "quiet"), "--gpu", "l4")
    assert done.code == 1
    quiet = talkative.with_name("quiet.py")
    quiet.write_text(
        "import torch\n"
        "def make_step():\n"
        "    print('mine')\n"
        "    data = torch.ones(8, device='cuda')\n"
        "    return lambda: data + 1\n"
    )
    done = run("predict", f"{quiet}:make_step", "--gpu", "l4", "--json")
    assert json.loads(done.out)["predictions"]
    assert "mine" in done.err
    assert sys.stdout is before
    assert standard_output.results() is sys.stdout
    subprocess.run(["echo", "still there"], check=True)
    assert capfd.readouterr().out == "still there\n"


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_stream_that_is_closed_is_no_crash(talkative: Path, closed: str) -> None:
    quiet = talkative.with_name("quiet.py")
    quiet.write_text(
        "import torch\n"
        "def make_step():\n"
        "    data = torch.ones(8, device='cuda')\n"
        "    return lambda: data + 1\n"
    )
    command = f"{sys.executable} -m wavecast predict {quiet}:make_step --gpu l4 --json {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    if closed == "2>&-":
        assert done.returncode == 0
        assert json.loads(done.stdout)["predictions"]
    else:
        assert done.returncode == 1
        assert done.stderr == "error: cannot write the results: the standard output is closed\n"


@pytest.mark.parametrize("what", ["devices", "devices --json", "--version", "--help"])
@pytest.mark.parametrize(
    ("where", "why"),
    [(">&-", "the standard output is closed"), ("> /dev/full", "No space left on device")],
)
def test_a_result_that_is_lost_is_said_to_be(what: str, where: str, why: str) -> None:
    command = f"{sys.executable} -m wavecast {what} {where}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert line.endswith(why)


@pytest.mark.slow
def test_a_reader_that_stops_reading_is_no_crash(talkative: Path) -> None:
    command = f"{sys.executable} -m wavecast predict {talkative}:make_step --gpu all --json"
    piped = f"{command} | head -c 10"
    done = subprocess.run(piped, shell=True, capture_output=True, text=True, check=True)
    assert len(done.stdout) == 10
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
