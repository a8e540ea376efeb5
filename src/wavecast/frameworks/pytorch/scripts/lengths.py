"""How long a script trains: the epochs or steps that the code around its loop has a name for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from wavecast.frameworks.pytorch.recording.user_lines import is_ours, source_line
from wavecast.traces.script import ScriptLength

_STEPS = ("max_train_steps", "max_steps", "max_iters", "num_train_steps", "total_steps", "n_iters")
_EPOCHS = ("num_train_epochs", "max_epochs", "num_epochs", "n_epochs", "nb_epochs", "epochs")
_HOLDERS = ("args", "opt", "opts", "cfg", "config", "conf", "hparams", "params", "self", "trainer")
"""The names of objects that have a script's settings."""


def length_at(frame: FrameType | None) -> ScriptLength | None:
    """The length of the training that runs in a frame and those that called it.

    The innermost frame counts that has such a name: a number of steps, or else of epochs.
    """
    while frame is not None:
        if not is_ours(frame.f_code.co_filename) and (found := _in(frame)) is not None:
            return found
        frame = frame.f_back
    return None


def _in(frame: FrameType) -> ScriptLength | None:
    """The length that the variables of a frame have."""
    values = frame.f_locals
    place = source_line(frame.f_code.co_filename, frame.f_lineno)
    try:
        for name, number in _found(values, _STEPS):
            return ScriptLength(f"{name} at {place}", steps=number)
        for name, number in _found(values, _EPOCHS):
            return ScriptLength(f"{name} at {place}", epochs=number)
        return None
    finally:
        # Up to Python 3.12 a function's frame keeps this copy, and with it tensors of old steps.
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(values) is dict:
            values.clear()


def _found(values: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    """The numbers above 0 that have one of these names, or that settings have under them."""
    for name in values:
        if name.lower() in names and _is_number(values[name]):
            yield name, values[name]
    for holder in _HOLDERS:
        held = values.get(holder)
        own = held if isinstance(held, Mapping) else getattr(held, "__dict__", {})
        for name in names:
            if _is_number(own.get(name)):
                yield f"{holder}.{name}", own[name]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12
