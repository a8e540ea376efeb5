"""Landlock: a process gives up the right to write files, for itself and all that it starts.

Linux has it since 5.13; each version of its interface knows more rights. See
https://docs.kernel.org/userspace-api/landlock.html. Reading is not restricted. A device that is
only read can be changed by ioctl, such as a terminal: that is forbidden since Linux 6.10.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from dataclasses import dataclass

from wavecast.frameworks.confinement.kernel import call, forbid_new_privileges, is_linux

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1

_WRITE_FILE, _REMOVE_FOLDER, _REMOVE_FILE = 1 << 1, 1 << 4, 1 << 5
_MAKE_CHAR, _MAKE_FOLDER, _MAKE_FILE, _MAKE_SOCKET = 1 << 6, 1 << 7, 1 << 8, 1 << 9
_MAKE_PIPE, _MAKE_BLOCK, _MAKE_LINK = 1 << 10, 1 << 11, 1 << 12
_MOVE, _TRUNCATE, _CONTROL = 1 << 13, 1 << 14, 1 << 15
_DEVICES = _MAKE_CHAR | _MAKE_BLOCK
"""Rights that nobody gets: a device file could be a disk."""
_SINCE = {2: _MOVE, 3: _TRUNCATE, 5: _CONTROL}
"""Rights that only later versions know."""
_FIRST = (
    *(_WRITE_FILE, _REMOVE_FOLDER, _REMOVE_FILE, _MAKE_FOLDER, _MAKE_FILE, _MAKE_SOCKET),
    *(_MAKE_PIPE, _MAKE_LINK, _DEVICES),
)
_SIGNALS = 1 << 1

SIGNALS_SINCE = 6
"""The first version that forbids signals to processes outside: Linux 6.12."""
COMPLETE = 3
"""The first version that forbids every way to change a file's contents: Linux 6.2."""


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


@dataclass(frozen=True)
class Writable:
    """The paths that may be written: whole folders, and single device files."""

    folders: tuple[str, ...]
    devices: tuple[str, ...] = ()


def version() -> int:
    """The version of Landlock that this kernel has; 0 if it has none or it is switched off."""
    if not is_linux():
        return 0
    try:
        return call("syscall", _CREATE_RULESET, None, 0, _ASK_VERSION)
    except OSError:
        return 0


def restrict(writable: Writable, known: int) -> None:
    """Forbid this thread, and all that it starts, to write anything else.

    Args:
        writable: what may be written.
        known: the version of Landlock.

    Raises:
        OSError: the kernel refuses.
    """
    rights = _sum(_FIRST) | _sum(right for since, right in _SINCE.items() if known >= since)
    ruleset = _Ruleset(rights, 0, _SIGNALS if known >= SIGNALS_SINCE else 0)
    # A kernel refuses fields that it does not know, unless they are zero.
    rules = call("syscall", _CREATE_RULESET, ctypes.byref(ruleset), ctypes.sizeof(ruleset), 0)
    try:
        for folder in writable.folders:
            _allow(rules, folder, rights & ~_DEVICES)
        for device in writable.devices:
            _allow(rules, device, rights & (_WRITE_FILE | _TRUNCATE | _CONTROL))
        forbid_new_privileges()
        call("syscall", _RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _PathBeneath(rights, place)
        call("syscall", _ADD_RULE, rules, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(place)


def _sum(rights: Iterable[int]) -> int:
    together = 0
    for right in rights:
        together |= right
    return together
