"""System calls that Python has no function for."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from functools import cache
from typing import Any

_SET_SIGNAL_OF_PARENTS_END, _SET_READABLE = 1, 4
_ADOPT_ORPHANS, _SET_NO_NEW_PRIVILEGES = 36, 38
_CAPABILITIES_VERSION = 0x20080522
_READS_AND_WRITES_ALL = (1 << 1) | (1 << 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: root reads the files of others; Landlock stays."""


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


def drop_capabilities() -> None:
    """Give up what root may do beyond files: this process, and what it starts, cannot get it back.

    Raises:
        OSError: the kernel refuses.
    """
    header = struct.pack("=Ii", _CAPABILITIES_VERSION, 0)
    sets = ctypes.create_string_buffer(24)  # effective, permitted, inheritable; twice 32 bits
    call("capget", header, sets)
    effective, permitted, *_ = struct.unpack("=6I", sets)
    kept = (effective & _READS_AND_WRITES_ALL, permitted & _READS_AND_WRITES_ALL)
    call("capset", header, struct.pack("=6I", *kept, 0, 0, 0, 0))


def end_with_parent(signal_number: int, parent: int) -> None:
    """Let this process get a signal when its parent ends. It ends at once if that has happened."""
    if is_linux():
        call("prctl", _SET_SIGNAL_OF_PARENTS_END, signal_number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Be the parent of all that this process's children leave behind (Linux)."""
    if is_linux():
        call("prctl", _ADOPT_ORPHANS, 1, 0, 0, 0)


def stay_readable() -> None:
    """Let this process see its own folder of /proc after a change of its user namespace."""
    call("prctl", _SET_READABLE, 1, 0, 0, 0)
