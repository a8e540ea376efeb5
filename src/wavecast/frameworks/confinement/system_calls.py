"""A filter of system calls (seccomp), for what Landlock leaves alone.

`_REFUSALS` says which calls are refused, and why. A filter sees the numbers that a call is given,
not the files and processes that they stand for. Where most programs can do without, a call does
nothing and reports success: they only want to copy the times of a file, or a faster core.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from wavecast.frameworks.confinement.kernel import call, forbid_new_privileges

_SET_SECCOMP, _FILTER = 22, 2
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _ANSWER = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_ALL_BITS = 0xFFFFFFFF

_NOTHING = 0
"""The answer of a call that does nothing, and reports success."""
_IOCTL_TYPE = 0xFF00
"""The bits of a request of ioctl that say whose it is."""
_FILE_SYSTEMS = (ord("f"), ord("X"), ord("v"), 0x94, 0xF5)
"""The types of requests to file systems: all, ext4 and fscrypt; xfs; versions; btrfs; f2fs."""
_SETS_INPUT, _SETS_LINE, _MOVES_CONSOLE, _SETS_CONSOLE = 0x5412, 0x5423, 0x541D, 0x541C
_NETWORK_OF_SOCKET = 0x894C
_HOST_OF_MACHINE = 40
"""Sockets between a virtual machine and its host (AF_VSOCK)."""
_NETLINK = 16
"""Sockets that ask the kernel itself, such as for the names of network cards."""


@dataclass(frozen=True)
class _Test:
    """What an argument of a call must be for the call to be refused."""

    argument: int
    values: tuple[int, ...]
    mask: int = _ALL_BITS
    among: bool = True
    """Whether it is refused with one of these values, or with any other."""


@dataclass(frozen=True)
class _Refusal:
    """Calls that are refused, with the reason."""

    why: str
    answer: int
    """The error that the caller gets: one that programs know and can go on after."""
    calls: tuple[str, ...]
    tests: tuple[_Test, ...] = ()
    """Any of these must hold. The calls are always refused if there is none."""


_REFUSALS = (
    _Refusal(
        "permissions, owners, times and attributes of files are not Landlock's matter",
        _NOTHING,
        (
            *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat"),
            *("utime", "utimes", "futimesat", "utimensat", "file_setattr"),
            *("setxattr", "lsetxattr", "fsetxattr", "setxattrat"),
            *("removexattr", "lremovexattr", "fremovexattr", "removexattrat"),
        ),
    ),
    _Refusal("no filter sees the calls in a ring", errno.ENOSYS, ("io_uring_setup",)),
    _Refusal(
        "flags, versions, keys, seals and subvolumes of files; freezing and ending a file system",
        errno.ENOTTY,
        ("ioctl",),
        (_Test(1, tuple(kind << 8 for kind in _FILE_SYSTEMS), _IOCTL_TYPE),),
    ),
    _Refusal(
        "typing into a terminal, changing one; the network that --offline has left",
        errno.EPERM,
        ("ioctl",),
        (_Test(1, (_SETS_INPUT, _SETS_LINE, _MOVES_CONSOLE, _SETS_CONSOLE, _NETWORK_OF_SOCKET)),),
    ),
    _Refusal("entering a namespace of other processes", errno.EPERM, ("setns",)),
    _Refusal(
        "building a file system: overlayfs writes into folders past Landlock",
        errno.EPERM,
        (
            *("open_tree", "open_tree_attr", "move_mount", "fsopen", "fsconfig", "fsmount"),
            *("fspick", "mount_setattr"),
        ),
    ),
    _Refusal(
        "limits of other processes", errno.EPERM, ("prlimit64",), (_Test(0, (0,), among=False),)
    ),
    _Refusal(
        "scheduling and memory of other processes; the own one is process 0",
        _NOTHING,
        (
            *("sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr"),
            *("migrate_pages", "move_pages"),
        ),
        (_Test(0, (0,), among=False),),
    ),
    _Refusal(
        "priority of other processes, of a group's or of a user's",
        _NOTHING,
        ("setpriority",),
        (_Test(0, (0,), among=False), _Test(1, (0,), among=False)),
    ),
    _Refusal("priority of the input and output of other processes", _NOTHING, ("ioprio_set",)),
    _Refusal(
        "the keys that the kernel keeps for a user",
        errno.ENOSYS,
        ("add_key", "request_key", "keyctl"),
    ),
    _Refusal(
        "sockets to the host of a virtual machine, which no namespace of networks leaves",
        errno.EAFNOSUPPORT,
        ("socket",),
        (_Test(0, (_HOST_OF_MACHINE,)),),
    ),
    _Refusal(
        "memory, semaphores and queues that all processes of a user share (SysV, POSIX queues)",
        errno.ENOSYS,
        (
            *("shmget", "shmat", "shmctl", "semget", "semop", "semtimedop", "semctl"),
            *("msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink"),
        ),
    ),
)
_NETWORK = _Refusal(
    "any network, where it cannot be left",
    errno.ENETUNREACH,
    ("socket",),
    (_Test(0, (int(socket.AF_UNIX), _NETLINK), among=False),),
)


@dataclass(frozen=True)
class _Architecture:
    """The system calls of one kind of processor."""

    audit: int
    numbers: dict[str, int]
    most: int | None = None
    """The first number of another set of calls, which nobody uses."""


def _numbered(*runs: tuple[int, str]) -> dict[str, int]:
    """The numbers of calls: each run is the first number, and the names that follow from it."""
    return {name: first + i for first, names in runs for i, name in enumerate(names.split())}


_EVERYWHERE = _numbered(
    (425, "io_uring_setup"),
    (428, "open_tree move_mount fsopen fsconfig fsmount fspick"),
    (442, "mount_setattr"),
    (452, "fchmodat2"),
    (463, "setxattrat"),
    (466, "removexattrat open_tree_attr"),
    (469, "file_setattr"),
)
_INTEL = _numbered(
    *((16, "ioctl"), (29, "shmget shmat shmctl"), (41, "socket"), (64, "semget semop semctl")),
    *((68, "msgget msgsnd msgrcv msgctl"), (90, "chmod fchmod chown fchown lchown")),
    *((132, "utime"), (141, "setpriority sched_setparam"), (144, "sched_setscheduler")),
    *((188, "setxattr lsetxattr fsetxattr"), (197, "removexattr lremovexattr fremovexattr")),
    *((203, "sched_setaffinity"), (220, "semtimedop"), (235, "utimes"), (240, "mq_open mq_unlink")),
    *((248, "add_key request_key keyctl"),),
    *((251, "ioprio_set"), (256, "migrate_pages"), (260, "fchownat futimesat"), (268, "fchmodat")),
    *((279, "move_pages utimensat"), (302, "prlimit64"), (308, "setns"), (314, "sched_setattr")),
)
_ARM = _numbered(
    *((5, "setxattr lsetxattr fsetxattr"), (14, "removexattr lremovexattr fremovexattr")),
    *((29, "ioctl ioprio_set"), (52, "fchmod fchmodat fchownat fchown"), (88, "utimensat")),
    *((118, "sched_setparam sched_setscheduler"), (122, "sched_setaffinity"), (140, "setpriority")),
    *((180, "mq_open mq_unlink"), (186, "msgget msgctl msgrcv msgsnd semget semctl semtimedop")),
    *((193, "semop shmget shmctl shmat"), (198, "socket"), (238, "migrate_pages move_pages")),
    *((217, "add_key request_key keyctl"),),
    *((261, "prlimit64"), (268, "setns"), (274, "sched_setattr")),
)
_ARCHITECTURES = {
    "x86_64": _Architecture(0xC000003E, _INTEL | _EVERYWHERE, 0x40000000),
    "aarch64": _Architecture(0xC00000B7, _ARM | _EVERYWHERE),
}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def is_known() -> bool:
    """Whether the system calls of this processor are known."""
    return platform.machine() in _ARCHITECTURES


def filter_calls(*, network: bool) -> None:
    """Refuse the calls that could change what is the user's, here and in all that is started.

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


def _instructions(known: _Architecture, network: bool) -> Iterator[bytes]:
    unknown_call = _step(_RETURN, _ANSWER | errno.ENOSYS)
    yield _step(_LOAD, _ARCHITECTURE_AT)
    yield _step(_EQUAL, known.audit, 1, 0) + unknown_call
    yield _step(_LOAD, _NUMBER_AT)
    if known.most is not None:
        yield _step(_AT_LEAST, known.most, 0, 1) + unknown_call
    for refusal in _REFUSALS if network else (*_REFUSALS, _NETWORK):
        answer = _step(_RETURN, _ANSWER | refusal.answer)
        body = b"".join(_tested(refusal.tests, answer)) if refusal.tests else answer
        for number in (known.numbers[name] for name in refusal.calls if name in known.numbers):
            yield _step(_EQUAL, number, 0, len(body) // 8) + body
    yield _step(_RETURN, _ALLOW)


def _tested(tests: Iterable[_Test], answer: bytes) -> Iterator[bytes]:
    """Instructions that end with the answer if a test holds.

    If none holds, they load the number of the call again for the instructions that follow.
    """
    for test in tests:
        # Arguments have 8 bytes; of all that are tested, the kernel looks at the lower 4.
        yield _step(_LOAD, _ARGUMENTS_AT + 8 * test.argument) + _step(_AND, test.mask)
        for left, value in zip(range(len(test.values), 0, -1), test.values, strict=True):
            yield _step(_EQUAL, value, 0, 1) + answer if test.among else _step(_EQUAL, value, left)
        yield b"" if test.among else answer
    yield _step(_LOAD, _NUMBER_AT)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
