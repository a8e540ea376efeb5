"""Output that cannot be written, and Ctrl-C: one line, an exit code, and no traceback."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from shell import run, run_process
from typer.main import get_command

from wavecast.cli import app
from wavecast.cli.app import _Command

COMMAND = [sys.executable, "-m", "wavecast"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("devices",), 1),
        (("devices", "--json"), 1),
        (("--help",), 1),
        (("predict", "--help"), 1),
        (("--version",), 1),
        (("fits", "step.json.gz", "--gpu", "l4"), 2),
    ],
)
def test_a_full_standard_output_is_one_line(
    saved: Path, arguments: tuple[str, ...], code: int
) -> None:
    with Path("/dev/full").open("w") as nowhere:
        done = subprocess.run(
            [*COMMAND, *arguments],
            stdout=nowhere,
            stderr=subprocess.PIPE,
            text=True,
            cwd=saved.parent,
            check=False,
        )
    assert done.returncode == code
    [line] = done.stderr.splitlines()
    assert line.endswith("No space left on device")


def test_a_full_standard_error_changes_nothing_else() -> None:
    with Path("/dev/full").open("w") as nowhere:
        done = subprocess.run(
            [*COMMAND, "devices", "nothing"], stdout=subprocess.PIPE, stderr=nowhere, check=False
        )
    assert (done.returncode, done.stdout) == (1, b"")


@pytest.mark.parametrize("arguments", [("devices",), ("--help",), ("devices", "--json")])
def test_a_reader_that_is_gone_is_silent(arguments: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 1
    assert error == ""


def test_a_narrow_encoding_is_no_crash(tmp_path: Path) -> None:
    done = run_process("devices", "l4", PYTHONIOENCODING="ascii")
    assert done.code == 0
    done = run_process("predict", "na\u00efve\udcff", "--gpu", "l4", PYTHONIOENCODING="ascii")
    assert done.code == 1
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("trace", "step.json.gz", "-o", "n" * 300 + ".json.gz"),
        ("memory", "step.json.gz", "--html", "missing/page.html"),
        ("memory", "step.json.gz", "--html", "."),
        ("memory", "step.json.gz", "--html", "/dev/full"),
        ("predict", "step.json.gz", "--gpu", "l4", "--html", "missing/page.html"),
        ("predict", "step.json.gz", "--gpu", "l4", "--html", "/dev/full"),
        ("predict", "step.json.gz", "--gpu", "l4", "--chrome-trace", "."),
        ("predict", "step.json.gz", "--gpu", "l4", "--chrome-trace", "/dev/full"),
    ],
)
def test_a_file_that_cannot_be_written_is_one_line(
    saved: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(saved.parent)
    done = run(*arguments)
    assert done.code == 1
    [line] = done.err.splitlines()
    assert line.startswith("error: cannot write ")
    assert [file.name for file in saved.parent.iterdir()] == [saved.name]


def interrupted(command: list[str], folder: Path) -> tuple[int, list[str]]:
    """The exit code and the last words of a command that interrupts itself."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
        # A job in the background of a shell ignores the signal, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    return done.returncode, done.stderr.splitlines()


def test_ctrl_c_while_the_commands_are_imported(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    assert interrupted([*COMMAND, "devices"], tmp_path) == (130, ["interrupted"])


STEP = """
import os, signal
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
"""
PLACES = {
    "import": "interrupt()\n",
    "import, hidden by C code": (
        "try:\n    interrupt()\nexcept KeyboardInterrupt:\n    raise ImportError('failed')\n"
    ),
    "make_step": "def make_step():\n    interrupt()\n",
    "step": "def make_step():\n    return interrupt\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_ctrl_c_in_the_users_code(tmp_path: Path, place: str) -> None:
    (tmp_path / "mine.py").write_text(STEP + PLACES[place])
    command = [*COMMAND, "predict", "mine.py:make_step", "--gpu", "l4", "--json"]
    assert interrupted(command, tmp_path) == (130, ["interrupted while tracing mine.py:make_step"])


@pytest.mark.slow
def test_a_script_that_interrupts_itself_is_not_the_user(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(STEP + "interrupt()\n")
    code, lines = interrupted([*COMMAND, "run", "mine.py"], tmp_path)
    assert (code, lines[-1:]) == (1, ["error: mine.py was interrupted at mine.py:4"])


@pytest.mark.slow
def test_ctrl_c_at_the_end_leaves_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(STEP + "import atexit\natexit.register(interrupt)\nx = 1\n")
    code, lines = interrupted([*COMMAND, "predict", "mine.py:x", "--gpu", "l4"], tmp_path)
    assert code == -signal.SIGINT
    assert len(lines) == 1


def test_every_command_keeps_the_standard_output_for_its_results() -> None:
    def commands(group: Any) -> Iterator[object]:
        for command in group.commands.values():
            yield from commands(command) if hasattr(command, "commands") else [command]

    every = list(commands(get_command(app)))
    assert len(every) > 20
    assert [command for command in every if not isinstance(command, _Command)] == []


def test_json_of_a_command_without_user_code_stays_json() -> None:
    """A module that Python imports at its start may print at any time, too."""
    talk = "import os\nimport wavecast.cli.facts.devices as d\nreal = d.named_gpus\n"
    talk += "d.named_gpus = lambda names: (os.write(1, b'noise'), print('more'), real(names))[2]"
    done = run_process("devices", "l4", "--json", python=talk)
    assert json.loads(done.out)[0]["id"] == "l4"
    assert "noise" in done.err
