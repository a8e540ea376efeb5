"""System calls that Python has no function for."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from dataclasses import dataclass
from functools import cache, reduce
from operator import or_
from pathlib import Path
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


# Landlock: a process gives up the right to write files, for itself and all that it starts.
#
# Linux has it since 5.13; each version of its interface knows more rights. See
# https://docs.kernel.org/userspace-api/landlock.html. Reading is not restricted. A device that is
# only read can be changed by ioctl, such as a terminal: that is forbidden since Linux 6.10.


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

    Raises:
        OSError: the kernel refuses.
    """
    rights = reduce(or_, (*_FIRST, *(right for since, right in _SINCE.items() if known >= since)))
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


# Namespaces: a view of shared memory and of the network that belongs to this process alone.


_MOUNTS, _USERS, _NETWORK = 0x00020000, 0x10000000, 0x40000000
_PRIVATE, _RECURSIVE = 1 << 18, 1 << 14
_SET_FLAGS, _UP = 0x8914, 1
SHARED_MEMORY = "/dev/shm"


def leave_network() -> bool:
    """Leave all networks but the machine's own loopback; whether the kernel allows that."""
    if not _unshare(_NETWORK):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        fcntl.ioctl(asked, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP))
    return True


def own_shared_memory() -> bool:
    """Put an empty folder in place of the shared memory; whether the kernel allows that."""
    if not _unshare(_MOUNTS):
        return False
    try:
        call("mount", None, b"/", None, ctypes.c_ulong(_PRIVATE | _RECURSIVE), None)
        call("mount", b"tmpfs", SHARED_MEMORY.encode(), b"tmpfs", ctypes.c_ulong(0), None)
    except OSError:
        return False
    return True


def _unshare(what: int) -> bool:
    """Leave a namespace of this process, with that of users where only root may leave it alone."""
    try:
        call("unshare", what)
        return True
    except OSError:
        pass
    # A process that may leave but not map its user would be nobody from then on: one is tried.
    tried = os.fork()
    if not tried:
        os._exit(0 if _unshare_with_users(what) else 1)
    return not os.waitpid(tried, 0)[1] and _unshare_with_users(what)


def _unshare_with_users(what: int) -> bool:
    user, group = os.getuid(), os.getgid()
    try:
        call("unshare", what | _USERS)
        stay_readable()
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except OSError:
        return False
    return True
