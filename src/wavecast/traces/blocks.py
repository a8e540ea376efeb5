"""The repeated blocks of a model, found in the modules of a trace."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from wavecast.traces.step import Trace

_NUMBERED = re.compile(r"^(.*?\.\d+)(\.|$)")
_ROOT = re.compile(r"^([^.#]+)(#\d+)?")


def blocks_of(trace: Trace) -> list[str]:
    """The block that each call belongs to; empty if none."""
    block_of = block_finder(trace)
    return [block_of(call.module) for call in trace]


def block_finder(trace: Trace) -> Callable[[str], str]:
    """A function that gives the block of a module; empty if it is in none.

    A block is the outermost of several similar modules: one that is numbered, as in a ModuleList or
    Sequential, or one of several root modules of the same class. A numbered layer without layers
    inside, as in a stem of a convolution and a norm, is one only if there are no larger ones.
    """
    modules = {call.module for call in trace}
    roots = {module.split(".")[0] for module in modules}
    composed = {match[1] for module in modules if (match := _NUMBERED.match(module)) and match[2]}
    repeated = {match[1] for root in roots if (match := _ROOT.match(root)) and match[2]}

    @cache
    def block_of(module: str) -> str:
        root = _ROOT.match(module)
        if root and root[1] in repeated:
            return module.split(".")[0]
        numbered = _NUMBERED.match(module)
        if numbered is None or (composed and numbered[1] not in composed):
            return ""
        return numbered[1]

    return block_of
