"""Processes of our own code: how they start, what is said to them, and how they ended.

A message is eight bytes with its length, then JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

LENGTH_BYTES = 8


def command(module: str, *arguments: object, switches: bool = False) -> list[str]:
    """What runs a module of ours in another process.

    With -P, no file of the current folder is imported in the place of a module.

    Args:
        switches: whether Python's own switches, such as -W and -X, hold there as well.
    """
    own = subprocess._args_from_interpreter_flags() if switches else []  # type: ignore[attr-defined]
    return [sys.executable, *own, "-P", "-m", module, *map(str, arguments)]


def environment(paths: Iterable[str] | None = None, **variables: str) -> dict[str, str]:
    """The environment of another process.

    Args:
        paths: where it looks for modules first. None for where this process does.
    """
    chosen = sys.path if paths is None else paths
    absolute = [os.path.abspath(path) for path in chosen if path]  # noqa: PTH100
    return os.environ | {"PYTHONPATH": os.pathsep.join(absolute)} | variables


def packed(message: object, **encoding: Any) -> bytes:
    """A message as it is sent; `encoding` are options of `json.dumps`."""
    body = json.dumps(message, **encoding).encode()
    return len(body).to_bytes(LENGTH_BYTES) + body


def received(read: Callable[[int], bytes]) -> Any:
    """The next message, from a function that reads so many bytes; None if there is none."""
    length = read(LENGTH_BYTES)
    return json.loads(read(int.from_bytes(length))) if len(length) == LENGTH_BYTES else None


def spawned(variables: Mapping[str, str] | None = None) -> ProcessPoolExecutor:
    """A process that runs functions, one after the other; it starts with the first."""
    given = (dict(variables or {}),)
    return ProcessPoolExecutor(1, get_context("spawn"), initializer=_set, initargs=given)


def _set(variables: dict[str, str]) -> None:
    os.environ.update(variables)


def signal_named(status: int) -> str:
    """The signal that ended a process, by its exit status, and what that may mean."""
    number = -status
    name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
    return f"signal {name}" + ("; perhaps memory ran out" if number == signal.SIGKILL else "")
