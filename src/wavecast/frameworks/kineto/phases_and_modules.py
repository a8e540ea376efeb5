"""Where in a step an op ran: its phase, and its module where the profiler recorded modules."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wavecast.frameworks.kineto.event_tree import Node
from wavecast.frameworks.kineto.recorded_step import MODULE
from wavecast.traces.kernel_names import copies_to_gpu
from wavecast.traces.step import Call, Phase

_BACKWARD = "autograd::engine::evaluate_function"
_OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")
_DATA = "enumerate(DataLoader)#"


@dataclass(frozen=True)
class Places:
    """What tells where the ops of a step ran."""

    backward_threads: frozenset[Any]
    """Those of autograd, where it has its own."""
    modules: Mapping[int, str]
    """By the number of the autograd node that a forward op made."""

    def phase(self, node: Node, kernels: Sequence[str] = ()) -> Phase:
        """The phase in which an op ran that ran these kernels."""
        # From the inside out: some optimizers run within backward.
        for each in node.path():
            if each.name.startswith(_BACKWARD):
                return Phase.BACKWARD
            if each.name.startswith(_OPTIMIZER):
                return Phase.OPTIMIZER
            if each.name.startswith(_DATA):
                return Phase.OTHER
        if node.span.thread in self.backward_threads:
            return Phase.BACKWARD
        fetches = bool(kernels) and all(map(copies_to_gpu, kernels))
        return Phase.OTHER if fetches else Phase.FORWARD

    def module(self, node: Node) -> str:
        """The module in which an op ran, or whose backward it is; "" when not known."""
        own = _forward_module(node)
        if own:
            return own
        for each in node.path():
            if each.name.startswith(_BACKWARD) and (sequence := _sequence(each)) is not None:
                return self.modules.get(sequence, "")
        return ""


def places_of(nodes: Sequence[Node]) -> Places:
    """The places of a step's nodes, which are in the order of their beginning."""
    first: dict[Any, str] = {}
    modules: dict[int, str] = {}
    for node in nodes:
        if node.span.category != "cpu_op":
            continue
        first.setdefault(node.span.thread, node.name)
        module, sequence = _forward_module(node), _sequence(node)
        if module and sequence is not None:
            # Ops that make no autograd node show the next number: the last one made the node.
            modules[sequence] = module
    autograd = (thread for thread, name in first.items() if name.startswith(_BACKWARD))
    return Places(frozenset(autograd), modules)


def settle(calls: Sequence[Call]) -> list[Call]:
    """The calls with OTHER for what comes after the last backward op and is no optimizer's.

    Nothing marks where forward ends, but clipping gradients or adding up metrics is none.
    """
    last = max((i for i, call in enumerate(calls) if call.phase is Phase.BACKWARD), default=None)
    return [
        replace(call, phase=Phase.OTHER)
        if last is not None and i > last and call.phase is Phase.FORWARD
        else call
        for i, call in enumerate(calls)
    ]


def _sequence(node: Node) -> int | None:
    value = node.span.arguments.get("Sequence number")
    return value if isinstance(value, int) and value >= 0 else None


def _forward_module(node: Node) -> str:
    hierarchy = node.span.arguments.get("Module Hierarchy")
    if isinstance(hierarchy, str) and hierarchy:
        # TOP(Net).layer1(Sequential).0(Block)::forward ...
        names = re.sub(r"\([^()]*\)|::\w+", "", hierarchy).split(".")
        return ".".join(name for name in names if name and name != "TOP")
    parts = [each.name.removeprefix(MODULE) for each in node.path() if each.name.startswith(MODULE)]
    return ".".join(reversed(parts))
