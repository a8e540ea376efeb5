"""Device files written: the facts of a GPU, and what was measured on one like it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from wavecast.devices import Device, Fact, read_device, user_folder
from wavecast.toml_file import write_checked

_TEXTS = ("name", "vendor", "architecture")
_NOT_NOMINAL = (*_TEXTS, "id", "aliases", "sources", "measured")


def with_measured(device: Device, facts: Mapping[str, Fact]) -> Device:
    """The device with measured facts, which replace older ones of the same name."""
    return replace(device, measured={**device.measured, **facts})


def save(device: Device, folder: Path | None = None) -> Path:
    """Write a device where it is found under its id, all or nothing; gives the file."""
    path = (folder or user_folder()) / f"{device.id}.toml"
    write_checked(path, to_toml(device), read_device)
    return path


def to_toml(device: Device) -> str:
    """The device in the format of `data/devices/*.toml`."""
    lines = [f"{name} = {_text(getattr(device, name))}" for name in _TEXTS]
    lines.append(f"aliases = [{', '.join(map(_text, device.aliases))}]")
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
    shown = _text(".".join(map(str, value))) if isinstance(value, tuple) else repr(value)
    return f"{{ value = {shown}, source = {_text(source)} }}" if source else shown


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
