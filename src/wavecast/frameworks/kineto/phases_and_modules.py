"""The phase and the module of each op in a profiler file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from wavecast.frameworks.kineto.event_tree import Inherited, Node
from wavecast.frameworks.kineto.recorded_step import MODULE
from wavecast.traces.kernel_names import copies_to_gpu
from wavecast.traces.step import Call, Phase

_BACKWARD = "autograd::engine::evaluate_function"
_OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")
_DATA = "enumerate(DataLoader)#"


@dataclass(frozen=True)
class Places:
    """The facts from which the phase and the module of each op of a step follow."""

    backward_threads: frozenset[Any]
    """The threads that only autograd uses."""
    modules: Mapping[int, str]
    """The module of each forward op, keyed by the sequence number of its autograd node."""
    forward_modules: Inherited[str]
    """The module of each node, as far as it is within one."""
    # The innermost range decides, because some optimizers run within the backward pass.
    _phases: Inherited[Phase] = field(default_factory=lambda: Inherited(_phase_of_range))
    _sequences: Inherited[int] = field(default_factory=lambda: Inherited(_backward_sequence))

    def phase(self, node: Node, kernels: Sequence[str] = ()) -> Phase:
        """The phase of an op that launched these kernels."""
        phase = self._phases.of(node)
        if phase is not None:
            return phase
        if node.span.thread in self.backward_threads:
            return Phase.BACKWARD
        fetches = bool(kernels) and all(map(copies_to_gpu, kernels))
        return Phase.OTHER if fetches else Phase.FORWARD

    def module(self, node: Node) -> str:
        """The module of a forward op, or of the forward op that a backward op belongs to.

        "" if it is not known.
        """
        own = _forward_module(node, self.forward_modules)
        if own:
            return own
        sequence = self._sequences.of(node)
        return "" if sequence is None else self.modules.get(sequence, "")


def _phase_of_range(node: Node) -> Phase | None:
    """The phase of everything within a range; None if a node is no such range."""
    if node.name.startswith(_BACKWARD):
        return Phase.BACKWARD
    if node.name.startswith(_OPTIMIZER):
        return Phase.OPTIMIZER
    return Phase.OTHER if node.name.startswith(_DATA) else None


def _backward_sequence(node: Node) -> int | None:
    """The sequence number of a backward op."""
    return _sequence(node) if node.name.startswith(_BACKWARD) else None


def places_of(nodes: Sequence[Node]) -> Places:
    """The facts for the nodes of one step, which must be ordered by their start."""
    first: dict[Any, str] = {}
    modules: dict[int, str] = {}
    paths = _module_paths()
    for node in nodes:
        if node.span.category != "cpu_op":
            continue
        first.setdefault(node.span.thread, node.name)
        module, sequence = _forward_module(node, paths), _sequence(node)
        if module and sequence is not None:
            # An op that makes no autograd node shows the number of the next node, so the last op
            # with a number is the one that made the node.
            modules[sequence] = module
    autograd = (thread for thread, name in first.items() if name.startswith(_BACKWARD))
    return Places(frozenset(autograd), modules, paths)


def settle(calls: Sequence[Call]) -> list[Call]:
    """The calls, where forward ops after the last backward op become OTHER.

    The file does not mark the end of the forward pass. Ops after the backward pass that do not
    belong to the optimizer clip gradients or compute metrics.
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


def _forward_module(node: Node, paths: Inherited[str]) -> str:
    hierarchy = node.span.arguments.get("Module Hierarchy")
    if isinstance(hierarchy, str) and hierarchy:
        # TOP(Net).layer1(Sequential).0(Block)::forward ...
        names = re.sub(r"\([^()]*\)|::\w+", "", hierarchy).split(".")
        return ".".join(name for name in names if name and name != "TOP")
    return paths.of(node) or ""


def _module_paths() -> Inherited[str]:
    """The names of the modules around each node, from the outside in."""

    def own(node: Node) -> str | None:
        if not node.name.startswith(MODULE):
            return None
        above = paths.of(node.parent)
        name = node.name.removeprefix(MODULE)
        return name if above is None else f"{above}.{name}"

    paths = Inherited(own)
    return paths
