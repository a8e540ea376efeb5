"""The filter of system calls, followed instruction by instruction, for each kind of processor."""

from __future__ import annotations

import errno
import socket
import struct

import pytest

from wavecast.frameworks.confinement import system_calls

_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
ALLOWED = "allowed"
OTHER, HIGH = 4711, 1 << 32
"""A process of somebody else's; a bit that the kernel does not look at in these arguments."""

IOCTLS_OF_FILES = {
    "SETFLAGS": 0x40086602,
    "SETFLAGS of 32 bits": 0x40046602,
    "FSSETXATTR": 0x401C5820,
    "SETVERSION": 0x40087602,
    "SET_ENCRYPTION_POLICY": 0x800C6613,
    "ENABLE_VERITY": 0x40806685,
    "FIFREEZE": 0xC0045877,
    "FITHAW": 0xC0045878,
    "FITRIM": 0xC0185879,
    "SHUTDOWN": 0x8004587D,
    "BTRFS_SNAP_DESTROY": 0x5000940F,
    "F2FS_SET_PIN_FILE": 0x4004F50D,
}
IOCTLS = {"TIOCSTI": 0x5412, "TIOCSETD": 0x5423, "TIOCLINUX": 0x541C, "SIOCGSKNS": 0x894C}
USUAL_IOCTLS = {
    **{"TCGETS": 0x5401, "TIOCGWINSZ": 0x5413, "FIONREAD": 0x541B, "FIONBIO": 0x5421},
    **{"SIOCGIFCONF": 0x8912, "NVIDIA": 0xC00846D2, "DRM_VERSION": 0xC0406400},
}


def answer(kind: str, name: str, *arguments: int, network: bool = True) -> str | int:
    """What the filter answers to a call: "allowed", or an error number; 0 if it does nothing."""
    known = system_calls._ARCHITECTURES[kind]
    code = b"".join(system_calls._instructions(known, network))
    steps = list(struct.iter_unpack("=HBBI", code))
    given = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("=iIQ6Q", known.numbers.get(name, 9999), known.audit, 0, *given)
    held, at = 0, 0
    while True:
        what, if_true, if_false, value = steps[at]
        at += 1
        if what == _LOAD:
            (held,) = struct.unpack_from("=I", data, value)
        elif what == _AND:
            held &= value
        elif what == _RETURN:
            return ALLOWED if value == 0x7FFF0000 else value & 0xFFFF
        else:
            holds = held == value if what == _EQUAL else held >= value
            at += if_true if holds else if_false


@pytest.mark.parametrize("kind", system_calls._ARCHITECTURES)
def test_what_is_refused_and_what_is_not(kind: str) -> None:
    for request in IOCTLS_OF_FILES.values():
        assert answer(kind, "ioctl", 3, request) == errno.ENOTTY
        assert answer(kind, "ioctl", 3, request | HIGH) == errno.ENOTTY
    for request in IOCTLS.values():
        assert answer(kind, "ioctl", 0, request) == errno.EPERM
    for request in USUAL_IOCTLS.values():
        assert answer(kind, "ioctl", 3, request) == ALLOWED
    for name in ("shmget", "shmat", "semctl", "semop", "msgsnd", "msgctl", "mq_open", "mq_unlink"):
        assert answer(kind, name, 5) == errno.ENOSYS
    for name in ("setns", "fsopen", "fsconfig", "move_mount", "open_tree"):
        assert answer(kind, name, 5) == errno.EPERM
    assert answer(kind, "io_uring_setup", 8) == errno.ENOSYS
    assert answer(kind, "fchmodat", 3) == 0
    assert answer(kind, "nothing of these") == ALLOWED


@pytest.mark.parametrize("kind", system_calls._ARCHITECTURES)
def test_a_process_may_change_itself_and_no_other(kind: str) -> None:
    assert answer(kind, "prlimit64", 0, 7) == ALLOWED
    assert answer(kind, "prlimit64", OTHER, 7) == errno.EPERM
    for name in ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"):
        assert answer(kind, name, 0) == ALLOWED
        assert answer(kind, name, OTHER) == 0
    assert answer(kind, "setpriority", 0, 0, 5) == ALLOWED
    assert answer(kind, "setpriority", 0, OTHER, 5) == 0
    assert answer(kind, "setpriority", 2, 0, 5) == 0  # all processes of this user
    assert answer(kind, "ioprio_set", 3, 0, 5) == 0


@pytest.mark.parametrize("kind", system_calls._ARCHITECTURES)
def test_sockets_of_networks_are_refused_if_asked(kind: str) -> None:
    for family in (socket.AF_INET, socket.AF_INET6):
        assert answer(kind, "socket", family) == ALLOWED
        assert answer(kind, "socket", family, network=False) == errno.ENETUNREACH
    assert answer(kind, "socket", socket.AF_UNIX, network=False) == ALLOWED


def test_the_other_set_of_numbers_is_refused() -> None:
    known = system_calls._ARCHITECTURES["x86_64"]
    known.numbers["other"] = 0x40000000 + known.numbers["ioctl"]
    try:
        assert answer("x86_64", "other", 3, IOCTLS_OF_FILES["SETFLAGS"]) == errno.ENOSYS
    finally:
        del known.numbers["other"]
