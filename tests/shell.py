"""The command line as tests run it, tables as a terminal shows them, and golden files.

WAVECAST_OVERWRITE=1 pytest tests/cli rewrites the golden files. Look at the difference.
"""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import typer.testing
from rich.console import Console, RenderableType
from typer.main import get_command
from typer.testing import CliRunner

from wavecast.cli import app

# typer builds all commands anew for each run, which takes longer than most of them do.
typer.testing._get_command = cache(get_command)  # type: ignore[attr-defined]
GOLDEN = Path(__file__).parent / "golden"
_PASSED_ON = ("PATH", "PYTHONPATH", "XDG_CONFIG_HOME")
"""The environment variables of a command in a terminal."""
WIDTHS = (60, 80, 120, 200)
"""Widths of terminals that every table must fit."""


@dataclass(frozen=True)
class Outcome:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


def run(*arguments: object, env: dict[str, str] | None = None) -> Outcome:
    """The outcome of a command that runs in this process and writes into a pipe."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env=env)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


def run_process(*arguments: object, python: str = "", **env: str) -> Outcome:
    """The outcome of a command in a new process, which first runs some Python."""
    code = f"import sys\n{python}\nfrom wavecast.cli import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | env,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def run_in_terminal(*arguments: object, **env: str) -> str:
    """Both output streams of a command in a terminal, with escape codes."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "wavecast", *map(str, arguments)],
        stdout=theirs,
        stderr=theirs,
        env={name: value for name, value in os.environ.items() if name in _PASSED_ON}
        | {"TERM": "xterm-256color"}
        | env,
    )
    os.close(theirs)
    shown = b""
    while chunk := _read(ours):
        shown += chunk
    os.close(ours)
    process.wait()
    return shown.decode().replace("\r\n", "\n")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # on Linux: the other end is closed
        return b""


def shown(part: RenderableType, width: int = 200) -> str:
    """The text of a table in a terminal of this width."""
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(part)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def check_golden(name: str, text: str) -> None:
    """Compare with a golden file, or write it when WAVECAST_OVERWRITE is set."""
    path = GOLDEN / name
    if os.environ.get("WAVECAST_OVERWRITE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{name} changed; see tests/shell.py"
