"""Where an HLO instruction comes from: its phase, its module and its argument, from JAX's names.

JAX names the path to each operation: `jit(step)/transpose(jvp(net))/blocks.0/dot_general`. Scopes
are those of `jax.named_scope`, Flax's modules and Keras's layers; `jvp` marks the forward pass of a
gradient, `transpose(jvp(...))` the backward pass.
"""

from __future__ import annotations

import re
from collections.abc import Container
from functools import cache
from itertools import groupby

from wavecast.frameworks.jax.hlo import PATH, Computation
from wavecast.traces.step import Phase

_BACKWARD, _FORWARD = "transpose(", "jvp("
_WRAPPER = re.compile(
    r"^(?:jit|pjit|jvp|transpose|vmap|remat|checkpoint|custom_jvp|custom_vjp|shard_map)\((.*)\)$"
)
_SILENT = frozenset(
    "while body cond branch closed_call core_call checkpoint rematted_computation eval_jaxpr remat "
    "remat2 custom_jvp_call custom_vjp_call pjit shard_map main cond_fun body_fun".split()
)
"""Parts of a path that are no scope of the user's."""
_KEY = re.compile(r"\['([^']*)'\]|\[(\d+)\]|\.(\w+)")


@cache
def phase_of(op_name: str) -> Phase | None:
    """The phase that an operation's path shows; None if it shows none."""
    if _BACKWARD in op_name:
        return Phase.BACKWARD
    if _FORWARD in op_name:
        return Phase.FORWARD
    return Phase.OTHER if op_name else None


def updates(body: Computation, gradients: Container[int]) -> bool:
    """Whether a fusion computes with gradients outside of the differentiated function.

    XLA fuses an update with what the forward or the backward pass does to the same parameter, and
    names the fusion after that.

    Args:
        body: the computation of the fusion.
        gradients: the positions of its parameters that follow from gradients.
    """
    derived: set[str] = set()
    for one in body.instructions:
        if one.opcode == "parameter":
            follows = int(one.inside) in gradients
        else:
            phase = phase_of(one.op_name) if PATH in one.op_name else None
            follows = phase is Phase.BACKWARD or not derived.isdisjoint(one.operands)
            if follows and phase is Phase.OTHER:
                return True
        if follows:
            derived.add(one.name)
    return False


@cache
def module_of(op_name: str) -> str:
    """The dotted path of the scopes of an operation; empty if it is in none."""
    parts = _split(op_name)
    scopes: list[str] = []
    for position, part in enumerate(parts[:-1]):
        inner = _unwrapped(part) if position else ""  # the first is the jitted function itself
        scopes += [one for one in inner.split("/") if _is_scope(one)]
    # A module of Flax that calls a method of its own is named twice, one after the other.
    return ".".join(scope for scope, _ in groupby(scopes))


def _split(path: str) -> list[str]:
    """The parts of a path; slashes within parentheses do not divide."""
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(path):
        depth += (letter == "(") - (letter == ")")
        if letter == "/" and depth == 0:
            parts.append(path[begin:at])
            begin = at + 1
    return [*parts, path[begin:]]


def _unwrapped(part: str) -> str:
    while found := _WRAPPER.match(part):
        if part.startswith(("jit(", "pjit(")):
            return ""  # a function of jax.numpy, not a scope
        part = found[1]
    return part


def _is_scope(name: str) -> bool:
    return bool(name) and name not in _SILENT and not re.search(r"->|[,<>()\[\]]", name)


@cache
def argument_of(op_name: str) -> str:
    """The dotted path of an argument: "state.params.blocks.0.qkv"."""
    name = re.match(r"\w+", op_name)
    keys = [next(filter(None, found)) for found in _KEY.findall(op_name) if any(found)]
    return ".".join([*([name[0]] if name else []), *keys])
