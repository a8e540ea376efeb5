"""What identifies a graph of the compiler: all that its lowering depends on, as one digest."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree

from wavecast.frameworks.pytorch.capture.values.places import place_of

_PLAIN = (bool, int, float, complex, str, type(None))
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch._ops.OperatorBase)
_UNREAD = frozenset(
    "tensor_meta from_node source_fn_stack fwd_source_fn_stack seq_nr desc output_stack_traces "
    "mutation_region_id".split()
)
"""What a node says of itself that its lowering does not depend on: it repeats the value, or says
where in the making of the graph the node came from."""
_STACKS = ("nn_module_stack", "fwd_nn_module_stack")
_MOST_ELEMENTS = 64
"""Constants of up to this many elements may become part of a kernel."""


class _Unkeyed(Exception):
    """A graph holds something of which we do not know what its lowering makes of it."""


def key_of(gm: Any, inputs: Sequence[Any], *about: Any) -> str | None:
    """The key of a graph with its inputs; None if it has none.

    Args:
        gm: the graph module.
        inputs: what it is compiled for.
        about: what else its lowering depends on: the GPU and options, as plain data.
    """
    digest = hashlib.sha256(_environment().encode())
    try:
        for line in (_switches(), _text(about), _text(inputs), *_lines(gm)):
            digest.update(line.encode(errors="surrogatepass"))
            digest.update(b"\n")
    except _Unkeyed:
        return None
    return digest.hexdigest()


@functools.cache
def _environment() -> str:
    """The programs that decide: torch with sympy, and our reading of what they say."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    code = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    return f"{torch.__version__} {version('sympy')} {sys.version_info[:2]} {code}"


def _switches() -> str:
    """The state of the process that Inductor reads."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    state = (
        matmul.fp32_precision,
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction,
        cudnn.enabled,
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
    )
    return f"{state} {sorted(inductor_config.get_config_copy().items())}"


def _lines(gm: Any) -> Iterator[str]:
    """The nodes of a graph, one after the other, with what each says of itself."""
    for node in gm.graph.nodes:
        yield f"{node.name} {node.op} {_text(node.target)} {_text(node.args)} {_text(node.kwargs)}"
        if node.op == "get_attr":
            yield from _attribute(functools.reduce(getattr, node.target.split("."), gm))
        for name, value in node.meta.items():
            if name in _STACKS:
                yield f"{name} {[str(path) for path, _kind in (value or {}).values()]}"
            elif name not in _UNREAD:
                yield f"{name} {_text(value)}"


def _attribute(value: Any) -> Iterator[str]:
    if isinstance(value, torch.fx.GraphModule):
        yield from _lines(value)
    elif type(value) is torch.Tensor and value.numel() <= _MOST_ELEMENTS:
        yield f"{_tensor(value)} {value.tolist()}"
    else:
        raise _Unkeyed


def _text(value: Any) -> str:
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, FakeTensor):
        return f"{_tensor(value)} {place_of(value)}"
    if isinstance(value, torch.fx.Node):
        return f"%{value.name}"
    if isinstance(value, _NAMED):
        return str(value)
    if isinstance(value, tuple | list):
        return f"({','.join(map(_text, value))})"
    if isinstance(value, dict):
        return f"{{{','.join(f'{_text(k)}:{_text(v)}' for k, v in value.items())}}}"
    if isinstance(value, slice):
        return f"slice{_text((value.start, value.stop, value.step))}"
    if type(value).__name__ == "builtin_function_or_method":
        return f"{value.__module__}.{value.__qualname__}"
    raise _Unkeyed


def _tensor(value: Any) -> str:
    if has_symbols([value]):
        raise _Unkeyed  # sizes that are not known when the code is compiled
    return f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.storage_offset()}"


def sizes_of(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The sizes that inputs of a graph have, or are. A symbol counts as the size that it has."""
    return tuple(_pytree.tree_map_only(torch.SymInt, lambda n: n.node.hint, _sizes(inputs)))


def has_symbols(inputs: Sequence[Any]) -> bool:
    """Whether sizes are symbols, as in code that torch compiles once for several sizes."""
    return any(isinstance(size, torch.SymInt) for size in _pytree.tree_leaves(_sizes(inputs)))


def _sizes(inputs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        (tuple(x.shape), x.stride(), x.storage_offset()) if isinstance(x, torch.Tensor) else x
        for x in inputs
    )
