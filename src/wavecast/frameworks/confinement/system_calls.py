"""A filter of system calls (seccomp), for what Landlock leaves alone.

Permissions, owners, times and attributes of files are not Landlock's matter. A filter cannot see
which file is meant, so a call that would change them does nothing and reports success. The network
is refused where sockets are made. io_uring, which no filter sees into, is refused whole.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from wavecast.frameworks.confinement.kernel import call, forbid_new_privileges

_SET_SECCOMP, _FILTER = 22, 2
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ANSWER = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16


@dataclass(frozen=True)
class _Architecture:
    """The numbers of system calls on one kind of processor."""

    audit: int
    socket: int
    metadata: tuple[int, ...]
    """chmod, chown, utime, setxattr, removexattr, and their kin."""
    most: int | None = None
    """The first number of another set of calls, which nobody uses."""


_NEWER = (452, 463, 466, 469)
"""fchmodat2, setxattrat, removexattrat and file_setattr: the same everywhere."""
_SET_UP_RING = 425
_ARCHITECTURES = {
    "x86_64": _Architecture(
        0xC000003E,
        41,
        (*range(90, 95), 132, 188, 189, 190, 197, 198, 199, 235, 260, 261, 268, 280, *_NEWER),
        0x40000000,
    ),
    "aarch64": _Architecture(0xC00000B7, 198, (5, 6, 7, 14, 15, 16, 52, 53, 54, 55, 88, *_NEWER)),
}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def is_known() -> bool:
    """Whether the system calls of this processor are known."""
    return platform.machine() in _ARCHITECTURES


def filter_calls(*, network: bool) -> None:
    """Let calls that change the metadata of files do nothing, here and in all that is started.

    Args:
        network: whether sockets of networks may be made.

    Raises:
        OSError: the kernel refuses, or the calls of this processor are not known.
    """
    if not is_known():
        raise OSError(errno.ENOSYS, f"system calls of {platform.machine()} are not known")
    code = b"".join(_instructions(_ARCHITECTURES[platform.machine()], network))
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.addressof(buffer))
    forbid_new_privileges()
    call("prctl", _SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0)


def _instructions(known: _Architecture, network: bool) -> Iterable[bytes]:
    unknown_call = _ANSWER | errno.ENOSYS
    yield _load(_ARCHITECTURE_AT)
    yield from _unless(_EQUAL, known.audit, unknown_call)
    yield _load(_NUMBER_AT)
    if known.most is not None:
        yield from _when(_AT_LEAST, known.most, unknown_call)
    yield from _when(_EQUAL, _SET_UP_RING, unknown_call)
    for number in known.metadata:
        yield from _when(_EQUAL, number, _ANSWER)  # no error: it reports success
    if not network:
        yield _step(_EQUAL, known.socket, 0, 4)
        yield _load(_FIRST_ARGUMENT_AT)
        yield _step(_EQUAL, int(socket.AF_UNIX), 2, 0)
        yield _step(_EQUAL, _NETLINK, 1, 0)
        yield _step(_RETURN, _ANSWER | errno.ENETUNREACH)
    yield _step(_RETURN, _ALLOW)


_NETLINK = 16
"""Sockets that ask the kernel itself, such as for the names of network cards."""


def _load(offset: int) -> bytes:
    return _step(_LOAD, offset)


def _when(test: int, value: int, answer: int) -> Iterable[bytes]:
    yield _step(test, value, 0, 1)
    yield _step(_RETURN, answer)


def _unless(test: int, value: int, answer: int) -> Iterable[bytes]:
    yield _step(test, value, 1, 0)
    yield _step(_RETURN, answer)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
