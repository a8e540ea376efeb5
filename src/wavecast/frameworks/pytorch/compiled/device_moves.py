"""Moves between devices in a graph of Dynamo's, which C++ code would take for real copies.

C++ code sees all fake tensors on the CPU. There, `x.to("cuda")` of a tensor that is on the GPU
already would copy it.
"""

from __future__ import annotations

from typing import Any

import torch

from wavecast.frameworks.pytorch.capture.places import ON_HOST, place_of

MAKERS = (torch.tensor, torch.as_tensor, torch.scalar_tensor)
"""Functions that make a tensor from data. They cannot make one on a GPU that is not there."""

_MOVES = ("to", "cuda")


def stay_on_device(gm: Any) -> None:
    """Take out of a graph the moves to the device on which a tensor is already."""
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target in MAKERS:
            node.kwargs = {name: v for name, v in node.kwargs.items() if name != "device"}
        elif node.op == "call_method" and node.target in _MOVES and _is_on_gpu(node.args[0]):
            _stay(gm, node)
    gm.recompile()


def _is_on_gpu(node: Any) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and place_of(value) != ON_HOST


def _stay(gm: Any, node: Any) -> None:
    source, *rest = node.args
    rest = [value for value in rest if not _is_gpu(value)]
    kwargs = {name: value for name, value in node.kwargs.items() if not _is_gpu(value)}
    is_cast = any(isinstance(value, torch.dtype) for value in (*rest, *kwargs.values()))
    if node.target == "to" and (is_cast or "memory_format" in kwargs or _is_like(rest)):
        node.args, node.kwargs = (source, *rest), kwargs
        return
    node.replace_all_uses_with(source)
    gm.graph.erase_node(node)


def _is_gpu(value: Any) -> bool:
    if isinstance(value, str):
        return value.startswith("cuda")
    return isinstance(value, torch.device) and value.type == "cuda"


def _is_like(rest: list[Any]) -> bool:
    """Whether the first argument is another tensor, whose type is taken."""
    return bool(rest) and isinstance(rest[0], torch.fx.Node)
