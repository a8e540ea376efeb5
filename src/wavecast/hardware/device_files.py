"""Device files: one TOML file describes one GPU, with a source for each number."""

from __future__ import annotations

import difflib
import functools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from wavecast.errors import InvalidInput
from wavecast.files import config_folder, read_toml, write_checked
from wavecast.hardware.device import RATE_UNITS, Device, Fact
from wavecast.hardware.device_names import words_of


def own_devices_folder() -> Path:
    """The folder of the user's device files."""
    return config_folder() / "devices"


@functools.cache
def read_shipped(path: Path) -> Device:
    """The device in a file of the package, where every number must have a source."""
    return _read(path, need_sources=True)


def read_device(path: str | os.PathLike[str]) -> Device:
    """The device that a TOML file describes; its id is the file's name.

    Raises:
        InvalidInput: the file cannot be read or is not a device file; says which key and why.
    """
    return _read(Path(path), need_sources=False)


# The keys of a device file.


class _Key(NamedTuple):
    """The unit of a number, and the range in which it must lie."""

    unit: str
    low: float
    high: float
    whole: bool = False


# The ranges catch values in a wrong unit (MHz, GB, TFLOPS), the most common mistake.
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
            id=slug(path.stem),
            aliases=_aliases(table),
            sources={key: source for key, source in sources.items() if source},
            measured=dict(_facts(measured, need_sources)),
            **values,
        )
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def _refuse_unknown(table: Mapping[str, Any], allowed: Iterable[str], where: str = "") -> None:
    allowed = tuple(allowed)
    for key in table:
        if key not in allowed:
            near = difflib.get_close_matches(key, allowed, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"known are {', '.join(allowed)}"
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
    if not isinstance(aliases, list) or not all(
        isinstance(a, str) and words_of(a) for a in aliases
    ):
        raise InvalidInput(f"aliases must be a list of texts in quotes, not {aliases!r}")
    return tuple(aliases)


def _value_and_source(raw: object, where: str, need_source: bool) -> tuple[object, str]:
    """The value and source of ``{ value = 1.0, source = "..." }``; a bare value has no source."""
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


def slug(stem: str) -> str:
    """The device id that follows from the name of its file."""
    slug = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if not slug:
        raise InvalidInput("the file's name is the device's id and needs a letter or a digit")
    return slug


# Writing device files.

_NOT_NOMINAL = (*_TEXTS, "id", "aliases", "sources", "measured")


def with_measured(device: Device, facts: Mapping[str, Fact]) -> Device:
    """The device with these measured facts, which replace older ones of the same name."""
    return replace(device, measured={**device.measured, **facts})


def save(device: Device, folder: Path | None = None) -> Path:
    """Write a device file, all or nothing; returns its path.

    By default it goes to the user's folder, where `device` finds it by its id.
    """
    path = (folder or own_devices_folder()) / f"{device.id}.toml"
    write_checked(path, to_toml(device), read_device)
    return path


def to_toml(device: Device) -> str:
    """The text of a device's file, in the format of `data/devices/*.toml`."""
    lines = [f"{name} = {_quoted(getattr(device, name))}" for name in _TEXTS]
    lines.append(f"aliases = [{', '.join(map(_quoted, device.aliases))}]")
    lines += ["", "[nominal]"]
    for field in fields(device):
        value = getattr(device, field.name)
        if field.name not in _NOT_NOMINAL and value is not None:
            lines.append(f"{field.name} = {_fact(value, device.sources.get(field.name, ''))}")
    if device.measured:
        lines += ["", "[measured]"]
        lines += [f"{name} = {_fact(f.value, f.source)}" for name, f in device.measured.items()]
    return "\n".join(lines) + "\n"


def _fact(value: object, source: str) -> str:
    shown = _quoted(".".join(map(str, value))) if isinstance(value, tuple) else repr(value)
    return f"{{ value = {shown}, source = {_quoted(source)} }}" if source else shown


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
