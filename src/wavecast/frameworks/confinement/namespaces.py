"""Namespaces: a view of shared memory and of the network that belongs to this process alone."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

from wavecast.frameworks.confinement.kernel import call, stay_readable

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
