"""Moves between devices in a graph of Dynamo's, which C++ code would take for real copies.

C++ code sees all fake tensors on the CPU. There, `x.to("cuda")` of a tensor that is on the GPU
already would copy it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from wavecast.frameworks.pytorch.capture.places import GPU, ON_HOST, place_of, put_on_gpu

MAKERS = (torch.tensor, torch.as_tensor, torch.scalar_tensor)
"""Functions that make a tensor from data. They cannot make one on a GPU that is not there."""

_MOVES = ("to", "cuda")


def tried(node: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a move to the GPU that Dynamo tries; None if the node is no such move."""
    if node.op != "call_method" or node.target not in _MOVES:
        return None
    source, *rest = args
    if not isinstance(source, torch.Tensor) or not _goes_to_gpu(node.target, rest, kwargs):
        return None
    others, options = _without_gpu(rest), _without_gpu_by_name(kwargs)
    moved = source.to(*others, **options) if node.target == "to" and (others or options) else source
    if place_of(source) == ON_HOST:
        moved = moved.clone() if moved is source else moved
        put_on_gpu(moved)
    return moved


def stay_on_device(gm: Any) -> None:
    """Take out of a graph the moves to the device on which a tensor is already.

    A move from the host becomes an op that names the GPU, since C++ code would not move anything.
    """
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target in MAKERS:
            node.kwargs = {name: v for name, v in node.kwargs.items() if name != "device"}
        elif node.op == "call_method" and node.target in _MOVES:
            values = [_value(argument) for argument in node.args]
            if isinstance(values[0], torch.Tensor) and place_of(values[0]) != ON_HOST:
                _stay(gm, node)
            elif _goes_to_gpu(node.target, values[1:], node.kwargs):
                _move(gm, node)
    gm.recompile()


def _value(argument: Any) -> Any:
    return argument.meta.get("example_value") if isinstance(argument, torch.fx.Node) else argument


def _goes_to_gpu(method: str, rest: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if method == "cuda":
        return True
    likes = [value for value in rest[:1] if isinstance(value, torch.Tensor)]
    if likes:
        return place_of(likes[0]) != ON_HOST
    return any(_is_gpu(value) for value in (*rest, *kwargs.values()))


def _without_gpu(rest: Sequence[Any]) -> list[Any]:
    return [value for value in rest if not _is_gpu(value)]


def _without_gpu_by_name(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if not _is_gpu(value)}


def _stay(gm: Any, node: Any) -> None:
    source, *rest = node.args
    rest, kwargs = _without_gpu(rest), _without_gpu_by_name(node.kwargs)
    is_cast = any(isinstance(value, torch.dtype) for value in (*rest, *kwargs.values()))
    if node.target == "to" and (is_cast or "memory_format" in kwargs or _is_like(rest)):
        node.args, node.kwargs = (source, *rest), kwargs
        return
    node.replace_all_uses_with(source)
    gm.graph.erase_node(node)


def _move(gm: Any, node: Any) -> None:
    dtype = node.meta["example_value"].dtype
    with gm.graph.inserting_before(node):
        options = {"dtype": dtype, "device": GPU}
        moved = gm.graph.call_function(_COPY, (node.args[0],), options)
    moved.meta = node.meta
    node.replace_all_uses_with(moved)
    gm.graph.erase_node(node)


_COPY = torch.ops.aten._to_copy.default


def _is_gpu(value: Any) -> bool:
    if isinstance(value, str):
        return value.startswith("cuda")
    return isinstance(value, torch.device) and value.type == "cuda"


def _is_like(rest: list[Any]) -> bool:
    """Whether the first argument is another tensor, whose type is taken."""
    return bool(rest) and isinstance(rest[0], torch.fx.Node)
