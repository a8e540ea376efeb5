"""The function that confines a process: it may write to its scratch folder, and nowhere else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from wavecast.errors import InvalidInput
from wavecast.frameworks.confinement import landlock, namespaces, system_calls
from wavecast.frameworks.confinement.kernel import is_linux

_DEVICES = (
    *("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts/*"),
    *("nvidia*", "nvidia-caps/*", "kfd", "dri/*"),
)
"""Device files below /dev that hold nothing of the user's."""


@dataclass(frozen=True)
class Confinement:
    """What the kernel refuses to a process and to all that it starts."""

    files: bool
    """Whether files outside of the scratch folder cannot be written, made, moved or removed."""
    metadata: bool
    """Whether their permissions, owners, times and attributes cannot be changed."""
    network: bool
    """Whether no network can be reached."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing of the user's can be changed."""
        return self.files and self.metadata


def confine(scratch: str, *, offline: bool = False, known: int | None = None) -> Confinement:
    """Let this process and all that it starts write to a scratch folder only, from here on.

    Call it while the process has one thread: others would keep their rights.

    Args:
        scratch: the folder.
        offline: whether to refuse the network.
        known: the version of Landlock. None to ask the kernel; 0 for a kernel that has none.

    Raises:
        InvalidInput: the network is to be refused, and this system cannot do that.
    """
    known = landlock.version() if known is None else known
    has_left = offline and is_linux() and namespaces.leave_network()
    shared = _shared_memory() if known else ()
    files = bool(known) and _is_done(
        partial(landlock.restrict, landlock.Writable((scratch, *shared), _devices()), known)
    )
    metadata = is_linux() and _is_done(
        partial(system_calls.filter_calls, network=not offline or has_left)
    )
    if offline and not has_left and not metadata:
        raise InvalidInput(
            "this system cannot refuse the network to a script, so --offline (offline=) cannot be "
            "kept; run it on Linux, or disconnect the machine"
        )
    return Confinement(files and known >= landlock.COMPLETE, metadata, offline)


def _is_done(restrict: partial[None]) -> bool:
    try:
        restrict()
    except OSError:
        return False
    return True


def _devices() -> tuple[str, ...]:
    found = [path for name in _DEVICES for path in Path("/dev").glob(name)]
    return tuple(str(path) for path in found if path.is_char_device())


def _shared_memory() -> tuple[str, ...]:
    """The folder of shared memory, if nothing in it could be changed that is there already."""
    folder = Path(namespaces.SHARED_MEMORY)
    if not folder.is_dir():
        return ()
    is_used = any(os.access(path, os.W_OK) for path in folder.iterdir())
    if is_used and not namespaces.own_shared_memory():
        return ()
    return (str(folder),)
