"""Which line of the user's code is running, or has failed."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from types import FrameType, TracebackType

_OURS = str(Path(__file__).resolve().parent)
_LIBRARY = tuple(
    str(Path(sysconfig.get_paths()[key]).resolve()) for key in ("stdlib", "purelib", "platlib")
)


def user_line() -> str:
    """`file.py:12` of the innermost running frame that is the user's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_users(frame.f_code.co_filename):
            return _place(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return "an unknown line"


def failing_line(traceback: TracebackType | None) -> str:
    """`file.py:12` of the innermost frame of a traceback that is the user's own."""
    place = "an unknown line"
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        if _is_users(filename):
            place = _place(filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return place


def _is_users(filename: str) -> bool:
    return not filename.startswith((_OURS, "<", *_LIBRARY))


def _place(filename: str, line: int) -> str:
    relative = os.path.relpath(filename)
    return f"{filename if relative.startswith('..') else relative}:{line}"
