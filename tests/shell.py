"""The command line as tests run it, and golden files for what it prints.

WAVECAST_OVERWRITE=1 pytest tests/test_cli.py rewrites the golden files; look at the difference.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from wavecast.cli import app

GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


def run(*arguments: object, env: dict[str, str] | None = None) -> Outcome:
    """A command in this process, into a pipe."""
    found = CliRunner().invoke(app, [str(each) for each in arguments], env=env)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return Outcome(found.exit_code, found.stdout, found.stderr)


def run_process(*arguments: object, python: str = "", **env: str) -> Outcome:
    """A command in a process of its own, after some Python."""
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
    """What a terminal would show, with its escape codes; both streams go there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "wavecast", *map(str, arguments)],
        stdout=theirs,
        stderr=theirs,
        env={name: os.environ[name] for name in ("PATH", "XDG_CONFIG_HOME")}
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
    except OSError:  # Linux's way to say that the other end is closed
        return b""


def check_golden(name: str, text: str) -> None:
    """Compare with a golden file, or write it when WAVECAST_OVERWRITE is set."""
    path = GOLDEN / name
    if os.environ.get("WAVECAST_OVERWRITE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{name} changed; see tests/shell.py"
