"""System calls that Python has no function for."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Any

_SET_NO_NEW_PRIVILEGES = 38
_SET_SIGNAL_OF_PARENTS_END = 1


@cache
def _library() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def is_linux() -> bool:
    """Whether there is a Linux kernel to ask."""
    return sys.platform == "linux"


def call(function: str, *arguments: Any) -> int:
    """The result of a function of the C library.

    Raises:
        OSError: it failed, or this library does not have it.
    """
    try:
        result = int(getattr(_library(), function)(*arguments))
    except AttributeError:
        raise OSError(f"the C library has no function {function}") from None
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")
    return result


def forbid_new_privileges() -> None:
    """Let no program that is started from here on have more rights than this process."""
    call("prctl", _SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def end_with_parent(signal_number: int) -> None:
    """Let this process get a signal when its parent ends."""
    if is_linux():
        call("prctl", _SET_SIGNAL_OF_PARENTS_END, signal_number, 0, 0, 0)
