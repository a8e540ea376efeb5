"""The calls of a recorded step: each op with its kernels and the host's time for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wavecast.errors import InvalidInput
from wavecast.frameworks.kineto import op_names
from wavecast.frameworks.kineto.event_tree import Inherited, Node, enclosing
from wavecast.frameworks.kineto.events import RUNTIME_CATEGORIES
from wavecast.frameworks.kineto.fused_kernels import fused_op
from wavecast.frameworks.kineto.host_time import shares_s, synchronizes
from wavecast.frameworks.kineto.op_description import collective, describe
from wavecast.frameworks.kineto.phases_and_modules import places_of, settle
from wavecast.frameworks.kineto.recorded_step import KernelRun, ProfileRecording
from wavecast.frameworks.kineto.schema import op_of
from wavecast.traces.kernel_names import is_triton
from wavecast.traces.overlap import Interval
from wavecast.traces.step import Call, Op, Phase

MOST_DIFFERENT_OPS = 20_000
"""The most different ops of a step, since each takes time. Real steps have a few hundred."""
MOST_OUTPUTS = 1_000_000
"""The most tensors that all ops of a step together return."""


@dataclass
class _Draft:
    """A call under construction."""

    runs: list[KernelRun] = field(default_factory=list)
    syncs: bool = False

    @property
    def kernels(self) -> tuple[str, ...]:
        return tuple(run.kernel.name for run in self.runs)


@dataclass(frozen=True)
class _Exchange:
    """A collective, or a message between two GPUs."""

    name: str
    """Its name in a trace, such as `nccl.all_reduce`."""
    recorded: Mapping[str, Any]
    annotated: bool
    """Whether an `nccl:` range of the profiler named it, which shows that data was sent."""


def calls_of(
    recording: ProfileRecording, window: Interval | None, waits: list[Interval]
) -> tuple[Call, ...]:
    """The calls of a step, in the order in which the host issued them.

    Args:
        recording: the recorded step.
        window: when the host worked on the step. None if the file has no events of the host.
        waits: when the host waited: intervals in order that do not overlap.
    """
    exchanges = _exchanges(recording.nodes)
    drafts = _with_kernels(recording)
    _add_silent(recording.nodes, exchanges, drafts)
    _mark_synchronizations(recording.nodes, drafts)
    order = sorted(drafts, key=lambda node: node.span.begin_us)
    places = places_of(recording.nodes)
    streams = _stream_numbers(recording.runs)
    shares: list[float | None] = [None] * len(order)
    if window is not None and order:
        shares[:] = shares_s([node.span.begin_us for node in order], window, waits)
    placed: list[tuple[float, Call]] = []
    costs = _Costs()
    for node, host_s in zip(order, shares, strict=True):
        draft = drafts[node]
        op = _op(node, draft.kernels, exchanges.get(node))
        costs.add(op)
        call = Call(
            op=op,
            phase=places.phase(node, draft.kernels),
            module=places.module(node),
            stream=streams[draft.runs[0].kernel.stream] if draft.runs else 0,
            syncs=draft.syncs,
            kernels=tuple(run.kernel for run in draft.runs),
            host_s=host_s,
        )
        placed.append((node.span.begin_us, call))
    placed += [(run.begin_us, _orphan(run, streams)) for run in recording.orphans]
    return tuple(settle([call for _, call in sorted(placed, key=lambda pair: pair[0])]))


class _Costs:
    """The work for the ops of a file: how many are different, and how many outputs they have."""

    def __init__(self) -> None:
        self._known = op_of.cache_info().misses
        self._outputs = 0

    def add(self, op: Op) -> None:
        """Count an op.

        Raises:
            InvalidInput: no real step has so many.
        """
        self._outputs += len(op.outputs)
        different = op_of.cache_info().misses - self._known
        if different > MOST_DIFFERENT_OPS or self._outputs > MOST_OUTPUTS:
            raise InvalidInput(
                f"a step of this profiler file has more than {MOST_DIFFERENT_OPS} different ops or "
                f"{MOST_OUTPUTS} outputs; mark its steps with prof.step(), or record fewer"
            )


def _with_kernels(recording: ProfileRecording) -> dict[Node, _Draft]:
    """The ops that launched kernels, each with its kernels in order of time."""
    drafts: dict[Node, _Draft] = {}
    owners = op_names.Owners()
    for launch, runs in recording.launched.items():
        owner = owners.of(launch, runs[0].kernel.name)
        drafts.setdefault(owner, _Draft()).runs.extend(runs)
    for draft in drafts.values():
        draft.runs.sort(key=lambda run: run.begin_us)
    return drafts


def _add_silent(
    nodes: Sequence[Node], exchanges: Mapping[Node, _Exchange], drafts: dict[Node, _Draft]
) -> None:
    """Add the ops that launched nothing, such as views and allocations: they take host time."""
    recognised = {node for node in nodes if _is_known(node)}
    busy = enclosing(drafts)
    splitting = enclosing(node.parent for node in recognised if node.parent is not None)
    communications = op_names.communications()
    has_call = Inherited(lambda node: node in drafts or None)
    for node in nodes:
        if node not in recognised or node in busy:
            continue
        if op_names.is_split(op_names.op_name(node), always=node not in splitting):
            continue
        outermost = communications.of(node)
        if outermost is not None and not (node is outermost and _is_annotated(node, exchanges)):
            continue
        if not has_call.of(node.parent):
            drafts[node] = _Draft()


def _is_known(node: Node) -> bool:
    if op_names.is_communication_node(node):
        return True
    return node.span.category == "cpu_op" and op_names.kind_of(op_names.op_name(node)) is not None


def _is_annotated(node: Node, exchanges: Mapping[Node, _Exchange]) -> bool:
    return node in exchanges and exchanges[node].annotated


def _mark_synchronizations(nodes: Iterable[Node], drafts: dict[Node, _Draft]) -> None:
    """Mark the ops in which the host waits. A synchronisation outside any op becomes a call."""
    for node in nodes:
        if node.span.category not in RUNTIME_CATEGORIES or not synchronizes(node.name):
            continue
        owner = next((outer for outer in node.path() if outer in drafts), None)
        if owner is None and op_names.synchronization_name(node.name) is not None:
            owner = node
            drafts[node] = _Draft()
        if owner is not None:
            drafts[owner].syncs = True


def _exchanges(nodes: Iterable[Node]) -> dict[Node, _Exchange]:
    """The collectives and messages of a step, by their outermost node."""
    names: dict[Node, str] = {}
    records: dict[Node, Mapping[str, Any]] = {}
    annotated: set[Node] = set()
    communications = op_names.communications()
    for node in nodes:
        outermost = communications.of(node)
        if outermost is None:
            continue
        named = node.span.arguments.get("Collective name")
        if isinstance(named, str):
            records.setdefault(outermost, node.span.arguments)
        if node.name.startswith("nccl:") and outermost not in annotated:
            annotated.add(outermost)
            names[outermost] = node.name
        elif node is outermost or outermost not in annotated:
            names[outermost] = named if isinstance(named, str) else names.get(outermost, node.name)
    return {
        node: _Exchange(op_names.collective_name(name), records.get(node, {}), node in annotated)
        for node, name in names.items()
    }


def _op(node: Node, kernels: tuple[str, ...], exchange: _Exchange | None) -> Op:
    if node.span.category in RUNTIME_CATEGORIES:
        waiting = op_names.synchronization_name(node.name)
        return Op(waiting or op_names.launch_name(node.name, kernels), (), ())
    if exchange is not None:
        return collective(exchange.name, exchange.recorded)
    name = op_names.op_name(node)
    if is_triton(name):
        return fused_op(name, node.span.arguments)
    return describe(name, node.span.arguments, kernels)


def _orphan(run: KernelRun, streams: Mapping[int, int]) -> Call:
    """The call for a kernel whose launch is not in the file."""
    return Call(
        op=Op(op_names.launch_name("", (run.kernel.name,)), (), ()),
        phase=Phase.OTHER,
        stream=streams[run.kernel.stream],
        kernels=(run.kernel,),
        host_s=0.0,
    )


def _stream_numbers(runs: Iterable[KernelRun]) -> dict[int, int]:
    """New numbers for the streams: 0 for the busiest one, then 1, 2, ... by descending time."""
    spent: dict[int, float] = {}
    for run in runs:
        spent[run.kernel.stream] = spent.get(run.kernel.stream, 0.0) + run.kernel.seconds
    ordered = sorted(spent, key=lambda stream: (-spent[stream], stream))
    return {stream: number for number, stream in enumerate(ordered)}
