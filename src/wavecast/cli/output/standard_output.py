"""The standard output, kept for results: what the user's code prints goes to the standard error.

The user's code may print at any time: at import, in a step, from threads, subprocesses and C code,
and when Python ends. So file descriptor 1 is led to the standard error before any of that code
runs. Results are written to a copy of the real standard output.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from io import TextIOWrapper
from typing import TextIO

_OUT, _ERR = 1, 2
"""The file descriptors of the standard output and of the standard error."""

_results: TextIO | None = None
"""Where results go while the standard output is kept for them."""
_undo = ExitStack()
"""What gives the standard output back."""
_own_process = False
"""Whether this process is the command line's own, so that nothing is ever given back."""


def results() -> TextIO:
    """The stream to which results are written."""
    return _results or sys.stdout or _ClosedOutput()


class UnwrittenResults(Exception):
    """A result could not be written to the standard output, as on a full disk."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(f"cannot write the results: {cause.strerror or cause}")
        self.nobody_reads = isinstance(cause, BrokenPipeError)


class _ClosedOutput(io.StringIO):
    """What stands in place of a standard output that was closed before Python started."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "the standard output is closed")


def write_result(text: str) -> None:
    """Write a result to the standard output, at once.

    Raises:
        UnwrittenResults: it cannot be written. Nothing is left to write when Python ends.
    """
    stream = results()
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        abandon(stream)
        raise UnwrittenResults(error) from None


def abandon(stream: TextIO | None) -> None:
    """Forget what a stream could not write, which Python would try again at its end."""
    if stream is None:
        return
    with suppress(OSError, ValueError):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def keep_for_results() -> None:
    """From here on, only results reach the standard output. Call it before the user's code runs."""
    global _results
    if _results is not None or sys.stdout is None:
        return
    stream = sys.stdout
    stream.flush()
    with suppress(OSError):  # nobody has the descriptor: it was closed
        saved = os.dup(_OUT)
        _undo.callback(_give_back, saved)
        if _is_standard(stream):
            # Python's own stream writes to the descriptor, so the user's prints follow it.
            copy = os.fdopen(os.dup(saved), "w", encoding=stream.encoding, errors=stream.errors)
            _undo.callback(copy.close)
            _redirect(_OUT)
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(line_buffering=True)  # as the standard error is
            _results = copy
            return
        _redirect(_OUT)
    # A caller of ours has put a stream of its own in place of the standard output.
    _undo.enter_context(redirect_stdout(sys.stderr))
    _results = stream


@contextmanager
def given_back_at_end() -> Iterator[None]:
    """A context at whose end the standard output is as before, except in a process of its own."""
    global _results
    try:
        yield
    finally:
        if not _own_process:
            _undo.close()
            _results = None


def own_process() -> None:
    """Say that this process is the command line's own. What runs at its end prints to stderr."""
    global _own_process
    _own_process = True
    if sys.stdout is None:
        sys.stdout = _ClosedOutput()
        with suppress(OSError):
            os.open(os.devnull, os.O_WRONLY)  # takes its place, which no other file shall have
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a narrow encoding is no reason to fail
            stream.reconfigure(errors="backslashreplace")


def _is_standard(stream: TextIO) -> bool:
    try:
        return stream.fileno() == _OUT
    except (OSError, ValueError):
        return False


def _redirect(descriptor: int) -> None:
    """Make a descriptor lead to the standard error, or nowhere if that is closed."""
    try:
        os.dup2(_ERR, descriptor)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def _give_back(saved: int) -> None:
    if sys.stdout is not None:
        sys.stdout.flush()
    os.dup2(saved, _OUT)
    os.close(saved)
