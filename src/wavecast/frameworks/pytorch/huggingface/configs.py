"""The config of a Hugging Face model: from a file or folder, the local cache, or the presets.

Nothing is downloaded, and no code of a model repository is run.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from wavecast.errors import CaptureError, InvalidInput, UnknownName
from wavecast.files import shipped
from wavecast.reading import kind_of, parse_json, read_bytes, read_text

CONFIG = "config.json"
_UNET = "unet"

MOST_PARTS = 512
"""The most layers, blocks or experts of a model that is built: each one takes time and memory."""
_PARTS = re.compile(r"(layers?|layers_per_block|blocks|experts|depths?)$")
_LARGEST_BYTES = 1 << 24


@dataclass(frozen=True)
class ModelConfig:
    """A config, and where it was found."""

    name: str
    """What the user wrote after `hf:`."""
    source: str
    values: Mapping[str, Any]

    @property
    def diffusion_class(self) -> str | None:
        """The name of the diffusers class that the config describes. None for transformers."""
        return self.values.get("_class_name")

    @property
    def model_type(self) -> str:
        """The type of the model in transformers ("llama"); empty for models of diffusers."""
        return str(self.values.get("model_type", ""))


def config_of(name: str) -> ModelConfig:
    """The config that `hf:NAME` means.

    Raises:
        UnknownName: there is neither a file of that name, nor is it in the cache, nor a preset.
        InvalidInput: the file is not a config of a model.
    """
    text = name.strip()
    if not text:
        raise InvalidInput("hf: needs a name, as in hf:llama-3.1-8b or hf:path/to/config.json")
    path = Path(text).expanduser()
    kind = kind_of(path)
    if kind == "folder":
        return _read(text, _in_folder(path))
    if kind == "file":
        return _read(text, path)
    cached = _in_cache(text)
    if cached is not None:
        return _read(text, cached)
    preset = preset_of(text)
    if preset is not None:
        return ModelConfig(text, preset.source, preset.config)
    if path.suffix == ".json":
        raise InvalidInput(f"there is no file {text} (looked in {Path.cwd()})")
    raise UnknownName(_unknown(text))


def _unknown(name: str) -> str:
    names = [preset.name for preset in presets()]
    known = {alias.lower(): preset.name for preset in presets() for alias in preset.names}
    near = difflib.get_close_matches(name.lower(), list(known), n=5, cutoff=0.5)
    nearest = list(dict.fromkeys(known[alias] for alias in near))
    hint = f"near presets: {', '.join(nearest)}" if nearest else f"presets: {', '.join(names)}"
    return (
        f"hf:{name} is no file or folder, not in the local Hugging Face cache ({_cache()}) and no "
        f"preset; {hint}. Nothing is downloaded: get the config with "
        f"'hf download {name} {CONFIG}', or write hf:PATH of a {CONFIG}"
    )


def _in_folder(folder: Path) -> Path:
    """The config in a folder of a model or of a diffusion pipeline."""
    for candidate in (folder / CONFIG, folder / _UNET / CONFIG):
        if candidate.is_file():
            return candidate
    raise InvalidInput(f"the folder {folder} has no {CONFIG} and no {_UNET}/{CONFIG}")


def _cache() -> Path:
    """The folder in which Hugging Face's libraries keep what they downloaded."""
    if chosen := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(chosen).expanduser()
    home = os.environ.get("HF_HOME")
    if not home:
        home = str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return Path(home).expanduser() / "hub"


def _in_cache(name: str) -> Path | None:
    """The config of a repository in the cache: of its main branch, else of its newest copy."""
    repository = _cache() / f"models--{name.replace('/', '--')}"
    snapshots = repository / "snapshots"
    if kind_of(snapshots) != "folder":
        return None
    folders = sorted(snapshots.iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True)
    main = repository / "refs" / "main"
    if main.is_file():
        folders.insert(0, snapshots / read_text(main, _LARGEST_BYTES, prefix=f"{main} ").strip())
    for folder in folders:
        for candidate in (folder / CONFIG, folder / _UNET / CONFIG):
            if candidate.is_file():
                return candidate
    return None


def _read(name: str, path: Path) -> ModelConfig:
    text = read_bytes(path, _LARGEST_BYTES, prefix=f"cannot read {path}: it ")
    values = parse_json(text, constants=True, prefix=f"{path} ")
    if not isinstance(values, dict) or not ({"model_type", "_class_name"} & values.keys()):
        raise InvalidInput(
            f"{path} is not the config of a model: it has neither model_type (transformers) nor "
            "_class_name (diffusers)"
        )
    for key in ("model_type", "_class_name"):
        if not isinstance(values.get(key, ""), str):
            raise InvalidInput(f"{path} is not the config of a model: its {key} is not a text")
    _refuse_many_parts(path, values)
    if "_diffusers_version" in values and str(values.get("_class_name")).endswith("Pipeline"):
        raise InvalidInput(f"{path} describes a whole pipeline; name the folder of its {_UNET}")
    return ModelConfig(name, str(path), values)


def _refuse_many_parts(path: Path, values: Mapping[str, Any]) -> None:
    """Refuse a config of a few bytes whose model would never be finished."""
    for key, value in values.items():
        if isinstance(value, dict):
            _refuse_many_parts(path, value)
            continue
        counts = [n for n in (value if isinstance(value, list) else [value]) if type(n) is int]
        if _PARTS.search(key) and max(counts, default=0) > MOST_PARTS:
            raise InvalidInput(
                f"{path}: {key} is {max(counts)}; a model with more than {MOST_PARTS} of them is "
                "not built"
            )


# Configs of well-known models that come with the package, as facts with their sources.


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


# Why transformers cannot be imported, where it is known: a torchvision that does not fit torch.


REMEDY = "pip uninstall torchvision, or install the one for your build of torch"


def torchvision_fault() -> str | None:
    """What is wrong with the installed torchvision; None if nothing is, or there is none."""
    try:
        version = metadata.version("torchvision")
    except metadata.PackageNotFoundError:
        return None
    try:
        importlib.import_module("torchvision")
    except Exception as error:  # it may fail in any way
        said = f"{version} cannot be imported: {type(error).__name__}: {error}"
        return said.splitlines()[0]
    return None


@contextmanager
def naming_torchvision(what: str) -> Iterator[None]:
    """A context in which a failed import names torchvision, if that is what fails.

    transformers says "Could not import module 'LlamaConfig'" then, and no more.
    """
    try:
        yield
    except (ImportError, RuntimeError) as error:
        fault = torchvision_fault()
        if fault is None:
            raise
        raise CaptureError(f"{what} needs torchvision {fault}; {REMEDY}") from error
