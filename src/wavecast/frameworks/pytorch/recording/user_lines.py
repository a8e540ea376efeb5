"""The line of the user's code that is running, or that failed."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from wavecast.errors import CaptureError, WavecastError

_PACKAGE = Path(__file__).resolve().parents[3]
_OURS = f"{_PACKAGE}{os.sep}"
# The suite's models are traced just as a user's model is, so their lines are worth naming.
_SUITE = f"{_PACKAGE / 'suite'}{os.sep}"
_INSTALLED = [Path(sysconfig.get_paths()[key]) for key in ("stdlib", "purelib", "platlib")]
# An environment may be reached through a symbolic link, and file names keep the link.
_LIBRARIES = tuple(
    sorted({str(path) for folder in _INSTALLED for path in (folder, folder.resolve())}, key=len)
)[::-1]
"""The folders of installed libraries, inner ones first."""

UNKNOWN_LINE = "an unknown line"

_programs: list[str] = []
"""Files that are the user's code wherever they lie: the scripts that are running."""


_all_are_named: list[bool] = []
"""As many values as there are blocks in which the line of every op is named."""


@contextmanager
def naming_all_lines() -> Iterator[None]:
    """Name the line of code of every op that is recorded in the block, not only of waits."""
    _all_are_named.append(True)
    try:
        yield
    finally:
        _all_are_named.pop()


def all_are_named() -> bool:
    """Whether the line of every op is named."""
    return bool(_all_are_named)


def user_line() -> str:
    """The innermost running line of the user's code, as `file.py:12`."""
    return user_line_of(sys._getframe(1))


def user_line_of(frame: FrameType | None) -> str:
    """The innermost line of the user's code in a frame and those that called it."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return line_of(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return UNKNOWN_LINE


def known_line() -> str:
    """The running line of the user's code; empty if it is not known, as in a library's thread."""
    line = user_line()
    return "" if line == UNKNOWN_LINE else line


def failing_line(error: BaseException) -> str:
    """The innermost line of the user's code that raised an error, as `file.py:12`."""
    place = UNKNOWN_LINE
    if isinstance(error, SyntaxError) and error.filename and is_users(error.filename):
        return line_of(error.filename, error.lineno or 1)  # this file never ran
    traceback = error.__traceback__
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        if is_users(filename):
            place = line_of(filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return place


@contextmanager
def failures_explained(what: str) -> Iterator[None]:
    """Raise any error in the user's code as a CaptureError that names the line."""
    try:
        yield
    except (WavecastError, KeyboardInterrupt):
        raise
    except SystemExit as error:
        line = failing_line(error)
        raise CaptureError(
            f"{what} called sys.exit({error.code!r}) at {line}; it should run one training step "
            "and return"
        ) from error
    except Exception as error:
        line = failing_line(error)
        message = str(error).strip().split("\n")[0] or type(error).__name__
        raise CaptureError(f"{what} raised {type(error).__name__} at {line}: {message}") from error


def is_ours(filename: str) -> bool:
    """Whether a file is Wavecast's own code."""
    return filename.startswith(_OURS)


def is_users(filename: str) -> bool:
    """Whether a file is the user's code: neither an installed library's nor Wavecast's own."""
    if filename in _programs or filename.startswith(_SUITE):
        return True
    return not filename.startswith((_OURS, "<", *_LIBRARIES))


def count_as_users(filename: str) -> None:
    """Count a file as the user's code, even if it lies among the libraries."""
    _programs.append(filename)


@contextmanager
def programs_forgotten() -> Iterator[None]:
    """Forget at the end of the block which files were counted as the user's inside of it."""
    before = _programs[:]
    try:
        yield
    finally:
        _programs[:] = before


def source_line(filename: str, line: int) -> str:
    """A line of a file as it is stored: a library's file without the folder of the libraries."""
    for folder in _LIBRARIES:
        if filename.startswith(f"{folder}{os.sep}"):
            return f"{filename[len(folder) + 1 :]}:{line}"
    return line_of(filename, line)


def line_of(filename: str, line: int) -> str:
    """A line of a file, as `file.py:12`; the file relative to the present folder, if inside it."""
    relative = os.path.relpath(filename)
    return f"{filename if relative.startswith('..') else relative}:{line}"
