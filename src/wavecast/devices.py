"""The accelerators we know, each number with where it comes from.

One TOML file describes one GPU: ``data/devices/*.toml`` ships with wavecast, and your own files
are read from ``~/.config/wavecast/devices`` and from ``$WAVECAST_DEVICES``. Units are SI: Hz,
bytes, bytes/s, FLOP/s, W. What nobody could source is absent (``None``), never guessed.

Conventions:

* A *device* is what a framework sees: one die of a K80, one GCD of an MI250X.
* ``memory_bytes`` reads the "24 GB" of a data sheet as GiB, which is what such cards hold
  (nvidia-smi shows 24576 MiB). Cards sold by a decimal number, such as the H200's "141 GB", carry
  what nvidia-smi shows.
* Rates are dense, and fp16 and bf16 tensor rates are with fp32 accumulation, as PyTorch uses them:
  a GeForce does half its advertised tensor rate.
* Nominal numbers are the attributes of a `Device`; measured ones stay apart, in `Device.measured`.
"""

from __future__ import annotations

import difflib
import functools
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from wavecast.errors import InvalidInput, UnknownName
from wavecast.toml_file import read_toml

RATE_UNITS = (
    "fp64",
    "fp32",
    "fp16",
    "fp32_tensor",
    "tf32_tensor",
    "fp16_tensor",
    "bf16_tensor",
    "fp8_tensor",
)
"""The arithmetic units that `Device.rate` knows; those without ``_tensor`` are the plain cores."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A number and where it comes from."""

    value: float
    source: str


class _Named(type):
    """Lets a device be written as an attribute: `Device.V100`, `Device.H100_SXM_80GB`."""

    def __getattr__(cls, name: str) -> Device:
        if not name[:1].isupper():
            raise AttributeError(f"Device has no attribute {name!r}")
        try:
            return device(_HABITAT.get(name) or name.replace("_", " "))
        except UnknownName as error:
            raise AttributeError(f"Device.{name}: {error}") from error


_HABITAT = {"P100": "p100-pcie-16gb", "V100": "v100-sxm-16gb"}
"""The GPUs of Habitat's paper (table 2) whose names would fit several of ours."""


@dataclass(frozen=True, slots=True)
class Device(metaclass=_Named):
    """One accelerator as a framework sees it; ``None`` means that we do not know.

    ``fp32_tensor_flops`` is fp32 on matrix cores, which AMD's CDNA has and NVIDIA does not.
    ``sm_count`` counts compute units on AMD and Xe cores on Intel. ``nvlink_bytes_per_s`` is the
    link between GPUs (Infinity Fabric on AMD); on PCIe cards it needs a bridge, as its source says.
    Both link speeds are per direction.
    """

    id: str
    name: str
    vendor: str
    architecture: str
    memory_bytes: int
    memory_bytes_per_s: float
    fp32_flops: float
    aliases: tuple[str, ...] = ()
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    base_clock_hz: float | None = None
    boost_clock_hz: float | None = None
    l2_bytes: int | None = None
    fp64_flops: float | None = None
    fp16_flops: float | None = None
    fp32_tensor_flops: float | None = None
    tf32_tensor_flops: float | None = None
    fp16_tensor_flops: float | None = None
    bf16_tensor_flops: float | None = None
    fp8_tensor_flops: float | None = None
    shared_bytes_per_sm: int | None = None
    shared_bytes_per_block_optin: int | None = None
    registers_per_sm: int | None = None
    max_threads_per_sm: int | None = None
    max_blocks_per_sm: int | None = None
    nvlink_bytes_per_s: float | None = None
    pcie_bytes_per_s: float | None = None
    tdp_w: float | None = None
    # Dictionaries do not hash; two devices that differ here are still unequal.
    sources: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    measured: Mapping[str, Fact] = field(default_factory=dict, hash=False, repr=False)

    def rate(self, unit: str) -> float | None:
        """Dense FLOP/s of a unit ("fp32", "bf16_tensor", ...), or None if absent or unknown.

        Raises:
            UnknownName: `unit` is not one of `RATE_UNITS`.
        """
        if unit not in RATE_UNITS:
            known = ", ".join(RATE_UNITS)
            raise UnknownName(f'unknown arithmetic unit "{unit}"; the units are {known}')
        flops: float | None = getattr(self, f"{unit}_flops")
        return flops

    def __str__(self) -> str:
        return self.name


def devices() -> tuple[Device, ...]:
    """All known devices, yours included: NVIDIA first, then by age of architecture and by name.

    Files are read once per process and per setting of the search path.
    """
    return _load(_user_files())


def device(name: str) -> Device:
    """The device of a name: an id, a product name, what nvidia-smi says, or a path to a .toml file.

    Case, punctuation and brand words do not matter. A name that fits several devices is refused.

    >>> device("NVIDIA A100-SXM4-80GB").id
    'a100-sxm-80gb'
    >>> device("geforce 3090").id
    'rtx-3090'

    Raises:
        UnknownName: nothing fits, or several do; the message names the candidates.
        InvalidInput: a device file is not what it should be.
    """
    if name.endswith(".toml"):
        return _device_of_file(name)
    if (own := _device_of_id(name)) is not None:
        return own
    known = devices()
    found = _fitting(name, known)
    if len(found) == 1:
        return found[0]
    if found:
        more = f" and {len(found) - 12} more" if len(found) > 12 else ""
        listed = _quoted(found[:12])
        raise UnknownName(f'"{name}" fits several devices: {listed}{more}; say which')
    nearest = _nearest(name, known)
    hint = f"did you mean {_quoted(nearest, ' or ')}? " if nearest else ""
    raise UnknownName(f'unknown device "{name}"; {hint}list them with "wavecast devices"')


def read_device(path: str | os.PathLike[str]) -> Device:
    """The device that a TOML file describes; its id is the file's name.

    Raises:
        InvalidInput: the file cannot be read or is not a device; says which key and why.
    """
    return _read(Path(path), need_sources=False)


# What a file may say.


class _Key(NamedTuple):
    unit: str
    low: float
    high: float
    whole: bool = False


# The ranges catch a value in another unit (MHz, GB, TFLOPS), the mistake everyone makes once.
_CLOCK = _Key("Hz", 1e8, 1e10)
_BYTES = _Key("bytes", 1e8, 1e14, whole=True)
_BYTES_PER_S = _Key("bytes/s", 1e8, 1e15)
_FLOPS = _Key("FLOP/s", 1e9, 1e18)
_NUMBERS: Mapping[str, _Key] = {
    "sm_count": _Key("a count", 1, 1e5, whole=True),
    "base_clock_hz": _CLOCK,
    "boost_clock_hz": _CLOCK,
    "memory_bytes": _BYTES,
    "memory_bytes_per_s": _BYTES_PER_S,
    "l2_bytes": _Key("bytes", 1e4, 1e11, whole=True),
    **{f"{unit}_flops": _FLOPS for unit in RATE_UNITS},
    "shared_bytes_per_sm": _Key("bytes", 1e3, 1e8, whole=True),
    "shared_bytes_per_block_optin": _Key("bytes", 1e3, 1e8, whole=True),
    "registers_per_sm": _Key("a count", 1e3, 1e8, whole=True),
    "max_threads_per_sm": _Key("a count", 1, 1e5, whole=True),
    "max_blocks_per_sm": _Key("a count", 1, 1e5, whole=True),
    "nvlink_bytes_per_s": _BYTES_PER_S,
    "pcie_bytes_per_s": _BYTES_PER_S,
    "tdp_w": _Key("W", 1, 1e5),
}
_TEXTS = ("name", "vendor", "architecture")
_REQUIRED = ("memory_bytes", "memory_bytes_per_s", "fp32_flops")
_MEASURED = ("memory_bytes", "memory_bytes_per_s", *(f"{unit}_flops" for unit in RATE_UNITS))


def _read(path: Path, *, need_sources: bool) -> Device:
    try:
        table = read_toml(path)
        _refuse_unknown(table, (*_TEXTS, "aliases", "nominal", "measured"))
        nominal = _table(table, "nominal")
        measured = _table(table, "measured")
        _refuse_unknown(nominal, ("compute_capability", *_NUMBERS), "nominal.")
        _refuse_unknown(measured, _MEASURED, "measured.")
        values: dict[str, Any] = {key: _text(table, key) for key in _TEXTS}
        sources: dict[str, str] = {}
        for key, raw in nominal.items():
            value, sources[key] = _value_and_source(raw, f"nominal.{key}", need_sources)
            values[key] = _checked(key, value, "nominal.")
        for key in _REQUIRED:
            if key not in values:
                raise InvalidInput(f"nominal.{key} is missing")
        return Device(
            id=_slug(path.stem),
            aliases=_aliases(table),
            sources={key: source for key, source in sources.items() if source},
            measured=dict(_facts(measured, need_sources)),
            **values,
        )
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def _refuse_unknown(table: Mapping[str, Any], known: Iterable[str], where: str = "") -> None:
    known = tuple(known)
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"known are {', '.join(known)}"
            raise InvalidInput(f"{where}{key} is not a key of a device; {hint}")


def _text(table: Mapping[str, Any], key: str) -> str:
    if key not in table:
        raise InvalidInput(f"{key} is missing")
    text = table[key]
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(f"{key} must be a text in quotes, not {text!r}")
    return text


def _table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = table.get(key, {})
    if not isinstance(inner, dict):
        raise InvalidInput(f"{key} must be a table, written [{key}], not {inner!r}")
    return inner


def _aliases(table: Mapping[str, Any]) -> tuple[str, ...]:
    aliases = table.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(a, str) and _words(a) for a in aliases):
        raise InvalidInput(f"aliases must be a list of texts in quotes, not {aliases!r}")
    return tuple(aliases)


def _value_and_source(raw: object, where: str, need_source: bool) -> tuple[object, str]:
    """Value and source of ``{ value = 1.0, source = "..." }``; a bare value has no source."""
    if not isinstance(raw, dict):
        raw = {"value": raw}
    _refuse_unknown(raw, ("value", "source"), f"{where}.")
    if "value" not in raw:
        raise InvalidInput(f"{where} has no value")
    source = raw.get("source", "")
    if not isinstance(source, str):
        raise InvalidInput(f"{where}.source must be a text in quotes, not {source!r}")
    if need_source and not source.strip():
        raise InvalidInput(f"{where} has no source")
    return raw["value"], source


def _checked(key: str, value: object, where: str) -> float | tuple[int, int]:
    if key == "compute_capability":
        match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", value) if isinstance(value, str) else None
        if match is None:
            raise InvalidInput(f'{where}{key} must be written like "9.0", not {value!r}')
        return int(match[1]), int(match[2])
    return _number(key, value, where)


def _number(key: str, value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{where}{key} must be a number, not {value!r}")
    if not 0 < value < math.inf:
        raise InvalidInput(f"{where}{key} must be a positive number, not {value}")
    unit, low, high, whole = _NUMBERS[key]
    if not low <= value <= high:
        raise InvalidInput(
            f"{where}{key} = {value} is outside {low:g} to {high:g}: the unit is {unit}"
        )
    if not whole:
        return float(value)
    if value != int(value):
        raise InvalidInput(f"{where}{key} must be a whole number, not {value}")
    return int(value)


def _facts(measured: Mapping[str, Any], need_sources: bool) -> Iterator[tuple[str, Fact]]:
    for key, raw in measured.items():
        value, source = _value_and_source(raw, f"measured.{key}", need_sources)
        yield key, Fact(_number(key, value, "measured."), source)


def _slug(stem: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if not slug:
        raise InvalidInput("the file's name is the device's id and needs a letter or a digit")
    return slug


# Where files are.

_SHIPPED = Path(__file__).parent / "data" / "devices"


def _user_files() -> tuple[Path, ...]:
    """Your own files, the least important first: a later file replaces an earlier id."""
    folder = user_folder()
    files = sorted(folder.glob("*.toml")) if folder.is_dir() else []
    # As in $PATH, the first entry wins.
    for entry in reversed(os.environ.get("WAVECAST_DEVICES", "").split(os.pathsep)):
        if entry:
            files.extend(_files_at(Path(entry).expanduser()))
    return tuple(files)


def user_folder() -> Path:
    """Where your own device files are."""
    return _config_folder() / "wavecast" / "devices"


def _config_folder() -> Path:
    if configured := os.environ.get("XDG_CONFIG_HOME"):
        return Path(configured)
    if sys.platform == "win32" and (appdata := os.environ.get("APPDATA")):
        return Path(appdata)
    try:
        return Path.home() / ".config"
    except RuntimeError:  # a container's user may have no home
        return Path(".config")


def _files_at(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(path.glob("*.toml"))
    if path.is_file():
        return [path]
    raise InvalidInput(
        f"WAVECAST_DEVICES names {path}, which does not exist; it takes folders and .toml files"
    )


@functools.lru_cache(maxsize=16)
def _load(user_files: tuple[Path, ...]) -> tuple[Device, ...]:
    by_id = {path.stem: _read_shipped(path) for path in _SHIPPED.glob("*.toml")}
    for path in user_files:
        own = read_device(path)
        by_id[own.id] = own
    return tuple(sorted(by_id.values(), key=_order))


@functools.cache
def _read_shipped(path: Path) -> Device:
    return _read(path, need_sources=True)


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


# How people write names.

_BRANDS = frozenset(
    {"nvidia", "amd", "ati", "intel", "corporation", "geforce", "tesla", "instinct", "radeon"}
    | {"generation", "edition", "graphics", "card", "gpu"}
)


@functools.lru_cache(maxsize=4096)
def _words(name: str) -> frozenset[str]:
    """The words that tell a device apart: "NVIDIA A100-SXM4-80GB" gives a100, sxm and 80gb."""
    text = name.lower().replace("pci-e", "pcie")
    text = re.sub(r"(geforce|quadro|tesla|titan|super|rtx|gtx|pcie|sxm\d?)", r" \1 ", text)
    text = re.sub(r"\b(rx|pro)(?=\d)", r"\1 ", text)
    text = re.sub(r"(?<=\d)(ti|xtx|xt|ada)\b", r" \1", text)
    # A socket's number follows from the GPU's generation, but V100 exists as SXM2 and SXM3.
    text = re.sub(r"\bsxm[2456]\b", "sxm", text)
    text = re.sub(r"\b(\d+) ?(gb|gib|g)\b", r"\1gb", text)
    return frozenset(re.findall(r"[a-z0-9]+", text)) - _BRANDS


@functools.lru_cache(maxsize=4096)
def _keys(device: Device) -> tuple[frozenset[str], ...]:
    """Every set of words that is a full name of the device."""
    keys = [_words(name) for name in (device.id, device.name, *device.aliases)]
    # "3090" alone is the RTX 3090, and "rtx 3090 24gb" is too.
    keys += [key - {"rtx", "gtx", "rx"} for key in keys if any(word.isdigit() for word in key)]
    keys += [key | {f"{round(device.memory_bytes / 2**30)}gb"} for key in keys]
    return tuple(dict.fromkeys(key for key in keys if key))


def _fitting(name: str, known: tuple[Device, ...]) -> list[Device]:
    """The devices of exactly these words, else those that have these words among others."""
    words = _words(name)
    exact = [d for d in known if words in _keys(d)]
    if exact or not words:
        return exact
    return [d for d in known if any(words <= key for key in _keys(d))]


def _device_of_id(id: str) -> Device | None:
    """The device of exactly this id, found without reading all the other files."""
    if any(_slug(path.stem) == id for path in _user_files()):
        return next(d for d in devices() if d.id == id)
    path = _SHIPPED / f"{id}.toml"
    return _read_shipped(path) if re.fullmatch(r"[a-z0-9-]+", id) and path.is_file() else None


def _device_of_file(name: str) -> Device:
    path = Path(name).expanduser()
    if not path.is_file():
        raise UnknownName(f'no device file "{name}"; give a path to a .toml file that exists')
    return read_device(path)


def _nearest(name: str, known: Iterable[Device]) -> list[Device]:
    """Up to five devices whose names look like this one's, the most alike first."""
    asked = "".join(sorted(_words(name))) or name.lower()

    def likeness(device: Device) -> float:
        joined = ("".join(sorted(key)) for key in _keys(device))
        single = (word for key in _keys(device) for word in key if any(c.isdigit() for c in word))
        return max(
            difflib.SequenceMatcher(None, asked, text).ratio() for text in (*joined, *single)
        )

    scored = [(likeness(d), d) for d in known]
    enough = max(0.6, max((score for score, _ in scored), default=0) - 0.15)
    best = sorted((pair for pair in scored if pair[0] >= enough), key=lambda pair: -pair[0])
    return [device for _, device in best[:5]]


def _quoted(found: Iterable[Device], joint: str = ", ") -> str:
    return joint.join(f'"{device.id}"' for device in found)
