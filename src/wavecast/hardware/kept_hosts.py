"""The calibrated hosts by name, and which of them a prediction uses."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from wavecast.errors import InvalidInput, UnknownName
from wavecast.files import config_folder
from wavecast.hardware.cluster import Cluster
from wavecast.hardware.device import Device
from wavecast.hardware.devices import known_device
from wavecast.hardware.host_files import HostFile, read_host
from wavecast.hardware.hosts import REFERENCE_HOST, Host
from wavecast.hardware.processors import host_of, usual_hosts

MINE, REFERENCE = "mine", "reference"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class KeptHost:
    """A calibrated host in the user's folder."""

    name: str
    """The name under which `--host` finds it."""
    path: Path
    file: HostFile


def find_host(
    wanted: Host | str | None, gpu: Device | None = None, cluster: Cluster | None = None
) -> Host:
    """The host of a name.

    Args:
        wanted: "reference", "mine" (this machine, calibrated), the name of a calibrated host or
            of a usual one (`usual_hosts`), or a path to a .toml file; a Host is returned as it is.
            None takes the host that $WAVECAST_HOST names, else a host that was calibrated with this
            GPU, else "reference".
        gpu: the GPU that the host issues work to.
        cluster: the machines. If no host is named or calibrated, the reference host is scaled to
            their processor, where that is known.

    Raises:
        UnknownName: there is no such host.
        InvalidInput: its file is not a valid host file.
    """
    if isinstance(wanted, Host):
        return wanted
    wanted = wanted if wanted is not None else os.environ.get("WAVECAST_HOST") or None
    if wanted is None:
        own = None if gpu is None else _host_with(gpu)
        if own is not None:
            return own.file.host
        return REFERENCE_HOST if cluster is None else host_of(cluster)
    if wanted == REFERENCE:
        return REFERENCE_HOST
    if wanted == MINE:
        return _own_host().file.host
    if wanted.endswith(".toml"):
        return read_host(Path(wanted)).host
    hosts = {name: usual.host for name, usual in usual_hosts().items()}
    hosts |= {kept.name: kept.file.host for kept in kept_hosts()}
    if wanted not in hosts:
        names = "".join(f', "{name}"' for name in hosts if name != MINE)
        raise UnknownName(
            f'unknown host "{wanted}"; known are "reference", "mine"{names} and files FILE.toml; a '
            "factor goes into host_factor (--host-factor)"
        )
    return hosts[wanted]


def kept_hosts() -> tuple[KeptHost, ...]:
    """The calibrated hosts in the user's folder, by name."""
    folder = _folder()
    paths = sorted(folder.glob("*.toml")) if folder.is_dir() else []
    hosts = [KeptHost(path.stem, path, _read(path)) for path in paths]
    if user_file().is_file():
        hosts.append(KeptHost(MINE, user_file(), _read(user_file())))
    return tuple(hosts)


def path_of(name: str) -> Path:
    """The path of the file that keeps a host. The file need not exist yet.

    Raises:
        InvalidInput: the name cannot be the name of a host.
    """
    if not _NAME.fullmatch(name) or name in (MINE, REFERENCE) or name.endswith(".toml"):
        raise InvalidInput(
            f'a host cannot be named "{name}"; use letters, digits, ".", "_" and "-", and neither '
            '"mine" nor "reference"'
        )
    return _folder() / f"{name}.toml"


def machine_name() -> str:
    """The name of this machine in its network."""
    return platform.node() or "localhost"


def default_name() -> str:
    """The name under which this machine's host is kept if none is given."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", machine_name()).strip("._-") or "host"
    return f"{name}-host" if name in (MINE, REFERENCE) or name.endswith(".toml") else name


def user_file() -> Path:
    """The path of the one host file that earlier versions kept, which may not exist."""
    return config_folder() / "host.toml"


def _folder() -> Path:
    return config_folder() / "hosts"


def _read(path: Path) -> HostFile:
    return _read_once(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=32)
def _read_once(path: Path, changed: int) -> HostFile:
    """The host in a file, cached until its modification time `changed` is another."""
    return read_host(path)


def _own_host() -> KeptHost:
    """This machine's host: the one that was calibrated last."""
    own = [kept for kept in kept_hosts() if _is_here(kept)]
    if not own:
        raise UnknownName(
            'your host was not calibrated yet: run "wavecast calibrate" on it (a minute, with or '
            'without a GPU); "wavecast calibrate --list" shows the hosts of other machines'
        )
    return max(own, key=_age)


def _host_with(gpu: Device) -> KeptHost | None:
    """The host calibrated with this GPU. This machine's comes first, then the newest."""
    hosts = [kept for kept in kept_hosts() if _has(kept.file, gpu)]
    return max(hosts, key=lambda kept: (_is_here(kept), _age(kept)), default=None)


def _is_here(kept: KeptHost) -> bool:
    return kept.file.machine in ("", machine_name())


def _age(kept: KeptHost) -> tuple[bool, int, int]:
    """Sort key: the newest calibration last, files of earlier versions first."""
    file = kept.file
    return file.machine != "", file.date.toordinal(), kept.path.stat().st_mtime_ns


def _has(file: HostFile, gpu: Device) -> bool:
    try:
        return bool(file.gpu) and known_device(file.gpu).id == gpu.id
    except UnknownName:
        return False
