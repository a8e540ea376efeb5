"""Records of past trainings: what was asked, and how long it took.

Readers of logs (`run_readers`) and the store (`run_store`) give them, the regression models take
them. A run is known by its contents: the same run read twice is one run.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import MISSING, dataclass, fields
from typing import Any

from wavecast.errors import InvalidInput

PHASES = ("training", "testing")
_LARGEST = 2**63 - 1  # what a column of a database holds


@dataclass(frozen=True, slots=True)
class Run:
    """One training or testing of a model: what was asked and how long it took."""

    model: str
    batch: int
    """The global batch, over all GPUs."""
    iterations: int
    """The timed ones: the stable phase, warm-up dropped."""
    seconds: float
    """That these iterations took."""
    phase: str = "training"
    """Or "testing"."""
    gpu: str = ""
    """A name or device id as known; "" is unknown."""
    gpus: int = 1
    precision: str = ""
    """fp32, tf32, fp16, bf16; "" is unknown."""
    framework: str = ""
    inner_modules: int | None = None
    """The depth within a family of CNNs (MG-1)."""
    source: str = ""
    """The file and line it was read from."""


COLUMNS = tuple(field.name for field in fields(Run))
DEFAULTS = {field.name: field.default for field in fields(Run) if field.default is not MISSING}
WHOLE = ("batch", "iterations", "gpus", "inner_modules")
_IDENTIFYING = tuple((n, DEFAULTS.get(n, MISSING)) for n in COLUMNS if n != "source")
TEXTS = ("model", "phase", "gpu", "precision", "framework", "source")


def check(run: Run) -> Run:
    """The run itself, when it can be true.

    Raises:
        InvalidInput: a value that no run can have; says which.
    """
    for name in WHOLE:
        value = getattr(run, name)
        if value is None and name == "inner_modules":
            continue
        if type(value) is not int or not 1 <= value <= _LARGEST:
            raise InvalidInput(f"{name} is {_shown(value)}, but must be a whole number from 1 on")
    if type(run.seconds) not in (int, float) or not 0 < run.seconds < math.inf:
        raise InvalidInput(f"seconds is {_shown(run.seconds)}, but must be a finite number above 0")
    for name in TEXTS:
        _check_text(name, getattr(run, name))
    if not run.model.strip():
        raise InvalidInput("the model has no name")
    if run.phase not in PHASES:
        raise InvalidInput(f"phase is {_shown(run.phase)}, but must be training or testing")
    return run


def identity(run: Run) -> str:
    """What makes the run the same run: a hash of its values, less where they were read.

    Values equal to their default do not count, so that a field added later changes no identity.
    """
    # repr gives the shortest text that reads back as the same number, on every machine; no text of
    # a run has the character between, which cannot be shown.
    told = "\x1f".join(
        [
            f"{name}={float(value)!r}" if name == "seconds" else f"{name}={value}"
            for name, default in _IDENTIFYING
            if (value := getattr(run, name)) != default
        ]
    )
    return hashlib.sha256(told.encode(errors="surrogatepass")).hexdigest()[:32]


def record(run: Run) -> dict[str, Any]:
    """The run as a flat dictionary."""
    return {name: getattr(run, name) for name in COLUMNS}


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidInput(f"{name} is {_shown(value)}, but must be text")
    if not value.isprintable():  # nor can a database keep a NUL or half a character
        raise InvalidInput(f"{name} is {_shown(value)}: it has characters that cannot be shown")
    if len(value) > 1000:
        raise InvalidInput(f"{name} is {_shown(value)}: it is longer than 1000 characters")


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
