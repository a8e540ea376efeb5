"""Attacks on the processes around a script: forged messages and files, and what outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile.attacks import processes

import wavecast
from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.confinement import kernel
from wavecast.targets.scripts import ScriptRequest, run_in_process

pytestmark = pytest.mark.skipif(
    kernel.version() < kernel.SIGNALS_SINCE, reason="needs Linux 6.12 with Landlock"
)
MARKER = f"attacks-{os.getpid()}"
BEGINS = """
import ctypes, fcntl, json, os, posix, signal, socket, subprocess, sys, time
import torch

def say_everywhere(*messages):
    text = "".join(json.dumps(message) + "\\n" for message in messages).encode()
    for descriptor in range(3, 1024):
        try:
            os.set_blocking(descriptor, False)
            os.write(descriptor, text)
        except OSError:
            pass

def failure(kind):
    fields = {"kind": kind, "message": "x", "traceback": "", "exit_code": None}
    return {"kind": "Failure", "fields": fields}

top = os.path.dirname(os.environ["TMPDIR"])

def leave(result):
    with os.fdopen(posix.open(f"{top}/result/result.json", os.O_CREAT | os.O_WRONLY), "w") as file:
        file.write(json.dumps(result))
    os._exit(0)

def train():
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(torch.ones(2, 8).cuda()).sum().backward()
        optimizer.step()
"""
FORGED = """
print("a pass", file=sys.stderr, flush=True)
names = ("l4.toml", "result.json", "result.json.tmp", "trace.json.gz", "0" * 64 + ".plan")
for folder in (os.environ["TMPDIR"], top, f"{top}/result", f"{top}/plans"):
    for name in (*names, "result", "plans", "temporary"):
        try:
            posix.rename(f"{folder}/{name}", f"{folder}/moved-{name}")
        except OSError:
            pass
        try:
            posix.symlink(sys.argv[1], f"{folder}/{name}")
        except OSError:
            pass
say_everywhere(
    {"failed": {"kind": "uncompiled", "message": "x"}}, failure("uncompiled"),
    {"confined": True, "unpromised": []}, {"ended": 0}, {"over": True},
)
os._exit(0)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a script into the current folder; folders of passes are made in another."""
    (tmp_path / "here").mkdir()
    (tmp_path / "passes").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "passes"))

    def make(body: str) -> str:
        Path("train.py").write_text(BEGINS + body)
        return "train.py"

    return make


def test_the_parent_writes_through_no_link_and_ends(
    script: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    with pytest.raises((CaptureError, InvalidInput)):
        wavecast.run_script(script(FORGED), [str(victim)], gpu="l4")
    assert victim.read_text() == "precious"
    assert 1 <= capsys.readouterr().err.count("a pass") <= 3
    assert list((tmp_path / "passes").iterdir()) == []
    assert not list(tmp_path.rglob("*.plan"))


def test_a_file_beside_the_script_is_run_by_nobody_unconfined(
    script: Callable[[str], str], tmp_path: Path
) -> None:
    write = f"open({str(tmp_path / 'victim')!r}, 'w').close()\n"
    for name in ("select", "tempfile", "json", "numpy"):
        Path(f"{name}.py").write_text(f"{write}raise ImportError('{name}')\n")
    script("import select\ntrain()")
    starts = tmp_path / "starts.py"
    starts.write_text("import wavecast; print(wavecast.run_script('train.py').step)")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(starts)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "3\n", done.stderr
    assert not (tmp_path / "victim").exists()


@pytest.mark.slow
def test_the_parent_ends_no_process_that_a_script_names(script: Callable[[str], str]) -> None:
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as victim:
        body = (
            f"say_everywhere({{'pid': {victim.pid}}}, {{'confined': True, 'pid': {victim.pid}}})\n"
            "ctypes.PyDLL(None).sleep(1000)  # with Python's lock, so that nobody can speak\n"
        )
        with pytest.raises(CaptureError, match="said nothing for"):
            wavecast.run_script(script(body), patience=1)
        assert victim.poll() is None
        victim.kill()


@pytest.mark.parametrize("kind", ["interrupted", "compiles", "uncompiled", "SystemExit", "Path"])
def test_a_failure_that_a_script_makes_up_is_its_own(
    kind: str, script: Callable[[str], str]
) -> None:
    with pytest.raises(CaptureError, match="x"):
        wavecast.run_script(script(f"leave(failure({kind!r}))"))


def test_a_result_of_any_size_is_refused_unread(script: Callable[[str], str]) -> None:
    with pytest.raises(InvalidInput, match="damaged result: is larger than 1 MiB"):
        wavecast.run_script(script("leave([[0] * 9] * 100_000)"))


def test_a_pipe_in_place_of_the_result_is_not_waited_for(script: Callable[[str], str]) -> None:
    with pytest.raises(InvalidInput, match="damaged result: cannot be read"):
        wavecast.run_script(script("posix.mkfifo(f'{top}/result/result.json')\nos._exit(0)"))


def test_folders_of_any_depth_are_removed(script: Callable[[str], str], tmp_path: Path) -> None:
    body = """
posix.chdir(os.environ["TMPDIR"])
for _ in range(3000):
    posix.mkdir("deep"); posix.chdir("deep")
posix.chdir("/")
train()
"""
    assert wavecast.run_script(script(body)).step == 3
    assert list((tmp_path / "passes").iterdir()) == []


def test_a_script_can_neither_end_nor_trace_who_watches_it(script: Callable[[str], str]) -> None:
    body = """
libc, above, number = ctypes.CDLL(None), [], os.getpid()
while number > 1:
    number = int(open(f"/proc/{number}/stat").read().rpartition(")")[2].split()[1])
    above.append(number)
for number in above[:-1]:
    for act in (os.kill, os.pidfd_open):
        try:
            act(number, signal.SIGKILL if act is os.kill else 0)
            assert act is os.pidfd_open
        except PermissionError:
            pass
    assert libc.ptrace(16, number, None, None) == -1
    try:
        posix.open(f"/proc/{number}/mem", os.O_RDWR)
        raise AssertionError("opened")
    except PermissionError:
        pass
train()
"""
    assert wavecast.run_script(script(body)).step == 3


def test_root_cannot_leave_offline(script: Callable[[str], str]) -> None:
    body = """
for descriptor in range(1024):
    try:
        held = fcntl.ioctl(descriptor, 0x894C)  # SIOCGSKNS
        ctypes.CDLL(None).setns(held, 0)
    except OSError:
        pass
ctypes.CDLL(None).setns(os.pidfd_open(os.getppid()), 0x40000000)
try:
    socket.socket(40, socket.SOCK_STREAM)  # to the host of a virtual machine
    raise AssertionError("opened")
except OSError as error:
    assert error.errno == 97, error
try:
    socket.create_connection(("192.0.2.1", 80), timeout=5)
except OSError as error:
    assert error.errno == 101, error
    train()
"""
    assert wavecast.run_script(script(body), offline=True).step == 3


LEAVES = f"""
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["{MARKER}", "1000"])
    os._exit(0)
subprocess.Popen(["sleep", "1000"], start_new_session=True, env={{"A": "{MARKER}"}})
print("ready", file=sys.stderr, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("who", ["wavecast", "the worker"])
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_nothing_is_left_when_wavecast_is_ended(
    number: int, who: str, script: Callable[[str], str], tmp_path: Path
) -> None:
    script(LEAVES)
    command = [sys.executable, "-m", "wavecast", "run", "--gpu", "l4", "train.py"]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path / "passes")}
    with (
        (tmp_path / "said").open("w+") as said,
        subprocess.Popen(
            command, stdout=said, stderr=said, env=os.environ | environment
        ) as process,
    ):
        wait_until(lambda: "ready" in (tmp_path / "said").read_text())
        assert processes(MARKER)
        if who == "wavecast":
            process.send_signal(number)
        else:
            worker = next(iter(children(process.pid)))
            os.kill(worker, number)
    wait_until(lambda: not processes(MARKER))
    wait_until(lambda: not list((tmp_path / "passes").glob("wavecast-*")))


def test_no_folder_is_left_when_wavecast_is_ended_while_it_reads(
    script: Callable[[str], str], tmp_path: Path
) -> None:
    script("train()")
    starts = tmp_path / "starts.py"
    starts.write_text(
        "import os, signal, wavecast\n"
        "from wavecast.targets import scripts\n"
        "scripts.read_result = lambda folder: os.kill(os.getpid(), signal.SIGKILL)\n"
        "wavecast.run_script('train.py')\n"
    )
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path / "passes")}
    done = subprocess.run([sys.executable, str(starts)], env=os.environ | environment, check=False)
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: not list((tmp_path / "passes").glob("wavecast-*")))


def children(process: int) -> list[int]:
    """The processes that a process has started."""
    stats = {path: path.read_text() for path in Path("/proc").glob("[0-9]*/stat")}
    return [
        int(path.parent.name)
        for path, stat in stats.items()
        if int(stat.rpartition(")")[2].split()[1]) == process
    ]


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for half a minute at most."""
    for _ in range(300):
        if is_so():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come to that")


def test_nothing_is_left_where_the_kernel_confines_nothing(script: Callable[[str], str]) -> None:
    script(LEAVES.replace("time.sleep(1000)", "train()"))
    run = run_in_process(ScriptRequest(("train.py",), landlock=0))
    assert (run.step, run.confined) == (3, False)
    assert not processes(MARKER)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is promised less")
def test_what_root_is_not_promised_is_said_first(script: Callable[[str], str]) -> None:
    code = "import wavecast; wavecast.run_script('train.py'); wavecast.run_script('train.py')"
    script("print('hello', file=sys.stderr)\ntrain()")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, *others = done.stderr.splitlines()
    assert first.startswith("wavecast: nothing here keeps a script from ")
    assert "services that obey root" in first
    assert others == ["hello", "hello"]


def test_words_of_a_report_are_data() -> None:
    """The messages with which a script could name a file or a process are not understood."""
    from wavecast.frameworks.script_results import Doing, Failure, Late, read_report, report_line

    for report in (Doing("step 2", 7), Late("late"), Failure("CaptureError", "no", "é\n", 3)):
        assert read_report(report_line(report).rstrip(b"\n")) == report
    right = json.loads(report_line(Doing("x", 7)))
    wrong = [
        *({"pid": 1}, {"ended": 0}, [], 1, None, "Doing", {"kind": ["Doing"], "fields": {}}),
        right | {"kind": "ScriptRun"},
        right | {"more": 1},
        right | {"fields": {"doing": "x"}},
        right | {"fields": {"doing": "x", "ops": "many"}},
        right | {"fields": {"doing": "x", "ops": -1}},
        right | {"fields": {"doing": 5, "ops": True}},
        right | {"fields": [["doing", "x"]]},
        right | {"fields": {"doing": "x" * 5000, "ops": 1}},
    ]
    for message in wrong:
        assert read_report(json.dumps(message).encode()) is None, message
    for line in (b"", b"{", b"\xff", b"[" * 4000):
        assert read_report(line) is None
