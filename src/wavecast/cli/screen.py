"""What goes to the terminal or a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

_PIPE_WIDTH = 10_000
"""Columns for a pipe: nothing is cut off or wrapped there."""
_WORTH_A_LINE = 20_000
"""Things of which a pipe is told how many are done."""


@contextmanager
def counting(doing: str) -> Iterator[Callable[[int], None] | None]:
    """A line that counts while a long model is traced; nothing in a pipe."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with console.status(doing) as status:

        def update(count: int) -> None:
            if count % 100 == 0:
                status.update(f"{doing}: {count} ops")

        yield update


def width() -> int:
    """Columns to write in."""
    console = Console()
    return console.width if console.is_terminal else _PIPE_WIDTH


def show(*parts: RenderableType | None) -> None:
    """Print to a terminal as wide as it is; to a pipe in full, without blanks at line ends."""
    console = Console(highlight=False)
    shown = [part for part in parts if part is not None]
    if console.is_terminal:
        console.print(*shown, sep="\n")
        return
    console = Console(width=_PIPE_WIDTH, highlight=False)
    with console.capture() as capture:
        console.print(*shown, sep="\n")
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def print_json(value: object) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2, allow_nan=False))


@contextmanager
def waiting(doing: str) -> Iterator[None]:
    """A line that says what takes long; nothing in a pipe."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(doing):
        yield


@contextmanager
def counted(doing: str, total: int) -> Iterator[Callable[[int, float], None]]:
    """A bar with what is done and how long the rest takes; a line now and then in a pipe."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield (
            lambda done, remaining_s: (
                print(f"{doing}: {done} of {total}, {remaining_s:.0f} s left", file=sys.stderr)
                if done % max(1, total // 20) == 0
                else None
            )
        )
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TextColumn("{task.fields[left]}"), console=console) as bar:
        task = bar.add_task(doing, total=total, left="")
        yield lambda done, remaining_s: bar.update(
            task, completed=done, left=f"{remaining_s:.0f} s left"
        )


@contextmanager
def advancing(doing: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for what is done of what there is, known only later; lines in a pipe, for much."""
    console = Console(stderr=True)
    if not console.is_terminal:
        said = 0.0

        def say(done: int, total: int) -> None:
            nonlocal said
            if total >= _WORTH_A_LINE and (done >= total or done >= said + total / 20):
                said = done
                print(f"{doing}: {done} of {total}", file=sys.stderr)

        yield say
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """What is being done now, as it changes."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda line: print(line, file=sys.stderr)
        return
    with console.status("") as status:
        yield status.update
