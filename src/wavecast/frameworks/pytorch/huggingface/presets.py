"""Configs of well-known models that come with the package, as facts with their sources."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from wavecast.files import shipped


@dataclass(frozen=True)
class Preset:
    """A model of a known size."""

    name: str
    """Its name in `hf:NAME`."""
    title: str
    repository: str
    """Its name on huggingface.co."""
    aliases: tuple[str, ...]
    """Other names, of repositories with the same config among them."""
    source: str
    """Where the config comes from."""
    parameters: int
    """The published number of parameters."""
    parameters_source: str
    config: Mapping[str, Any]
    """The content of its config.json, as far as it decides what the model computes."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names that mean this model."""
        return (self.name, self.repository, *self.aliases)


@cache
def presets() -> tuple[Preset, ...]:
    """All models that come with the package, by name."""
    return tuple(
        _preset(path.stem, tomllib.loads(path.read_text(encoding="utf-8")))
        for path in sorted(shipped("huggingface").glob("*.toml"))
    )


def _preset(name: str, table: Mapping[str, Any]) -> Preset:
    return Preset(
        name=name,
        title=table["title"],
        repository=table["repository"],
        aliases=tuple(table["aliases"]),
        source=table["source"],
        parameters=table["parameters"]["value"],
        parameters_source=table["parameters"]["source"],
        config=table["config"],
    )


def preset_of(name: str) -> Preset | None:
    """The preset that a name means, without regard to case. None if there is none."""
    by_name = {known.lower(): preset for preset in presets() for known in preset.names}
    return by_name.get(name.strip().lower())
