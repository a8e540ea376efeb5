"""Device files: one TOML file describes one GPU, with a source for each number."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput, prefixed
from wavecast.files import config_folder, read_toml, toml_text, write_checked
from wavecast.hardware.device import RATE_UNITS, Device, Fact
from wavecast.hardware.fact_files import (
    NumberRange,
    names_of,
    number_of,
    refuse_unknown,
    slug,
    table_of,
    text_of,
    value_and_source,
)


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


# The ranges catch values in a wrong unit (MHz, GB, TFLOPS), the most common mistake.
_CLOCK = NumberRange("Hz", 1e8, 1e10)
_BYTES = NumberRange("bytes", 1e8, 1e14, whole=True)
_BYTES_PER_S = NumberRange("bytes/s", 1e8, 1e15)
_FLOPS = NumberRange("FLOP/s", 1e9, 1e18)
_NUMBERS: Mapping[str, NumberRange] = {
    "sm_count": NumberRange("a count", 1, 1e5, whole=True),
    "base_clock_hz": _CLOCK,
    "boost_clock_hz": _CLOCK,
    "memory_bytes": _BYTES,
    "memory_bytes_per_s": _BYTES_PER_S,
    "l2_bytes": NumberRange("bytes", 1e4, 1e11, whole=True),
    **{f"{unit}_flops": _FLOPS for unit in RATE_UNITS},
    "shared_bytes_per_sm": NumberRange("bytes", 1e3, 1e8, whole=True),
    "shared_bytes_per_block_optin": NumberRange("bytes", 1e3, 1e8, whole=True),
    "registers_per_sm": NumberRange("a count", 1e3, 1e8, whole=True),
    "max_threads_per_sm": NumberRange("a count", 1, 1e5, whole=True),
    "max_blocks_per_sm": NumberRange("a count", 1, 1e5, whole=True),
    "nvlink_bytes_per_s": _BYTES_PER_S,
    "pcie_bytes_per_s": _BYTES_PER_S,
    "tdp_w": NumberRange("W", 1, 1e5),
}
_WHAT = "a device"
_TEXTS = ("name", "vendor", "architecture")
_REQUIRED = ("memory_bytes", "memory_bytes_per_s", "fp32_flops")
_MEASURED = ("memory_bytes", "memory_bytes_per_s", *(f"{unit}_flops" for unit in RATE_UNITS))


def _read(path: Path, *, need_sources: bool) -> Device:
    with prefixed(f"{path}: "):
        table = read_toml(path)
        refuse_unknown(table, (*_TEXTS, "aliases", "nominal", "measured"), _WHAT)
        nominal = table_of(table, "nominal")
        measured = table_of(table, "measured")
        refuse_unknown(nominal, ("compute_capability", *_NUMBERS), _WHAT, "nominal.")
        refuse_unknown(measured, _MEASURED, _WHAT, "measured.")
        values: dict[str, Any] = {key: text_of(table, key) for key in _TEXTS}
        sources: dict[str, str] = {}
        for key, raw in nominal.items():
            value, sources[key] = value_and_source(raw, f"nominal.{key}", _WHAT, need_sources)
            values[key] = _checked(key, value, "nominal.")
        for key in _REQUIRED:
            if key not in values:
                raise InvalidInput(f"nominal.{key} is missing")
        return Device(
            id=slug(path.stem),
            aliases=names_of(table, "aliases"),
            sources={key: source for key, source in sources.items() if source},
            measured=dict(_facts(measured, need_sources)),
            **values,
        )


def _checked(key: str, value: object, where: str) -> float | tuple[int, int]:
    if key == "compute_capability":
        match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", value) if isinstance(value, str) else None
        if match is None:
            raise InvalidInput(f'{where}{key} must be written like "9.0", not {value!r}')
        return int(match[1]), int(match[2])
    return number_of(value, _NUMBERS[key], f"{where}{key}")


def _facts(measured: Mapping[str, Any], need_sources: bool) -> Iterator[tuple[str, Fact]]:
    for key, raw in measured.items():
        value, source = value_and_source(raw, f"measured.{key}", _WHAT, need_sources)
        yield key, Fact(number_of(value, _NUMBERS[key], f"measured.{key}"), source)


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
    nominal = {
        field.name: _fact(value, device.sources.get(field.name, ""))
        for field in fields(device)
        if field.name not in _NOT_NOMINAL and (value := getattr(device, field.name)) is not None
    }
    measured = {name: _fact(fact.value, fact.source) for name, fact in device.measured.items()}
    return toml_text(
        {name: getattr(device, name) for name in _TEXTS}
        | {"aliases": list(device.aliases), "nominal": nominal, "measured": measured or None}
    )


def _fact(value: object, source: str) -> object:
    shown = ".".join(map(str, value)) if isinstance(value, tuple) else value
    return {"value": shown, "source": source} if source else shown
