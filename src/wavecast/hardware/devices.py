"""The known accelerators.

One TOML file describes one GPU. ``data/devices/*.toml`` ships with wavecast; the user's files are
read from ``~/.config/wavecast/devices`` and from ``$WAVECAST_DEVICES``. Units are SI: Hz, bytes,
bytes/s, FLOP/s, W. A number without a source is left out (``None``), never guessed.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Generic, Protocol, TypeVar

from wavecast.errors import InvalidInput, UnknownName, prefixed
from wavecast.files import config_folder, read_toml, shipped, toml_text, write_checked
from wavecast.ops import Unit, fallbacks
from wavecast.reading import Quantity, Sources, kind_of, read_fields
from wavecast.results import Shown


def devices() -> tuple[Device, ...]:
    """All known devices, the user's included: by vendor (NVIDIA first), architecture and name.

    Files are read once per process and search path.

    >>> devices()[0].vendor
    'NVIDIA'
    """
    return DEVICE_FILES.all()


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
    return DEVICE_FILES.of_file(name) if name.endswith(".toml") else known_device(name)


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
    return DEVICE_FILES.of_name(name)


@functools.lru_cache(maxsize=4096)
def _keys(device: Device) -> tuple[frozenset[str], ...]:
    """All sets of words that are full names of the device."""
    keys = keys_of(device)
    # "3090" alone is the RTX 3090, and "rtx 3090 24gb" is too.
    keys += [key - {"rtx", "gtx", "rx"} for key in keys if any(word.isdigit() for word in key)]
    keys += [key | {f"{round(device.memory_bytes / 2**30)}gb"} for key in keys]
    return tuple(dict.fromkeys(key for key in keys if key))


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


# The facts about one accelerator.
#
# Conventions:
#
# * A *device* is what a framework sees: one die of a K80, one GCD of an MI250X.
# * ``memory_bytes`` reads the "24 GB" of a data sheet as 24 GiB, since such cards have that much
#   (nvidia-smi shows 24576 MiB). Cards sold by a decimal number, such as the H200's "141 GB",
#   have the number that nvidia-smi shows.
# * Rates are dense. Those of fp16 and bf16 tensor cores are with fp32 accumulation, as PyTorch
#   uses them: a GeForce then runs at half its advertised tensor rate.
# * The attributes of a `Device` are nominal numbers. Measured numbers are in `Device.measured`.


RATE_UNITS = (
    "fp64",
    "fp32",
    "fp16",
    "fp32_tensor",
    "tf32_tensor",
    "fp16_tensor",
    "bf16_tensor",
    "fp8_tensor",
    "int8_tensor",
)
"""The arithmetic units of `Device.rate`. Those without ``_tensor`` are the CUDA cores."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A measured number and its source."""

    value: float
    source: str


class _Named(type):
    """A metaclass that gives devices as attributes: `Device.V100`, `Device.H100_SXM_80GB`."""

    def __getattr__(cls, name: str) -> Device:
        if not name[:1].isupper():
            raise AttributeError(f"Device has no attribute {name!r}")

        try:
            return device(_HABITAT.get(name) or name.replace("_", " "))
        except UnknownName as error:
            raise AttributeError(f"Device.{name}: {error}") from error


_HABITAT = {"P100": "p100-pcie-16gb", "V100": "v100-sxm-16gb"}
"""The GPUs of Habitat's paper (table 2) whose names fit several of our devices. Its V100 is that of
AWS's p3.2xlarge (section 5.1), which has the SXM2 card."""


def _capability(value: object, where: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", value) if isinstance(value, str) else None
    if match is None:
        raise InvalidInput(f'{where} must be written like "9.0", not {value!r}')
    return int(match[1]), int(match[2])


_COUNT = Quantity("a count", 1, 1e5, whole=True)
_CLOCK = Quantity("Hz", 1e8, 1e10)
_BYTES_PER_S = Quantity("bytes/s", 1e8, 1e15)
_FLOPS = Quantity("FLOP/s", 1e9, 1e18)
_SHARED = Quantity("bytes", 1e3, 1e8, whole=True)


@dataclass(frozen=True, slots=True, repr=False)
class Device(Shown, metaclass=_Named):
    """One accelerator as a framework sees it. ``None`` means that a number is unknown.

    Units are SI: bytes, bytes/s, FLOP/s, Hz, W. ``fp32_tensor_flops`` is fp32 on matrix cores,
    which AMD's CDNA has and NVIDIA does not. ``sm_count`` counts compute units on AMD and Xe cores
    on Intel. ``nvlink_bytes_per_s`` is the link between GPUs (Infinity Fabric on AMD); on PCIe
    cards it needs a bridge, as its source says. Both link speeds are per direction.

    >>> Device.H100_SXM_80GB.sm_count
    132
    """

    id: str
    name: str
    vendor: str
    architecture: str
    memory_bytes: Annotated[int, Quantity("bytes", 1e8, 1e14, whole=True)]
    memory_bytes_per_s: Annotated[float, _BYTES_PER_S]
    fp32_flops: Annotated[float, _FLOPS]
    aliases: Annotated[tuple[str, ...], names] = ()
    compute_capability: Annotated[tuple[int, int] | None, _capability] = None
    sm_count: Annotated[int | None, _COUNT] = None
    base_clock_hz: Annotated[float | None, _CLOCK] = None
    boost_clock_hz: Annotated[float | None, _CLOCK] = None
    l2_bytes: Annotated[int | None, Quantity("bytes", 1e4, 1e11, whole=True)] = None
    fp64_flops: Annotated[float | None, _FLOPS] = None
    fp16_flops: Annotated[float | None, _FLOPS] = None
    fp32_tensor_flops: Annotated[float | None, _FLOPS] = None
    tf32_tensor_flops: Annotated[float | None, _FLOPS] = None
    fp16_tensor_flops: Annotated[float | None, _FLOPS] = None
    bf16_tensor_flops: Annotated[float | None, _FLOPS] = None
    fp8_tensor_flops: Annotated[float | None, _FLOPS] = None
    int8_tensor_flops: Annotated[float | None, _FLOPS] = None
    shared_bytes_per_sm: Annotated[int | None, _SHARED] = None
    shared_bytes_per_block_optin: Annotated[int | None, _SHARED] = None
    registers_per_sm: Annotated[int | None, Quantity("a count", 1e3, 1e8, whole=True)] = None
    max_threads_per_sm: Annotated[int | None, _COUNT] = None
    max_blocks_per_sm: Annotated[int | None, _COUNT] = None
    nvlink_bytes_per_s: Annotated[float | None, _BYTES_PER_S] = None
    pcie_bytes_per_s: Annotated[float | None, _BYTES_PER_S] = None
    tdp_w: Annotated[float | None, Quantity("W", 1, 1e5)] = None
    # Dictionaries cannot be hashed. Devices that differ only here are unequal all the same.
    sources: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    measured: Mapping[str, Fact] = field(default_factory=dict, hash=False, repr=False)

    def rate(self, unit: str) -> float | None:
        """Dense FLOP/s of a unit ("fp32", "bf16_tensor", ...), or None if absent or unknown.

        Raises:
            UnknownName: `unit` is not one of `RATE_UNITS`.
        """
        if unit not in RATE_UNITS:
            listed = ", ".join(RATE_UNITS)
            raise UnknownName(f'unknown arithmetic unit "{unit}"; the units are {listed}')
        flops: float | None = getattr(self, f"{unit}_flops")
        return flops

    def __str__(self) -> str:
        return self.name


# Device files: one TOML file describes one GPU, with a source for each number.


def read_device(path: str | os.PathLike[str]) -> Device:
    """The device that a TOML file describes; its id is the file's name.

    Raises:
        InvalidInput: the file cannot be read or is not a device file; says which key and why.
    """
    return _read(Path(path), False)


_WHAT = "a device"
_TEXTS = ("name", "vendor", "architecture")
_APART = ("id", "sources", "measured")
_NOT_NOMINAL = (*_TEXTS, "aliases", *_APART)
_NOMINAL = tuple(fact.name for fact in fields(Device) if fact.name not in _NOT_NOMINAL)
_MEASURED = ("memory_bytes", "memory_bytes_per_s", *(f"{unit}_flops" for unit in RATE_UNITS))
_ONLY_NOMINAL = tuple(fact.name for fact in fields(Device) if fact.name not in _MEASURED)


def _read(path: Path, need_sources: bool) -> Device:
    with prefixed(f"{path}: "):
        table = read_toml(path)
        nominal, measured = (table.pop(part, {}) for part in ("nominal", "measured"))
        values = read_fields(
            Device, table, _WHAT, left_out=(*_NOMINAL, *_APART), besides=("nominal", "measured")
        )
        sources, own = Sources(need_sources, {}), Sources(need_sources, {})
        values |= read_fields(
            Device, nominal, _WHAT, "nominal.", left_out=_NOT_NOMINAL, facts=sources
        )
        facts = read_fields(
            Device, measured, _WHAT, "measured.", left_out=_ONLY_NOMINAL, facts=own, needed=False
        )
        return Device(
            id=slug(path.stem),
            sources={key.removeprefix("nominal."): text for key, text in sources.by_key.items()},
            measured={
                key: Fact(value, own.by_key.get(f"measured.{key}", ""))
                for key, value in facts.items()
            },
            **values,
        )


def with_measured(device: Device, facts: Mapping[str, Fact]) -> Device:
    """The device with these measured facts, which replace older ones of the same name."""
    return replace(device, measured={**device.measured, **facts})


def save(device: Device, folder: Path | None = None) -> Path:
    """Write a device file, all or nothing; returns its path.

    By default it goes to the user's folder, where `device` finds it by its id.
    """
    path = (folder or DEVICE_FILES.own_folder) / f"{device.id}.toml"
    write_checked(path, to_toml(device), read_device)
    return path


def to_toml(device: Device) -> str:
    """The text of a device's file, in the format of `data/devices/*.toml`."""
    nominal = {
        fact.name: _fact(value, device.sources.get(fact.name, ""))
        for fact in fields(device)
        if fact.name not in _NOT_NOMINAL and (value := getattr(device, fact.name)) is not None
    }
    measured = {name: _fact(fact.value, fact.source) for name, fact in device.measured.items()}
    return toml_text(
        {name: getattr(device, name) for name in _TEXTS}
        | {"aliases": list(device.aliases), "nominal": nominal, "measured": measured or None}
    )


def _fact(value: object, source: str) -> object:
    shown = ".".join(map(str, value)) if isinstance(value, tuple) else value
    return {"value": shown, "source": source} if source else shown


# Families of GPUs that run the same attention kernels, so that one trace serves all of them.
#
# A family is named by a compute capability.


Family = tuple[int, int]

# Capabilities whose GPUs are a family alone.
_EXACT = ((9, 0), (10, 0))
# All other GPUs belong to the first of these that is not newer than they are.
_FROM = ((8, 0), (7, 5), (7, 0), (5, 0), (0, 0))


def family(gpu: Device) -> Family:
    """The family of a GPU."""
    # AMD and others run flash attention, as an A100 does.
    return family_of(gpu.compute_capability or (8, 0))


def family_of(capability: tuple[int, int]) -> Family:
    """The family of the GPUs with a compute capability."""
    if capability in _EXACT:
        return capability
    return next(first for first in _FROM if capability >= first)


DEFAULT_CAPABILITY: Family = (9, 0)
"""The compute capability of the GPU that nobody named."""
_USUAL: dict[Family, str] = {
    (10, 0): "b200",
    (9, 0): "h100-sxm-80gb",
    (8, 0): "a100-sxm-80gb",
    (7, 5): "t4",
}


def usual_gpu(capability: tuple[int, int] = DEFAULT_CAPABILITY) -> Device:
    """The GPU that stands for all of a compute capability, or for one that nobody named."""
    return device(_USUAL.get(family_of(capability), "v100-sxm2-16gb"))


# The arithmetic unit on which a GPU runs an op.


AMPERE_SHARE = {9: 0.63, 10: 0.63}
"""The share of a tensor core's peak that kernels with Ampere's instructions (`mma.sync`) attain, by
the major compute capability of GPUs with faster ones: 62.9% on average on Hopper (Luo et al.,
"Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", 2024). Blackwell's is taken to be
alike."""


def available(unit: Unit, device: Device) -> Unit | None:
    """The unit on which this GPU runs ops meant for `unit`: that unit, else a fallback.

    None when the GPU has neither.
    """
    for candidate in (unit, *fallbacks(unit)):
        if candidate in RATE_UNITS and device.rate(candidate) is not None:
            return candidate
    return None


# Files of facts: TOML files in which each number may have a source.


def user_files(folder: Path, variable: str) -> tuple[Path, ...]:
    """The user's files of facts: those in a folder, then those that an environment variable names.

    A later file replaces an earlier one with the same id.
    """
    files = sorted(folder.glob("*.toml")) if folder.is_dir() else []
    # As in $PATH, the first entry wins.
    for entry in filter(None, reversed(os.environ.get(variable, "").split(os.pathsep))):
        path = Path(entry).expanduser()
        if not path.is_dir() and not path.is_file():
            raise InvalidInput(
                f"{variable} names {path}, which does not exist; it takes folders and .toml files"
            )
        files.extend(sorted(path.glob("*.toml")) if path.is_dir() else [path])
    return tuple(files)


def names(value: Any, where: str) -> tuple[str, ...]:
    """A check of a list of names, which may be empty."""
    if not isinstance(value, list) or not all(isinstance(a, str) and words_of(a) for a in value):
        raise InvalidInput(f"{where} must be a list of texts in quotes, not {value!r}")
    return tuple(value)


def slug(stem: str, what: str = "device") -> str:
    """The id that follows from the name of a file of facts."""
    slug = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if not slug:
        raise InvalidInput(f"the file's name is the {what}'s id and needs a letter or a digit")
    return slug


# Matching the names that people write to known GPUs and clusters.


_SHOWN = 12
"""How many candidates a message lists."""


class Named(Protocol):
    """A known thing of hardware: a GPU or a cluster."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Its other names."""


Thing = TypeVar("Thing", bound=Named)
Keys = Callable[[Thing], Iterable[frozenset[str]]]

_BRANDS = frozenset(
    {"nvidia", "amd", "ati", "intel", "corporation", "geforce", "tesla", "instinct", "radeon"}
    | {"generation", "edition", "graphics", "card", "gpu"}
)


@functools.lru_cache(maxsize=4096)
def words_of(name: str) -> frozenset[str]:
    """The words that identify a device: "NVIDIA A100-SXM4-80GB" gives a100, sxm and 80gb."""
    text = name.lower().replace("pci-e", "pcie")
    text = re.sub(r"(geforce|quadro|tesla|titan|super|rtx|gtx|pcie|sxm\d?)", r" \1 ", text)
    text = re.sub(r"\b(rx|pro)(?=\d)", r"\1 ", text)
    text = re.sub(r"(?<=\d)(ti|xtx|xt|ada)\b", r" \1", text)
    # A socket's number follows from the GPU's generation, but V100 exists as SXM2 and SXM3.
    text = re.sub(r"\bsxm[2456]\b", "sxm", text)
    text = re.sub(r"\b(\d+) ?(gb|gib|g)\b", r"\1gb", text)
    return frozenset(re.findall(r"[a-z0-9]+", text)) - _BRANDS


def keys_of(thing: Named) -> list[frozenset[str]]:
    """The words of each name of a thing."""
    return [words_of(name) for name in (thing.id, thing.name, *thing.aliases)]


def the_one(name: str, things: Sequence[Thing], what: str, keys: Keys[Thing] = keys_of) -> Thing:
    """The thing of a name: the one with exactly its words, else with these words and others.

    Args:
        name: what the user wrote.
        what: what they are, "device" or "cluster", for messages.
        keys: the sets of words that are full names of a thing.

    Raises:
        UnknownName: the name fits none of them or several; the message names the candidates.
    """
    words = words_of(name)
    matches = [thing for thing in things if words in keys(thing)]
    if not matches and words:
        matches = [thing for thing in things if any(words <= key for key in keys(thing))]
    if len(matches) == 1:
        return matches[0]
    if matches:
        more = f" and {len(matches) - _SHOWN} more" if len(matches) > _SHOWN else ""
        listed = _quoted(matches[:_SHOWN])
        raise UnknownName(f'"{name}" fits several {what}s: {listed}{more}; say which')
    near = _nearest(name, things, keys)
    hint = f"did you mean {_quoted(near, ' or ')}? " if near else ""
    raise UnknownName(f'unknown {what} "{name}"; {hint}list them with "wavecast {what}s"')


_LONGEST_NAME = 200
"""The longest name that is compared with those of GPUs. A profile may hold any."""


def _nearest(name: str, things: Iterable[Thing], keys: Keys[Thing]) -> list[Thing]:
    """Up to five things with similar names, the most similar first."""
    letters = "".join(sorted(words_of(name))) or name.lower()
    if len(letters) > _LONGEST_NAME:  # the time to compare grows with the lengths of both
        return []

    def likeness(thing: Thing) -> float:
        joined = ("".join(sorted(key)) for key in keys(thing))
        single = (word for key in keys(thing) for word in key if any(c.isdigit() for c in word))
        return max(
            difflib.SequenceMatcher(None, letters, text).ratio() for text in (*joined, *single)
        )

    scored = [(likeness(thing), thing) for thing in things]
    enough = max(0.6, max((score for score, _ in scored), default=0) - 0.15)
    best = sorted((pair for pair in scored if pair[0] >= enough), key=lambda pair: -pair[0])
    return [thing for _, thing in best[:5]]


def _quoted(things: Iterable[Named], separator: str = ", ") -> str:
    return separator.join(f'"{thing.id}"' for thing in things)


@dataclass(frozen=True)
class FactFiles(Generic[Thing]):
    """All known things of a kind, each from a TOML file: the shipped ones, and the user's own.

    The user's are in a folder beside their settings and where an environment variable says
    (`$WAVECAST_DEVICES`); they replace shipped ones of the same id. The name of a file is the id.
    """

    what: str
    """The kind, in messages and in the names of folders: "device"."""
    read: Callable[[Path, bool], Thing]
    """Reads a file; of shipped ones every fact needs a source."""
    order: Callable[[Thing], Any]
    keys: Keys[Thing] = keys_of
    """The sets of words that are full names of a thing."""

    @property
    def own_folder(self) -> Path:
        """The folder of the user's files."""
        return config_folder() / f"{self.what}s"

    def own_files(self) -> tuple[Path, ...]:
        """The user's files, a later one of which replaces an earlier one with the same id."""
        return user_files(self.own_folder, f"WAVECAST_{self.what.upper()}S")

    def all(self) -> tuple[Thing, ...]:
        """All known things, in their order; files are read once per process and search path."""
        return tuple(_all_of(self, self.own_files()))

    def shipped(self, path: Path) -> Thing:
        """The thing in a file of the package."""
        thing: Thing = _shipped_thing(self, path)
        return thing

    def of_file(self, name: str) -> Thing:
        """The thing that a file describes, by its path."""
        path = Path(name).expanduser()
        if kind_of(path) != "file":
            raise UnknownName(
                f'no {self.what} file "{name}"; give a path to a .toml file that exists'
            )
        return self.read(path, False)

    def of_name(self, name: str) -> Thing:
        """The thing with this id, found without reading the other files, or with such a name."""
        if any(slug(path.stem) == name for path in self.own_files()):
            return next(thing for thing in self.all() if thing.id == name)
        path = shipped(f"{self.what}s") / f"{name}.toml"
        # A profile may name a GPU at any length, which would be too long for the name of a file.
        if re.fullmatch(r"[a-z0-9-]{1,64}", name) and path.is_file():
            return self.shipped(path)
        return the_one(name, self.all(), self.what, self.keys)


@functools.lru_cache(maxsize=32)
def _all_of(files: FactFiles[Any], own: tuple[Path, ...]) -> tuple[Any, ...]:
    paths = shipped(f"{files.what}s").glob("*.toml")
    by_id = {path.stem: files.shipped(path) for path in paths}
    by_id |= {thing.id: thing for thing in (files.read(path, False) for path in own)}
    return tuple(sorted(by_id.values(), key=files.order))


@functools.cache
def _shipped_thing(files: FactFiles[Any], path: Path) -> Any:
    return files.read(path, True)


DEVICE_FILES = FactFiles("device", _read, _order, _keys)
