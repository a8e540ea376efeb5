"""Changes of how modules are called: in channels-last format, or with checkpointed blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from wavecast.frameworks.pytorch.capture.replacements import replacing
from wavecast.frameworks.pytorch.compiled import dynamo

Call = Callable[..., Any]


@contextmanager
def channels_last() -> Iterator[None]:
    """Keep the weights and images of modules with convolutions in channels-last format."""
    converted: set[int] = set()

    def call(original: Call, module: Any, args: Any, kwargs: Any) -> Any:
        if not any(isinstance(each, nn.Conv2d) for each in module.modules()):
            return original(module, *args, **kwargs)
        if id(module) not in converted:
            converted.add(id(module))
            module.to(memory_format=torch.channels_last)
        args, kwargs = pytree.tree_map(_images_last, (args, kwargs))
        return original(module, *args, **kwargs)

    with _outermost_calls(call):
        yield


def _images_last(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dim() == 4 and value.is_floating_point():
        return value.contiguous(memory_format=torch.channels_last)
    return value


@contextmanager
def compiled() -> Iterator[None]:
    """Compile the modules that are called with gradients, each at its first call."""

    def call(original: Call, module: Any, args: Any, kwargs: Any) -> Any:
        trains = torch.is_grad_enabled() and any(True for _ in module.parameters())
        if trains and not dynamo.is_compiled(module):
            dynamo.compile_module(module)
        return original(module, *args, **kwargs)

    with _outermost_calls(call):
        yield


@contextmanager
def checkpointed(every: int) -> Iterator[None]:
    """Checkpoint repeated blocks of the models that are called: each, or each second one."""
    blocks: dict[int, Any] = {}
    looked_at: set[int] = set()

    def look(original: Call, module: Any, args: Any, kwargs: Any) -> Any:
        if id(module) not in looked_at:
            looked_at.add(id(module))
            blocks.update({id(block): block for block in _repeated(module)[::every]})
        return original(module, *args, **kwargs)

    running: set[int] = set()
    original_call = nn.Module.__call__

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        if id(module) not in blocks or id(module) in running or not torch.is_grad_enabled():
            return original_call(module, *args, **kwargs)

        def run(*inner: Any, **named: Any) -> Any:
            running.add(id(module))
            try:
                return original_call(module, *inner, **named)
            finally:
                running.discard(id(module))

        return checkpoint(run, *args, use_reentrant=False, **kwargs)

    with ExitStack() as stack:
        replace = replacing(stack)
        replace(nn.Module, __call__=call)
        stack.enter_context(_outermost_calls(look))
        yield


def _repeated(root: Any) -> list[Any]:
    """The outermost blocks of one class that a list of a model has, at least two of them."""
    found: list[Any] = []
    waiting = [root]
    while waiting:
        module = waiting.pop(0)
        children = list(module.children())
        alike = {type(child) for child in children}
        inner = any(True for child in children for _ in child.children())
        is_list = isinstance(module, nn.ModuleList | nn.Sequential)
        if is_list and inner and len(children) > 1 and len(alike) == 1:
            found += children
            continue
        waiting += children
    return found


@contextmanager
def _outermost_calls(call: Callable[[Call, Any, Any, Any], Any]) -> Iterator[None]:
    """Let a function make the calls of modules that come from outside of all modules."""
    original = nn.Module.__call__
    depth = 0

    def called(module: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        if depth:
            return original(module, *args, **kwargs)
        depth += 1
        try:
            return call(original, module, args, kwargs)
        finally:
            depth -= 1

    with ExitStack() as stack:
        replace = replacing(stack)
        replace(nn.Module, __call__=called)
        yield
