"""Printing: results to the terminal or a pipe, progress to the standard error.

Commands print with these functions alone. None of them lets a character through that controls a
terminal, except newlines, tabs and the styles of our own tables. A plain `print` would go where the
prints of the user's code go (`standard_output`).
"""

from __future__ import annotations

import io
import json
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Protocol

from rich.console import Console, Group, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment, Segments
from rich.text import Text

from wavecast.cli.output.standard_output import results, write_result
from wavecast.errors import DoubtfulInput
from wavecast.frameworks.stages import current, stage
from wavecast.report.units import one_line, visible

_PIPE_WIDTH = 10_000
"""The width assumed for a pipe, where nothing is wrapped or left out."""
_WORTH_SAYING_S = 5.0
"""After this many seconds a status line shows the time, too."""
_BETWEEN_LINES_S = 30.0
"""A pipe gets a line of progress as often as this."""

_command = ""
"""The name of the command that runs, with `-` for blanks."""


def name_command(name: str) -> None:
    """From here on, this command runs."""
    global _command
    _command = "-".join(name.split())


def width() -> int:
    """The width of the output in characters."""
    console = _console(results())
    return console.width if console.is_terminal else _PIPE_WIDTH


def show(*parts: RenderableType | None) -> None:
    """Print tables and lines; a pipe gets them in full width, without trailing blanks."""
    drawn: list[RenderableType] = [part for part in parts if part is not None]
    console = _console(results())
    if console.is_terminal:
        with console.capture() as capture:
            console.print(_safe(console, Group(*drawn)), end="")
        write_result(capture.get())
        return
    console = _console(io.StringIO(), width=_PIPE_WIDTH)
    with console.capture() as capture:
        console.print(_safe(console, Group(*drawn)), end="")
    lines = (line.rstrip() for line in capture.get().splitlines())
    write_result("\n".join(lines) + "\n")


def print_text(line: str) -> None:
    """Print one line of text; characters that control a terminal are shown as escapes."""
    write_result(one_line(line) + "\n")


def print_lines(text: str) -> None:
    """Print lines of text; characters that control a terminal are shown as escapes."""
    write_result(visible(text))


def print_json(value: object) -> None:
    """Print a value as JSON, in ASCII. Its strings hold control characters as escapes.

    The output names the schema of the command that runs.
    """
    from wavecast.report.outputs import marked

    text = json.dumps(marked(value, _command), indent=2, allow_nan=False)
    write_result(text.replace("\x7f", "\\u007f") + "\n")  # JSON itself lets DEL through


def warn(messages: Iterable[str], word: str = "warning") -> None:
    """Print warnings to the standard error, one line each, after a word that says what they are."""
    for message in messages:
        tell(one_line(f"{word}: {message}"), "yellow")


def print_error(message: str) -> None:
    """Print an error to the standard error, in one line."""
    tell(one_line(" ".join(f"error: {message}".split())), "red")


def print_traceback(error: BaseException) -> None:
    """Print the traceback of an error to the standard error."""
    tell("".join(traceback.format_exception(error)).rstrip("\n"))


def tell(text: str, style: str = "") -> None:
    """Print lines to the standard error, without what would control a terminal."""
    console = _console(sys.stderr, soft_wrap=True)
    with suppress(OSError, ValueError):  # the standard error is full, or was closed
        console.print(Text(visible(text), style=style))


def show_warnings_safely() -> None:
    """From here on, Python's warnings are printed like ours."""

    def show_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: object = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, DoubtfulInput):
            warn([str(message)])
        else:
            tell(warnings.formatwarning(message, category, filename, lineno, line).rstrip("\n"))

    warnings.showwarning = show_warning


def _console(file: IO[str] | None, *, width: int | None = None, soft_wrap: bool = False) -> Console:
    """A console that takes every text as it is: names may look like markup or emoji."""
    return Console(
        file=file or io.StringIO(),
        width=width,
        soft_wrap=soft_wrap,
        markup=False,
        emoji=False,
        highlight=False,
    )


def _safe(console: Console, part: RenderableType) -> Segments:
    """What a part looks like, in which only rich's own styles control the terminal."""
    return Segments(
        segment if segment.control else Segment(visible(segment.text), segment.style)
        for segment in console.render(part)
    )


@contextmanager
def counting_ops(doing: str) -> Iterator[Callable[[int], None] | None]:
    """A status line with what is being done, the ops traced so far and the time."""
    ops = 0

    def update(count: int) -> None:
        nonlocal ops
        ops = count

    with _telling(lambda: f"{current() or doing}{f': {ops} ops' if ops else ''}"):
        yield update


@contextmanager
def waiting(doing: str) -> Iterator[None]:
    """A status line with the time while something takes long."""
    with stage(doing), _telling(lambda: current() or doing):
        yield


class _Status:
    """A line of text that is made anew each time that it is shown."""

    def __init__(self, line: Callable[[], str]) -> None:
        self._line = line

    def __rich__(self) -> Text:
        return Text(one_line(self._line()))


@contextmanager
def _telling(doing: Callable[[], str]) -> Iterator[None]:
    """Say what is being done, and for how long: a terminal always, a pipe now and then."""
    begin_s = time.monotonic()

    def line() -> str:
        elapsed_s = time.monotonic() - begin_s
        return f"{doing()}, {elapsed_s:.0f} s" if elapsed_s >= _WORTH_SAYING_S else doing()

    console = _console(sys.stderr)
    if console.is_terminal:
        with console.status(_Status(line)):
            yield
        return
    over = threading.Event()

    def tell_now_and_then() -> None:
        while not over.wait(_BETWEEN_LINES_S):
            tell(one_line(line()))

    teller = threading.Thread(target=tell_now_and_then, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


@contextmanager
def counting_down(doing: str, total: int) -> Iterator[Callable[[int, float], None]]:
    """A bar with the number of items done and the seconds left; a pipe gets 20 lines.

    The function that comes back takes the number done and the seconds left.
    """
    console = _console(sys.stderr)
    if not console.is_terminal:
        yield (
            lambda done, remaining_s: (
                tell(one_line(f"{doing}: {done} of {total}, {remaining_s:.0f} s left"))
                if done % max(1, total // 20) == 0
                else None
            )
        )
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TextColumn("{task.fields[left]}", markup=False), console=console
    ) as bar:
        task = bar.add_task(one_line(doing), total=total, left="")
        yield lambda done, remaining_s: bar.update(
            task, completed=done, left=f"{remaining_s:.0f} s left"
        )


class CountItems(Protocol):
    """Takes the number done, the total, and what else there is to say."""

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """Say so."""


@contextmanager
def counting_items(doing: str) -> Iterator[CountItems]:
    """A bar for a total that is only known later; a pipe gets a line now and then."""
    console = _console(sys.stderr)
    if not console.is_terminal:
        status = doing

        def say(done: int, total: int, note: str = "") -> None:
            nonlocal status
            status = f"{doing}: {done:,} of {total:,}{note and f'; {note}'}"

        with _telling(lambda: status):
            yield say
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(one_line(doing), total=None)

        def draw(done: int, total: int, note: str = "") -> None:
            line = one_line(f"{doing}{note and f'; {note}'}")
            bar.update(task, completed=done, total=total, description=line)

        yield draw


@contextmanager
def telling_stages() -> Iterator[Callable[[str], None]]:
    """A status line whose text changes with the stage of the work; a pipe gets all stages."""
    console = _console(sys.stderr)
    if not console.is_terminal:
        yield lambda line: tell(one_line(line))
        return
    with console.status("") as status:
        yield lambda line: status.update(Text(one_line(line)))
