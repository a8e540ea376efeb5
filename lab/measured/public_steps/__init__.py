"""Published measurements of whole steps, with the steps rebuilt as they ran.

The measured times are not part of this repository: commands take their folder with `--data`
(docs/sources.md). Each module here reads the tables of one source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from lab.measured.public_steps import (
    lambda_steps,
    neusight,
    nvidia_steps,
    timm_steps,
    torchcnn_steps,
)
from lab.measured.public_steps.case import Case

SETS: dict[str, Callable[[Path], Iterator[Case]]] = {
    "neusight": neusight.cases,
    "timm": timm_steps.cases,
    "lambda": lambda_steps.cases,
    "nvidia": nvidia_steps.cases,
    "torchcnn": torchcnn_steps.cases,
}
"""The name of a source's folder -> the function that reads it."""


def cases(data: Path) -> Iterator[Case]:
    """The steps of every source that the folder has."""
    for name, read in SETS.items():
        if (data / name).is_dir():
            yield from read(data / name)
