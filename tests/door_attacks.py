"""Ways in which a script may reach beyond files: other processes, memory that programs share, and
what it leaves running. Each is a few lines of Python, and changes something in `Victims.look`.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import pty
import signal
import subprocess
import termios
import uuid
from contextlib import suppress
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
_GET_FLAGS, _GET_VERSION, _GET_ATTRIBUTES = 0x80086601, 0x80087601, 0x801C581F
_GET_INPUT_PRIORITY = {"x86_64": 252, "aarch64": 31}[os.uname().machine]
_KEYS = {"x86_64": 250, "aarch64": 219}[os.uname().machine]

ATTACKS = {
    "flags": "ioctl(file, 0x40086602, struct.pack('q', 0x80040))",  # not to be dumped
    "attributes": "ioctl(file, 0x401C5820, struct.pack('5I8x', 0x80, 0, 0, 0, 0))",
    "version": "ioctl(file, 0x40087602, struct.pack('q', 77))",
    "limits": "resource.prlimit(process, resource.RLIMIT_NOFILE, (50, 50))",
    "affinity": "os.sched_setaffinity(process, {1})",
    "policy": "os.sched_setscheduler(process, os.SCHED_IDLE, os.sched_param(0))",
    "priority": "os.setpriority(os.PRIO_PROCESS, process, 7)",
    "input priority": "libc.syscall(251 if is_intel else 30, 1, process, 2 << 13 | 7)",
    "signal": "os.kill(process, signal.SIGSTOP)",
    "trace": (
        "if libc.ptrace(16, process, None, None) == 0:\n"
        "    os.waitpid(process, 0x40000000); libc.ptrace(8, process, None, None)"
    ),
    "memory": (
        "libc.shmat.restype = ctypes.c_void_p; place = libc.shmat(memory, None, 0)\n"
        "ctypes.memset(place, 65, 1) if place != ctypes.c_void_p(-1).value else None"
    ),
    "semaphore": "libc.semctl(semaphore, 0, 0)",
    "queue": "libc.msgctl(queue, 0, None)",
    "shared file": "posix.open(shared, os.O_WRONLY | os.O_TRUNC)",
    "shared name": "posix.unlink(shared)",
    "left in shared memory": (
        "os.write(posix.open('/dev/shm/' + marker, os.O_WRONLY | os.O_CREAT), b'x')"
    ),
    "terminal": "os.write(posix.open(terminal, os.O_WRONLY | os.O_NOCTTY), b'typed')",
    "settings of a terminal": """
file = posix.open(terminal, os.O_RDONLY | os.O_NOCTTY)
settings = termios.tcgetattr(file)
settings[3] &= ~termios.ECHO
termios.tcsetattr(file, termios.TCSANOW, settings)
""",
    "own terminal": """
os.setsid(); posix.open(terminal, os.O_RDONLY)
os.write(posix.open('/dev/tty', os.O_WRONLY), b'typed')
""",
    "keys": "libc.syscall(248 if is_intel else 217, b'user', marker.encode(), b'x', 1, -4)",
    "overlay": """
libc.unshare(0x10020000)  # of users and mounts
configure = lambda *values: libc.syscall(431, built, *values)
built = libc.syscall(430, b'overlay', 0)
configure(1, b'lowerdir', b'/etc', 0)
configure(1, b'upperdir', (overlay + '/upper').encode(), 0)
configure(1, b'workdir', (overlay + '/work').encode(), 0)
configure(6, None, None, 0)
""",
    "daemon": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp('sleep', [marker, '1000'])
    os._exit(0)
""",
    "background": "subprocess.Popen(['sleep', '1000'], start_new_session=True, env={'A': marker})",
    "deaf daemon": """
if os.fork() == 0:
    os.setsid(); libc.prctl(15, marker.encode(), 0, 0, 0)
    for number in range(1, 32):
        if number not in (9, 19):
            signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(100)
""",
    "runners": """
if os.fork() == 0:  # each is another process before one can name it
    libc.prctl(15, marker.encode(), 0, 0, 0)
    [os.fork() for _ in range(3)]
    until = time.time() + 30
    while time.time() < until:
        if os.fork():
            os._exit(0)
        os.setsid()
        time.sleep(os.getpid() % 10 / 1000)
""",
}

SCRIPT = """
import ctypes, fcntl, json, os, platform, posix, resource, signal, struct, subprocess, sys, termios
import time, torch
from door_attacks import ATTACKS

libc = ctypes.CDLL(None, use_errno=True)
is_intel = platform.machine() == "x86_64"
attacker = os.getpid()

def ioctl(path, request, value):
    fcntl.ioctl(posix.open(path, os.O_RDONLY), request, value)

for name, victims in json.load(open(sys.argv[1])).items():
    try:
        # In a process of its own: some change themselves.
        child = os.fork()
        if child == 0:
            exec(ATTACKS[name], globals() | victims)
            os._exit(0)
        os.waitpid(child, 0)
    except BaseException as error:
        print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
        if os.getpid() != attacker:
            os._exit(1)
if torch.cuda.is_available():
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(torch.ones(2, 8).cuda()).sum().backward()
        optimizer.step()
"""


class Victims:
    """What one attack could change."""

    def __init__(self, root: Path, user: int) -> None:
        self.marker = f"d{uuid.uuid4().hex[:12]}"
        self.user = user
        self.file = root / self.marker
        self.file.write_text("precious")
        self.overlay = root / f"{self.marker}-overlay"
        for name in ("upper", "work"):
            (self.overlay / name).mkdir(parents=True)
        self.shared = Path("/dev/shm") / f"{self.marker}-shared"
        self.shared.write_text("precious")
        self.master, slave = pty.openpty()
        os.set_blocking(self.master, False)
        self.terminal = os.ttyname(slave)
        self.slave = slave
        given = (self.file, self.overlay, *self.overlay.iterdir(), self.shared, Path(self.terminal))
        for path in given:
            os.chown(path, user, -1)
        before = os.geteuid()
        os.seteuid(user)
        try:
            self.memory = LIBC.shmget(0, 16, 0o600)
            self.semaphore = LIBC.semget(0, 1, 0o600)
            self.queue = LIBC.msgget(0, 0o600)
        finally:
            os.seteuid(before)
        changed = {} if user == before else {"user": user, "group": user, "extra_groups": ()}
        self.process = subprocess.Popen(["sleep", "1000"], **changed)  # type: ignore[call-overload]

    def named(self) -> dict[str, object]:
        """The names by which an attack knows them."""
        paths = {name: str(getattr(self, name)) for name in ("file", "overlay", "shared")}
        others = ("marker", "terminal", "memory", "semaphore", "queue")
        return (
            paths | {name: getattr(self, name) for name in others} | {"process": self.process.pid}
        )

    def look(self) -> dict[str, object]:
        """What can be seen of them."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        seen: dict[str, object] = {
            "flags": _asked(self.file, _GET_FLAGS, 8),
            "version": _asked(self.file, _GET_VERSION, 8),
            "attributes": _asked(self.file, _GET_ATTRIBUTES, 28),
            "limits": Path(f"/proc/{self.process.pid}/limits").read_text(),
            "affinity": os.sched_getaffinity(self.process.pid),
            "policy": os.sched_getscheduler(self.process.pid),
            "priority": os.getpriority(os.PRIO_PROCESS, self.process.pid),
            "input priority": LIBC.syscall(_GET_INPUT_PRIORITY, 1, self.process.pid),
            "state": [line for line in status.splitlines() if line.startswith("State")],
            "memory": self._shared_byte(),
            "semaphore": LIBC.semctl(self.semaphore, 0, 12),
            "queue": LIBC.msgctl(self.queue, 2, ctypes.create_string_buffer(256)),
            "shared": self.shared.exists() and self.shared.read_text(),
            "left in shared memory": Path("/dev/shm", self.marker).exists(),
            "keys": self._has_key(),
            "overlay": sorted(map(str, self.overlay.rglob("*"))),
        }
        try:
            seen["settings"] = termios.tcgetattr(self.master)
            seen["terminal"] = os.read(self.master, 100)
        except BlockingIOError:
            pass
        except OSError:
            seen["terminal"] = "its process ended it"
        seen["running"] = any(processes(self.marker) for _ in range(5))
        return seen

    def end(self) -> None:
        """Remove them."""
        quiet = 0
        while quiet < 5:  # one that runs may be missed
            running = processes(self.marker)
            quiet = 0 if running else quiet + 1
            for number in running:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self._has_key(removed=True)
        LIBC.shmctl(self.memory, 0, None)
        LIBC.semctl(self.semaphore, 0, 0)
        LIBC.msgctl(self.queue, 0, None)
        for path in (self.shared, Path("/dev/shm", self.marker)):
            path.unlink(missing_ok=True)
        os.close(self.master)
        os.close(self.slave)

    def _has_key(self, *, removed: bool = False) -> bool:
        """Whether the user has a key of the marker's name; it is removed if that is asked for."""
        child = os.fork()
        if not child:
            os.setuid(self.user)
            key = LIBC.syscall(_KEYS, 10, -4, b"user", self.marker.encode(), 0)  # search
            if key >= 0 and removed:
                LIBC.syscall(_KEYS, 9, key, -4)  # unlink
            os._exit(key >= 0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1

    def _shared_byte(self) -> bytes:
        LIBC.shmat.restype = ctypes.c_void_p
        place = LIBC.shmat(self.memory, None, 0o10000)
        try:
            return ctypes.string_at(place, 1)
        finally:
            LIBC.shmdt(ctypes.c_void_p(place))


def processes(marker: str) -> list[int]:
    """The processes that have a marker as their name, as an argument or in their environment."""
    found = []
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: -int(path.name)):
        with suppress(OSError):
            name = (folder / "comm").read_bytes()
            is_marked = marker.encode() in name or any(
                marker.encode() in (folder / file).read_bytes() for file in ("cmdline", "environ")
            )
            if is_marked and b"State:\tZ" not in (folder / "status").read_bytes():
                found.append(int(folder.name))
    return found


def _asked(path: Path, request: int, size: int) -> bytes:
    with path.open("rb") as file:
        answer = bytearray(size)
        fcntl.ioctl(file, request, answer)
        return bytes(answer)
