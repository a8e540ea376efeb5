"""Hosts: what it costs to issue the ops of a step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.files import shipped_toml
from wavecast.ops import Kind
from wavecast.traces.step import Call, Op, Phase

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Host:
    """What it costs a host to issue work, in Python, dispatcher, autograd and driver."""

    name: str
    forward_s: float
    """An op that Python calls, in the forward pass or beside both passes."""
    autograd_s: float
    """What it takes to write that op down for the backward pass; a step without one does not."""
    backward_s: float
    """An op of the backward pass, which C++ issues."""
    other_s: float
    """An op on lists, of an optimizer that sorts its tensors into them first."""
    view_s: float
    """An op that launches no kernel."""
    module_s: float
    """Coming into another module in the forward pass."""
    convolution_s: float
    """What cuDNN adds to find its plan for one of a convolution's products."""
    kernel_s: float
    """Each kernel of an op but its first: recurrent layers and sorts launch many."""
    tensor_s: float
    """Each tensor of these lists."""
    step_s: float
    """What an iteration that trains costs beside its ops: gradients are cleared, the backward pass
    starts its thread, the optimizer goes through its parameters."""
    sync_s: float
    """From the end of the GPU's work to the host that waits for it."""
    launch_s: float = 0.0
    """From the issue of an op to its start on a GPU that has nothing else to do."""
    graph_s: float = 0.0
    """Launching a step that was captured as a CUDA graph."""
    node_s: float = 0.0
    """Each kernel of such a graph."""
    known: bool = False
    """Whether it was measured (`wavecast calibrate`): ranges then need less room for it."""

    @property
    def trip_s(self) -> float:
        """What a wait costs beyond waiting: the GPU has run dry and must be reached again."""
        return self.launch_s + self.sync_s

    def scaled(self, factor: float) -> Host:
        """A host that takes `factor` times as long for everything; with 0 only the GPU counts."""
        _check_factor(factor)
        times = {name: getattr(self, name) * factor for name in COSTS}
        return replace(self, name=f"{self.name} x{factor:g}", **times)

    def issue_times(self, calls: Sequence[Call]) -> Seconds:
        """The host's time for each call."""
        costs = np.array([getattr(self, name) for name in COSTS])
        found: Seconds = demands(calls) @ costs
        return found

    def kernel_gaps(self, calls: Sequence[Call]) -> Seconds | None:
        """How long the GPU stands still between the kernels of each call; None: as measured."""
        return None

    def graphed(self) -> GraphedHost:
        """The same host with the whole step in one CUDA graph."""
        return GraphedHost(
            name=f"{self.name}, as one CUDA graph",
            graph_s=self.graph_s,
            node_s=self.node_s,
            trip_s=self.trip_s,
        )


COSTS = tuple(field.name for field in fields(Host) if field.name.endswith("_s"))


def demands(calls: Sequence[Call]) -> NDArray[np.float64]:
    """How often each call asks for each of the host's `COSTS`; waits are counted elsewhere."""
    asked = np.zeros((len(calls), len(COSTS)))
    column = {name: index for index, name in enumerate(COSTS)}
    known: dict[tuple[Op, Phase], list[tuple[int, float]]] = {}
    module = None
    for row, call in enumerate(calls):
        key = (call.op, call.phase)
        if key not in known:
            known[key] = [(column[name], times) for name, times in _asked(*key)]
        for index, times in known[key]:
            asked[row, index] = times
        if call.phase is Phase.FORWARD and call.module != module:
            asked[row, column["module_s"]] = 1
        module = call.module
    if any(call.phase is Phase.BACKWARD for call in calls):
        written = np.array([call.phase is Phase.FORWARD for call in calls])
        asked[written, column["autograd_s"]] = asked[written, column["forward_s"]]
        asked[0, column["step_s"]] = 1
    return asked


def _asked(op: Op, phase: Phase) -> Iterator[tuple[str, float]]:
    if not ops.launches(op):
        yield "view_s", 1
        return
    kind = ops.kind(op)
    yield _BY_PHASE.get(phase, "other_s" if kind is Kind.OPTIMIZER else "forward_s"), 1
    match kind:
        case Kind.CONVOLUTION:
            yield "convolution_s", 2 if phase is Phase.BACKWARD else 1
        case Kind.OPTIMIZER:
            yield "tensor_s", len(op.inputs)
        case _:
            yield "kernel_s", max(ops.kernels(op) - 1, 0)


_BY_PHASE = {Phase.FORWARD: "forward_s", Phase.BACKWARD: "backward_s"}


_REFERENCE = shipped_toml("hosts/reference.toml")

REFERENCE_HOST = Host(name="reference host", **_REFERENCE["costs"])
"""The host that predictions assume when no other is named; the file says how it was made."""

GRAPH_GAP_S: float = _REFERENCE["graph"]["gap_s"]
"""How long the GPU stands still between two kernels of a CUDA graph."""


@dataclass(frozen=True)
class GraphedHost:
    """A host that launches a captured step at once: no op costs it anything."""

    name: str
    graph_s: float
    node_s: float
    trip_s: float
    known: bool = False

    def kernel_gaps(self, calls: Sequence[Call]) -> Seconds | None:
        """How long the GPU stands still between the kernels of each call."""
        return GRAPH_GAP_S * kernels(calls)

    def issue_times(self, calls: Sequence[Call]) -> Seconds:
        """The host's time for each call: the launch of the graph comes with the first."""
        times = np.zeros(len(calls))
        times[:1] = self.graph_s + self.node_s * kernels(calls).sum()
        return times


def kernels(calls: Sequence[Call]) -> Seconds:
    """How many kernels each call runs: those that were seen, or at least as many as its op has."""
    if any(call.kernels for call in calls):
        return np.array([float(len(call.kernels)) for call in calls])
    counts = {op: float(ops.kernels(op)) for op in {call.op for call in calls}}
    return np.array([counts[call.op] for call in calls])


def refuse_waits(calls: Sequence[Call]) -> None:
    """Refuse what no CUDA graph can hold: a wait for the GPU before the last of the work."""
    works = kernels(calls) > 0
    for position, call in enumerate(calls):
        later = zip(calls[position + 1 :], works[position + 1 :], strict=True)
        if call.syncs and any(work and not other.syncs for other, work in later):
            place = f" in {call.module}" if call.module else ""
            raise InvalidInput(
                f"a CUDA graph cannot wait for the GPU, and this step does: {call.op.name}{place}, "
                f"call {position + 1} of {len(calls)}. Take the wait (.item(), a copy to the "
                "host, gradient scaling) out of the step, or predict it without a graph"
            )


@dataclass(frozen=True)
class RecordedHost:
    """The host on which a step was measured: each call costs what it cost there."""

    name: str = "host of the measurement"
    factor: float = 1.0
    trip_s: float = 0.0
    known: bool = False

    def kernel_gaps(self, calls: Sequence[Call]) -> Seconds | None:
        """How long the GPU stands still between the kernels of each call; None: as measured."""
        return None

    def scaled(self, factor: float) -> RecordedHost:
        """A host that takes `factor` times as long for everything; with 0 only the GPU counts."""
        _check_factor(factor)
        return replace(self, name=f"{self.name} x{factor:g}", factor=self.factor * factor)

    def issue_times(self, calls: Sequence[Call]) -> Seconds:
        """The host's time for each call."""
        return np.array([call.host_s or 0.0 for call in calls]) * self.factor


def _check_factor(factor: float) -> None:
    if not 0 <= factor < math.inf:
        raise InvalidInput(
            f"the host factor must be a number from 0 on, not {factor}: 2 is a host half as "
            "fast as the reference, 0 one that costs nothing"
        )
