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
    Sequential, or one of several root modules of the same class.
    """
    roots = {call.module.split(".")[0] for call in trace}
    repeated = {match[1] for root in roots if (match := _ROOT.match(root)) and match[2]}

    @cache
    def block_of(module: str) -> str:
        root = _ROOT.match(module)
        if root and root[1] in repeated:
            return module.split(".")[0]
        numbered = _NUMBERED.match(module)
        return numbered[1] if numbered else ""

    return block_of
