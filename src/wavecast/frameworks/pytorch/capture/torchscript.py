"""TorchScript, which is plain Python while a step is traced."""

from __future__ import annotations

import copy
from typing import Any

import torch


class _NoScript:
    """What `torch.jit` adds to a module: a graph, here without nodes, and a file to save it in."""

    @property
    def graph(self) -> Any:
        """A graph without nodes, enough for a logger such as TensorBoard's `add_graph`."""
        return torch._C.Graph()

    inlined_graph = graph
    code = ""

    def save(self, file: Any, **_: Any) -> None:
        """Write nothing."""


def script(code: Any, *_: Any, **__: Any) -> Any:
    """`torch.jit.script`, which gives plain Python: it cannot compile the functions replaced here.

    Libraries script functions when they are imported, which may happen inside `make_step`.
    """
    return _plain(code) if isinstance(code, torch.nn.Module) else code


def trace(code: Any, example_inputs: Any = None, *_: Any, **options: Any) -> Any:
    """`torch.jit.trace`, which runs the code once and gives it back.

    Torch's own makes tensors of all shapes, whose values torch's fake tensors then ask for.
    """
    named = options.get("example_kwarg_inputs") or {}
    if named or example_inputs is not None:
        is_one = isinstance(example_inputs, torch.Tensor | dict)
        code(*((example_inputs,) if is_one else example_inputs or ()), **named)
    return script(code)


def _plain(module: Any) -> Any:
    """A module that shares all with another one, and has what `torch.jit` adds."""
    plain = copy.copy(module)
    if not isinstance(plain, _NoScript):
        kind = type(module)
        plain.__class__ = type(kind.__name__, (_NoScript, kind), {"__module__": kind.__module__})
    return plain
