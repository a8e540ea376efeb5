"""The known accelerators.

One TOML file describes one GPU. ``data/devices/*.toml`` ships with wavecast; the user's files are
read from ``~/.config/wavecast/devices`` and from ``$WAVECAST_DEVICES``. Units are SI: Hz, bytes,
bytes/s, FLOP/s, W. A number without a source is left out (``None``), never guessed.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from wavecast.errors import UnknownName
from wavecast.files import shipped
from wavecast.hardware.device import Device
from wavecast.hardware.device_files import own_devices_folder, read_device, read_shipped
from wavecast.hardware.fact_files import slug, user_files
from wavecast.hardware.names import keys_of, the_one
from wavecast.reading import kind_of


def devices() -> tuple[Device, ...]:
    """All known devices, the user's included: by vendor (NVIDIA first), architecture and name.

    Files are read once per process and search path.

    >>> devices()[0].vendor
    'NVIDIA'
    """
    return _load(_user_files())


def device(name: str) -> Device:
    """The device of a name: an id, a product name, nvidia-smi's name, or a path to a .toml file.

    Case, punctuation and brand words do not matter. A name that fits several devices is refused.

    >>> device("NVIDIA A100-SXM4-80GB").id
    'a100-sxm-80gb'
    >>> device("geforce 3090").id
    'rtx-3090'

    Raises:
        UnknownName: the name fits no device or several; the message names the candidates.
        InvalidInput: a device file is wrong.
    """
    return _device_of_file(name) if name.endswith(".toml") else known_device(name)


def known_device(name: str) -> Device:
    """The device of a name that was read from a file. Paths are refused: no file opens another.

    Raises:
        UnknownName: the name fits no device or several; the message names the candidates.
    """
    if name.endswith(".toml"):
        raise UnknownName(f'"{name}" is not the name of a device; files cannot name others')
    if re.match(r"[./~\\]", name):
        raise UnknownName(
            f'"{name}" is a path; give a path to FILE.toml, or a name: list them with '
            '"wavecast devices"'
        )
    if (exact := _device_of_id(name)) is not None:
        return exact
    return the_one(name, devices(), "device", _keys)


_SHIPPED = shipped("devices")


def _user_files() -> tuple[Path, ...]:
    return user_files(own_devices_folder(), "WAVECAST_DEVICES")


@functools.lru_cache(maxsize=4096)
def _keys(device: Device) -> tuple[frozenset[str], ...]:
    """All sets of words that are full names of the device."""
    keys = keys_of(device)
    # "3090" alone is the RTX 3090, and "rtx 3090 24gb" is too.
    keys += [key - {"rtx", "gtx", "rx"} for key in keys if any(word.isdigit() for word in key)]
    keys += [key | {f"{round(device.memory_bytes / 2**30)}gb"} for key in keys]
    return tuple(dict.fromkeys(key for key in keys if key))


@functools.lru_cache(maxsize=16)
def _load(user_files: tuple[Path, ...]) -> tuple[Device, ...]:
    by_id = {path.stem: read_shipped(path) for path in _SHIPPED.glob("*.toml")}
    for path in user_files:
        device = read_device(path)
        by_id[device.id] = device
    return tuple(sorted(by_id.values(), key=_order))


def _device_of_id(id: str) -> Device | None:
    """The device with exactly this id, found without reading all the other files; or None."""
    if any(slug(path.stem) == id for path in _user_files()):
        return next(d for d in devices() if d.id == id)
    path = _SHIPPED / f"{id}.toml"
    # A profile may name a GPU at any length, which would be too long for the name of a file.
    return read_shipped(path) if re.fullmatch(r"[a-z0-9-]{1,64}", id) and path.is_file() else None


def _device_of_file(name: str) -> Device:
    path = Path(name).expanduser()
    if kind_of(path) != "file":
        raise UnknownName(f'no device file "{name}"; give a path to a .toml file that exists')
    return read_device(path)


_VENDORS = ("NVIDIA", "AMD", "Intel")
_BY_AGE = (
    *("Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada Lovelace", "Hopper"),
    *("Blackwell", "Blackwell Ultra"),
    *("GCN 5", "RDNA", "CDNA", "RDNA 2", "CDNA 2", "RDNA 3", "CDNA 3", "RDNA 4", "CDNA 4"),
    "Xe2",
)


def _order(device: Device) -> tuple[object, ...]:
    def rank(names: tuple[str, ...], name: str) -> tuple[int, str]:
        return (names.index(name), "") if name in names else (len(names), name)

    # Numbers compare as numbers, so that A2 comes before A10.
    parts = re.split(r"(\d+)", device.name.lower())
    natural = [(int(part), "") if part.isdigit() else (0, part) for part in parts]
    return rank(_VENDORS, device.vendor), rank(_BY_AGE, device.architecture), natural, device.id
