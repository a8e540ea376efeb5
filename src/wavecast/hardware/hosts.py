"""Hosts: the time that a CPU needs to issue the ops of a step to its GPU."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.files import shipped_toml
from wavecast.hardware.clusters import Cluster
from wavecast.ops import Kind, fused
from wavecast.ops.registry import integer
from wavecast.traces.graphs import CALL, GRAPH_LAUNCH, XLA_CALL, CompiledGraph, graphs_of
from wavecast.traces.recomputed import blocks, recomputed
from wavecast.traces.step import Call, Op, Phase

Seconds = NDArray[np.float64]
"""One time for each call of a step, in seconds."""


class HostModel(Hashable, Protocol):
    """The interface of hosts, which `Host`, `GraphedHost` and `RecordedHost` implement."""

    @property
    def name(self) -> str:
        """The name that reports print after "host:"."""
        ...

    @property
    def trip_s(self) -> float:
        """Seconds that one synchronisation costs beyond waiting for the GPU to finish."""
        ...

    @property
    def known(self) -> bool:
        """Whether this host was calibrated. Ranges are narrower then."""
        ...

    def issue_times(self, calls: Sequence[Call]) -> Seconds:
        """The host's time for each call, waiting not included."""
        ...

    def kernel_gaps(self, calls: Sequence[Call]) -> Seconds | None:
        """The GPU's idle time between the kernels of each call. None to keep the measured gaps."""
        ...


INNER_VIEW = 0.11
"""What a view that `linear` or `matmul` makes by itself costs, as a share of a view in Python code,
where no autograd records it. Under no_grad, `linear` of three dimensions takes 0.9 us more for each
of its views than the matmul alone (CPU, torch 2.13), where an op from Python takes 2.5 us; the
reference host takes 3.15 us for that op. With autograd these views are in the fitted costs."""

RECOMPUTED = 127.0
"""What checkpointing adds for a block that is computed again, as a number of forward ops issued
from Python: the function itself, hooks for the tensors that autograd keeps, in both passes, and the
state of random numbers. The median over six machines of the median over their steps, which is 97 to
148 (`python -m lab fit recomputed`)."""

MEASURED_BLOCKS = (36, 80)
"""The calls of the smallest and the largest block that was measured. Beyond them, blocks are taken
to cost in proportion, since they keep fewer or more tensors."""


@dataclass(frozen=True)
class Host:
    """The costs of issuing work from Python through dispatcher, autograd and driver, in seconds.

    >>> from wavecast.hardware.hosts import REFERENCE_HOST
    >>> REFERENCE_HOST.scaled(2).name
    'reference (a cloud VM) x2'
    """

    name: str
    """The name that reports print after "host:"."""
    forward_s: float
    """Issuing one op from Python, in the forward pass or outside of both passes."""
    autograd_s: float
    """Recording one forward op for the backward pass. A step without one does not incur it."""
    backward_s: float
    """Issuing one op of the backward pass, where C++ issues it."""
    other_s: float
    """Issuing one optimizer op on lists of tensors, grouping the tensors included."""
    view_s: float
    """Issuing one op that launches no kernel."""
    module_s: float
    """Entering another module in the forward pass."""
    convolution_s: float
    """cuDNN's search for its execution plan, for one matmul of a convolution."""
    kernel_s: float
    """Issuing each further kernel of an op. Recurrent layers and sorts launch many."""
    tensor_s: float
    """Handling one tensor in the lists of an optimizer op."""
    step_s: float
    """The fixed cost of a training iteration beside its ops: gradients are cleared, the backward
    pass starts its thread, the optimizer goes through its parameters."""
    sync_s: float
    """The delay from the end of the GPU's work until the waiting host continues."""
    launch_s: float = 0.0
    """The delay from issuing an op until it starts on an idle GPU."""
    graph_s: float = 0.0
    """Launching a step that was captured as a CUDA graph."""
    node_s: float = 0.0
    """Launching one kernel of such a graph."""
    known: bool = False
    """Whether this host was calibrated (`wavecast calibrate`). Ranges are narrower then."""
    hooks: float = RECOMPUTED
    """What checkpointing adds for a block that is computed again, as a number of forward ops."""
    source: str = ""
    """Where its costs come from."""

    @property
    def trip_s(self) -> float:
        """Seconds that one synchronisation costs beyond waiting for the GPU to finish.

        The GPU has run out of work by then, so the next launch reaches it late.
        """
        return self.launch_s + self.sync_s

    def scaled(self, factor: float) -> Host:
        """This host with every cost multiplied by `factor`; with 0 only the GPU counts."""
        _check_factor(factor)
        scaled_costs = {name: getattr(self, name) * factor for name in COSTS}
        return replace(self, name=f"{self.name} x{factor:g}", **scaled_costs)

    def issue_times(self, calls: Sequence[Call]) -> Seconds:
        """The host's time for each call, waiting not included."""
        costs = np.array([getattr(self, name) for name in COSTS])
        times: Seconds = demands(calls, self.hooks) @ costs
        return times

    def kernel_gaps(self, calls: Sequence[Call]) -> Seconds | None:
        """None, so that the measured gaps between kernels are kept."""
        return None

    def graphed(self, by_pass: bool = False) -> GraphedHost:
        """This host when it replays the whole step as one CUDA graph, or each pass as one."""
        return GraphedHost(self, by_pass)


COSTS = tuple(field.name for field in fields(Host) if field.name.endswith("_s"))
"""The names of all costs of a `Host`, in the order of its fields."""


def demands(
    calls: Sequence[Call], hooks: float = RECOMPUTED, inner_view: float = INNER_VIEW
) -> NDArray[np.float64]:
    """How often each call incurs each cost: a row per call, a column per cost.

    Activations that are computed again in the backward pass (checkpointing) are issued by Python
    and recorded by autograd, as in the forward pass; each block begins with the extra cost of
    checkpointing. The player adds synchronisations.
    """
    column = {name: index for index, name in enumerate(COSTS)}
    graphs = graphs_of(calls)
    issuers, again = _issuers(calls, graphs), recomputed(calls)
    phases = [Phase.FORWARD if at in again else call.phase for at, call in enumerate(calls)]
    kinds: dict[tuple[Op, Phase, str], int] = {}
    kind_of = [
        kinds.setdefault((call.op, phase, issuer), len(kinds))
        for call, phase, issuer in zip(calls, phases, issuers, strict=True)
    ]
    rows = np.zeros((len(kinds), len(COSTS)))
    for row, kind in enumerate(kinds):
        for name, times in _costs_of_call(*kind):
            rows[row, column[name]] = times
    counts: NDArray[np.float64] = rows[np.array(kind_of, dtype=int)]
    for graph in graphs:
        if graph.is_replayed:
            counts[graph.marks[-1], column["node_s"]] = len(graph.members)
    modules = [None, *(call.module for call in calls)]
    entered = [
        row
        for row, call in enumerate(calls)
        if phases[row] is Phase.FORWARD and call.module != modules[row] and not issuers[row]
    ]
    counts[entered, column["module_s"]] = 1
    by_python = [row for row in again if not issuers[row]]
    if any(call.phase is Phase.BACKWARD for call in calls):
        forward = np.array(
            [phase is Phase.FORWARD and not i for phase, i in zip(phases, issuers, strict=True)]
        )
        counts[forward, column["autograd_s"]] = counts[forward, column["forward_s"]]
        for block in blocks(by_python):
            usual = float(np.clip(len(block), *MEASURED_BLOCKS))
            counts[block[0], column["forward_s"]] += hooks * len(block) / usual
        counts[0, column["step_s"]] = calls[0].op.name != XLA_CALL
        trained = [c.op.name == CALL and c.phase in _BY_PHASE for c in calls]
        # What weights cost that are trained, compiled or not, is in the optimizer's tensor_s.
        counts[trained, column["forward_s"]] = COMPILED[CALL]
    else:
        counts[inner_views(calls), column["view_s"]] *= inner_view
    return counts


def _issuers(calls: Sequence[Call], graphs: Sequence[CompiledGraph]) -> list[str]:
    """The compiled code that issues each call, or replays it as a CUDA graph; empty if none."""
    issuers = [call.op.name if call.op.name in fused.HOST_CALLS else "" for call in calls]
    for graph in graphs:
        for position in graph.members:
            issuers[position] = GRAPH_LAUNCH if graph.is_replayed else CALL
    return issuers


@lru_cache(maxsize=1 << 14)  # the parts of a model have equal ops, whatever the strategy
def _costs_of_call(op: Op, phase: Phase, issuer: str) -> tuple[tuple[str, float], ...]:
    return tuple(_costs_of_issued(op, phase, issuer))


def _costs_of_issued(op: Op, phase: Phase, issuer: str) -> Iterator[tuple[str, float]]:
    if op.name == GRAPH_LAUNCH:
        yield "graph_s", 1
    elif op.name in fused.HOST_CALLS:
        each = COMPILED["xla.input" if op.name == XLA_CALL else "input"]
        yield "forward_s", COMPILED[op.name] + each * integer(op, "inputs")
    elif issuer == CALL and ops.launches(op):
        kind = ops.kind(op)
        yield "forward_s", COMPILED["attention" if kind is Kind.ATTENTION else "launch"]
        if kind is not Kind.ATTENTION:
            yield from _costs_of_kernels(op, phase)
    elif not issuer:
        yield from _costs_of_op(op, phase)


def _costs_of_op(op: Op, phase: Phase) -> Iterator[tuple[str, float]]:
    if not ops.launches(op):
        yield "view_s", 1
        return
    is_list = ops.kind(op) is Kind.OPTIMIZER
    if is_list and op.attr(DIRECT, False):
        yield from ((cost, times * DIRECTLY[cost]) for cost, times in _costs_of_list(op))
        return
    name = _BY_PHASE.get(phase, "other_s" if is_list else "forward_s")
    more = IN_PYTHON.get(op.base, 0.0) + (IN_FUNCTION if op.attr(FUNCTION, False) else 0.0)
    yield name, 1 + (more if name == "forward_s" else 0.0)
    if more and name != "forward_s":
        yield "forward_s", more
    yield from _costs_of_kernels(op, phase)


def _costs_of_kernels(op: Op, phase: Phase) -> Iterator[tuple[str, float]]:
    """The costs of an op beyond those of an op with one kernel."""
    match ops.kind(op):
        case Kind.CONVOLUTION:
            yield "convolution_s", 2 if phase is Phase.BACKWARD else 1
        case Kind.OPTIMIZER:
            yield "tensor_s", len(op.inputs)
        case _:
            yield "kernel_s", max(ops.kernels(op) - 1, 0)


def _costs_of_list(op: Op) -> Iterator[tuple[str, float]]:
    yield "other_s", 1
    yield "tensor_s", len(op.inputs)


_BY_PHASE = {Phase.FORWARD: "forward_s", Phase.BACKWARD: "backward_s"}


_REFERENCE = shipped_toml("hosts/reference.toml")

REFERENCE_HOST = Host(
    name="reference (a cloud VM)",
    source="fitted on steps that waited for their host, on virtual machines with an H200",
    **_REFERENCE["costs"],
)
"""The host that predictions assume by default; its file says how its costs were fitted."""

COMPILED: dict[str, float] = shipped_toml("hosts/compiled.toml")["forward_ops"]
"""The host's cost of compiled code, as a number of forward ops issued from Python. It is Python
code as well, so it scales with the host."""

IN_PYTHON = {
    "bitsandbytes.dequantize_4bit": 4.0,
    "bitsandbytes.gemm_4bit": 6.0,
    "bitsandbytes.int8_scaled_mm": 2.0,
}
"""What the Python code of a library adds to an op, as a number of forward ops: quantisation states,
checks and calls through ctypes. From the host's times in the recorded steps `eight-bit` and
`llama-qlora-checkpointing` (measurements/h200/traces/huggingface.npz), on a host that needs 1.34
times the reference's time for the ops of `llama-lora`. A matmul in 4 bits took 0.21 ms."""

FUNCTION = "in_function"
"""The attribute of an op that is a Triton kernel, launched by an autograd function in Python."""
IN_FUNCTION = 8.7
"""What such a function adds to an op, as a number of forward ops: the function itself, its results
and Triton's launch. The median of nine differences between decoders with and without such norms and
rotary positions (measurements/h200/framework_decoders.json), which are noisy: 152 us for each
function, of -36 to 259 us; the difference of the plain ops that they replace is added."""

DIRECT = "direct"
"""The attribute of a call on lists of tensors that is no part of one of torch's optimizers."""
DIRECTLY = {
    name: _REFERENCE["cuda"][name] / _REFERENCE["costs"][name] for name in ("other_s", "tensor_s")
}
"""What such a call costs, relative to one of torch's optimizers, whose Python collects the tensors
and their states: the host benchmark calls such an op directly."""

GRAPH_GAP_S: float = _REFERENCE["graph"]["gap_s"]
"""Seconds that the GPU idles between two kernels of a CUDA graph."""


@dataclass(frozen=True)
class GraphedHost:
    """A host that replays the whole step as one CUDA graph, so that no single op costs it time.

    Of several micro-batches each is a graph, or in a pipeline each of their passes.
    """

    host: Host
    by_pass: bool = False
    """Whether forward and backward pass are graphs of their own."""
    known: bool = False

    @property
    def name(self) -> str:
        """The name of the host, and what it replays."""
        return f"{self.host.name}, {'each pass ' if self.by_pass else ''}as one CUDA graph"

    @property
    def trip_s(self) -> float:
        """Seconds that one synchronisation costs beyond waiting for the GPU to finish."""
        return self.host.trip_s

    def scaled(self, factor: float) -> GraphedHost:
        """This host with every cost multiplied by `factor`."""
        return replace(self, host=self.host.scaled(factor))

    def kernel_gaps(self, calls: Sequence[Call]) -> Seconds | None:
        """The GPU's idle time between the kernels of each call."""
        return GRAPH_GAP_S * kernels(calls)

    def issue_times(self, calls: Sequence[Call]) -> Seconds:
        """The host's time for each call: the first of a graph carries the launch of all of it."""
        times = np.zeros(len(calls))
        in_backward = (at for at, call in enumerate(calls) if call.phase is Phase.BACKWARD)
        turn = next(in_backward, 0) if self.by_pass else 0
        for begin, end in {(0, turn or len(calls)), (turn, len(calls))}:
            nodes = kernels(calls[begin:end]).sum()
            times[begin:end][:1] = self.host.graph_s + self.host.node_s * nodes
        return times


def kernels(calls: Sequence[Call]) -> Seconds:
    """How many kernels each call runs: the recorded number, else the least that its op launches."""
    if any(call.kernels for call in calls):
        return np.array([float(len(call.kernels)) for call in calls])
    counts = {op: float(ops.kernels(op)) for op in {call.op for call in calls}}
    return np.array([counts[call.op] for call in calls])


@dataclass(frozen=True)
class RecordedHost:
    """The host on which a step was measured: each call costs the time recorded for it."""

    name: str = "that of the measurement"
    factor: float = 1.0
    """The recorded times are multiplied by this."""
    trip_s: float = 0.0
    known: bool = False

    def kernel_gaps(self, calls: Sequence[Call]) -> Seconds | None:
        """None, so that the measured gaps between kernels are kept."""
        return None

    def scaled(self, factor: float) -> RecordedHost:
        """This host with every cost multiplied by `factor`; with 0 only the GPU counts."""
        _check_factor(factor)
        return replace(self, name=f"{self.name} x{factor:g}", factor=self.factor * factor)

    def issue_times(self, calls: Sequence[Call]) -> Seconds:
        """The host's time for each call, waiting not included."""
        return np.array([call.host_s or 0.0 for call in calls]) * self.factor


def _check_factor(factor: float) -> None:
    if not 0 <= factor < math.inf:
        raise InvalidInput(
            f"the host factor must be 0 or above, not {factor}: 2 is a host half as "
            "fast as the reference, 0 one that costs nothing"
        )


# Processors, and how fast one thread of each issues work, by its clock and its generation
# (data/processors.toml). Only that of the reference host was measured.


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor, as far as the speed of one thread depends on it."""

    name: str
    core: str
    """Its generation."""
    boost_hz: float
    """The highest clock of one core."""
    work_per_clock: float
    """What one core of this generation does in a clock, relative to Intel's Skylake."""
    memory_bytes_per_s: float | None = None
    """The bandwidth of the memory of one socket, all channels together. None if unknown."""

    @property
    def speed(self) -> float:
        """The speed of one thread; only ratios have a meaning."""
        return self.boost_hz * self.work_per_clock


@functools.cache
def processors() -> dict[str, Processor]:
    """The known processors by name."""
    table = shipped_toml("processors.toml")
    work = {core: fact["value"] for core, fact in table["work_per_clock"].items()}
    return {
        name: Processor(
            name,
            facts["core"],
            facts["boost_hz"]["value"],
            work[facts["core"]],
            facts.get("memory_bytes_per_s", {}).get("value"),
        )
        for name, facts in table["processors"].items()
    }


def reference_processor() -> Processor:
    """The processor of the reference host."""
    return processors()[shipped_toml("processors.toml")["reference"]["value"]]


_SCALED = "those of the reference host, scaled to the speed of one thread"


@dataclass(frozen=True, slots=True)
class UsualHost:
    """A host of a usual kind, which stands for machines that nobody has calibrated."""

    name: str
    about: str
    processor: Processor
    sustained: float
    """The share of the highest clock that a thread keeps."""
    source: str
    """Where that share is from."""

    @property
    def factor(self) -> float:
        """The time that it takes, relative to the reference host."""
        return reference_processor().speed / (self.processor.speed * self.sustained)

    @property
    def host(self) -> Host:
        """The host, for predictions."""
        name = f"{self.name} (as {self.processor.name}: reference x{self.factor:.2f})"
        kept = f"it keeps {self.sustained:.0%} of its highest clock ({self.source})"
        source = f"{_SCALED}; {kept}"
        return replace(REFERENCE_HOST.scaled(self.factor), name=name, source=source)


@functools.cache
def usual_hosts() -> dict[str, UsualHost]:
    """Hosts of usual kinds by name, the fastest first.

    >>> list(usual_hosts())[:3]
    ['desktop', 'workstation', 'laptop']
    """
    hosts = [
        UsualHost(
            name=name,
            about=facts["about"],
            processor=processors()[facts["processor"]],
            sustained=facts["sustained"]["value"],
            source=facts["sustained"]["source"],
        )
        for name, facts in shipped_toml("usual_hosts.toml").items()
    ]
    return {host.name: host for host in sorted(hosts, key=lambda host: host.factor)}


def host_of(cluster: Cluster) -> Host:
    """The reference host, scaled to the processor of a cluster.

    It is not scaled if the cluster names no processor, or an unknown one.

    >>> from wavecast.hardware.clusters import cluster
    >>> host_of(cluster("dgx-a100")).name
    'reference, scaled to AMD EPYC 7742 (x1.54)'
    """
    processor = processors().get(cluster.node.processor or "")
    if processor is None:
        return REFERENCE_HOST
    factor = reference_processor().speed / processor.speed
    name = f"reference, scaled to {processor.name} (x{factor:.2f})"
    return replace(REFERENCE_HOST.scaled(factor), name=name, source=_SCALED)


def update_rate(cluster: Cluster) -> float | None:
    """The bytes per second that an optimizer moves in the memory of a machine's host.

    All ranks share it. None if the bandwidth of that memory is unknown.

    >>> from wavecast.hardware.clusters import cluster
    >>> f"{update_rate(cluster('dgx-2')):.3g}"
    '1.09e+11'
    """
    node = cluster.node
    bandwidth = node.memory_bytes_per_s
    processor = processors().get(node.processor or "")
    if bandwidth is None and processor is not None and processor.memory_bytes_per_s is not None:
        bandwidth = processor.memory_bytes_per_s * node.sockets
    if bandwidth is None:
        return None
    attained: float = shipped_toml("processors.toml")["attained_by_optimizers"]["value"]
    return bandwidth * attained


_OF_LINEAR = ("aten.t", "aten.view")
_OF_MATMUL = ("aten.expand", "aten.view", "aten._unsafe_view")


def inner_views(calls: Sequence[Call]) -> list[int]:
    """The positions of views that an op written in C++ makes by itself.

    Python issues one op, and torch's dispatcher sees four or five; such views cost a fraction of a
    view in Python code. `linear` runs t, view, mm, _unsafe_view without a bias, and view, t, addmm,
    view with one. `matmul` runs expand and view of both sides, bmm and _unsafe_view.
    """
    names = [call.op.base for call in calls]
    inner = {at for at, name in enumerate(names) if name == "aten._unsafe_view"}
    for at, name in enumerate(names):
        if name in ("aten.mm", "aten.addmm"):
            inner.update(_around_linear(names, at))
        elif name == "aten.bmm" and names[at + 1 : at + 2] == ["aten._unsafe_view"]:
            inner.update(_right_before(names, at, _OF_MATMUL))
    return sorted(inner)


def _around_linear(names: Sequence[str], at: int) -> list[int]:
    """The views around the matmul of a `linear`; empty if its weight is not transposed there."""
    before = _right_before(names, at, _OF_LINEAR)[:2]
    if not any(names[position] == "aten.t" for position in before):
        return []
    has_bias = names[at] == "aten.addmm"
    return [*before, at + 1] if has_bias and names[at + 1 : at + 2] == ["aten.view"] else before


def _right_before(names: Sequence[str], at: int, views: Collection[str]) -> list[int]:
    """The positions of the views right before a call, the nearest first."""
    first = at
    while first > 0 and names[first - 1] in views:
        first -= 1
    return list(range(at - 1, first - 1, -1))
