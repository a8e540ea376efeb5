"""The option `--gpu`, and the GPUs that it names."""

from __future__ import annotations

from typing import Annotated

import typer

import wavecast
from wavecast.errors import InvalidInput
from wavecast.hardware.device import Device

ALL = "all"
"""The name that stands for all GPUs."""


def gpu_names(incomplete: str) -> list[str]:
    """The GPUs whose names begin so, for the completion of a shell."""
    return [gpu.id for gpu in wavecast.devices() if gpu.id.startswith(incomplete)]


def gpu_option(about: str) -> typer.models.OptionInfo:
    """The option `--gpu` with its own help."""
    option: typer.models.OptionInfo = typer.Option(
        "--gpu", "-g", autocompletion=gpu_names, help=about
    )
    return option


GpusOption = Annotated[list[str], gpu_option('A GPU to predict for; repeat for more, or "all".')]
SomeGpusOption = Annotated[list[str] | None, gpu_option("A GPU; repeat to compare several.")]
OneGpuOption = Annotated[str, gpu_option("The model of the GPUs.")]


def named_gpus(names: list[str]) -> list[Device]:
    """The devices of these names, without duplicates."""
    return list({gpu.id: gpu for gpu in map(wavecast.device, names)}.values())


def named_or_all_gpus(names: list[str]) -> list[Device]:
    """The devices of these names, or all known ones if "all" is among them."""
    named = named_gpus([name for name in names if name != ALL])
    if ALL not in names:
        return named
    return list({gpu.id: gpu for gpu in (*wavecast.devices(), *named)}.values())


def refuse_all(names: list[str] | None, command: str, instead: str) -> None:
    """Refuse "all" GPUs in a command that has a column for each; `instead` is one with rows."""
    if ALL in (names or ()):
        raise InvalidInput(
            f'"wavecast {command}" shows a column for each GPU, so name some; "wavecast {instead} '
            '--gpu all" compares all'
        )
