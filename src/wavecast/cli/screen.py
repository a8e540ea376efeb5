"""Printing: results to the terminal or a pipe, progress to the standard error.

Commands print with these functions alone. A plain `print` would go where the prints of the user's
code go (`standard_output`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from wavecast.cli.standard_output import results

_PIPE_WIDTH = 10_000
"""The width assumed for a pipe, where nothing is wrapped or left out."""
_WORTH_A_LINE = 20_000
"""From this many items on, progress is written to a pipe as well."""


def width() -> int:
    """The width of the output in characters."""
    console = Console(file=results())
    return console.width if console.is_terminal else _PIPE_WIDTH


def show(*parts: RenderableType | None) -> None:
    """Print tables and lines; a pipe gets them in full width, without trailing blanks."""
    console = Console(file=results(), highlight=False)
    shown = [part for part in parts if part is not None]
    if console.is_terminal:
        console.print(*shown, sep="\n")
        return
    console = Console(width=_PIPE_WIDTH, highlight=False)
    with console.capture() as capture:
        console.print(*shown, sep="\n")
    lines = (line.rstrip() for line in capture.get().splitlines())
    print_text("\n".join(lines))


def print_text(text: str) -> None:
    """Print a text as it is."""
    print(text, file=results())


def print_json(value: object) -> None:
    """Print a value as JSON."""
    print_text(json.dumps(value, indent=2, allow_nan=False))


def warn(messages: Iterable[str]) -> None:
    """Print warnings to the standard error, one line each."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    for message in messages:
        console.print(f"warning: {message}", markup=False, style="yellow")


@contextmanager
def counting_ops(doing: str) -> Iterator[Callable[[int], None] | None]:
    """A status line that counts traced ops; a pipe gets none."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with console.status(doing) as status:

        def update(count: int) -> None:
            if count % 100 == 0:
                status.update(f"{doing}: {count} ops")

        yield update


@contextmanager
def waiting(doing: str) -> Iterator[None]:
    """A status line while something takes long; a pipe gets none."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(doing):
        yield


@contextmanager
def counting_down(doing: str, total: int) -> Iterator[Callable[[int, float], None]]:
    """A bar with the number of items done and the seconds left; a pipe gets 20 lines.

    The function that comes back takes the number done and the seconds left.
    """
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
def counting_items(doing: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for a total that is only known later; a pipe gets lines if there are many items.

    The function that comes back takes the number done and the total.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        reported = 0.0

        def say(done: int, total: int) -> None:
            nonlocal reported
            if total >= _WORTH_A_LINE and (done >= total or done >= reported + total / 20):
                reported = done
                print(f"{doing}: {done} of {total}", file=sys.stderr)

        yield say
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def telling_stages() -> Iterator[Callable[[str], None]]:
    """A status line whose text changes with the stage of the work; a pipe gets all stages."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda line: print(line, file=sys.stderr)
        return
    with console.status("") as status:
        yield status.update
