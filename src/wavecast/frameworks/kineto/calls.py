"""The calls of a recorded step: each op with its kernels and the host's time for it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from wavecast.errors import InvalidInput
from wavecast.frameworks.kineto import events
from wavecast.frameworks.kineto.events import (
    GPU_CATEGORIES,
    RUNTIME_CATEGORIES,
    Event,
    Inherited,
    Node,
    Span,
    arguments_of,
    category_of,
    enclosing,
    has_possible_time,
    kernel_of,
    kind_of,
    name_of,
    nest,
    number,
    read_events,
    shares_s,
    synchronizes,
)
from wavecast.frameworks.kineto.schema import NUMBER, Argument, arguments_in, op_of
from wavecast.frameworks.kineto.survey import ProfiledStep, Survey, correlation_of
from wavecast.ops import Kind, is_readable
from wavecast.ops.fused import FUSED
from wavecast.reading import LARGEST_VALUES_BYTES, size_factor
from wavecast.traces import kernel_names
from wavecast.traces.file import Interval
from wavecast.traces.kernel_names import copies_to_gpu, is_triton
from wavecast.traces.step import Call, Kernel, Op, Phase, Scalar, TensorSpec

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

    `window` is when the host worked on the step, None if the file has no events of the host.
    `waits` are ordered intervals, without overlap, in which it waited.
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
        """Count an op; InvalidInput if there are more than a real step has."""
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
    owners = events.Owners()
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
    communications = events.communications()
    has_call = Inherited(lambda node: node in drafts or None)
    for node in nodes:
        if node not in recognised or node in busy:
            continue
        if events.is_split(events.op_name(node), always=node not in splitting):
            continue
        outermost = communications.of(node)
        exchange = exchanges.get(node) if node is outermost else None
        if outermost is not None and (exchange is None or not exchange.annotated):
            continue
        if not has_call.of(node.parent):
            drafts[node] = _Draft()


def _is_known(node: Node) -> bool:
    if events.is_communication_node(node):
        return True
    return node.span.category == "cpu_op" and events.kind_of(events.op_name(node)) is not None


def _mark_synchronizations(nodes: Iterable[Node], drafts: dict[Node, _Draft]) -> None:
    """Mark the ops in which the host waits. A synchronisation outside any op becomes a call."""
    for node in nodes:
        if node.span.category not in RUNTIME_CATEGORIES or not synchronizes(node.name):
            continue
        owner = next((outer for outer in node.path() if outer in drafts), None)
        if owner is None and events.synchronization_name(node.name) is not None:
            owner = node
            drafts[node] = _Draft()
        if owner is not None:
            drafts[owner].syncs = True


def _exchanges(nodes: Iterable[Node]) -> dict[Node, _Exchange]:
    """The collectives and messages of a step, by their outermost node."""
    names: dict[Node, str] = {}
    records: dict[Node, Mapping[str, Any]] = {}
    annotated: set[Node] = set()
    communications = events.communications()
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
        node: _Exchange(events.collective_name(name), records.get(node, {}), node in annotated)
        for node, name in names.items()
    }


def _op(node: Node, kernels: tuple[str, ...], exchange: _Exchange | None) -> Op:
    if node.span.category in RUNTIME_CATEGORIES:
        waiting = events.synchronization_name(node.name)
        return Op(waiting or events.launch_name(node.name, kernels), (), ())
    if exchange is not None:
        return collective(exchange.name, exchange.recorded)
    name = events.op_name(node)
    if is_triton(name):
        return fused_op(name, node.span.arguments)
    return describe(name, node.span.arguments, kernels)


def _orphan(run: KernelRun, streams: Mapping[int, int]) -> Call:
    """The call for a kernel whose launch is not in the file."""
    return Call(
        op=Op(events.launch_name("", (run.kernel.name,)), (), ()),
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


# The Op of a profiler event: its name, tensors and attributes as in traces of our own.


_PUTS = ("aten.index_put", "aten._index_put_impl_")
_COPIES = ("aten._to_copy", "aten.copy_")

# Ops whose float32 matmuls may run in TF32, which only the names of their kernels show.
_PRODUCTS = frozenset(
    f"aten.{name}"
    for name in """
    mm addmm bmm baddbmm addmv mv convolution convolution_backward _cudnn_rnn _cudnn_rnn_backward
    """.split()
)

# The names of data types in the records of collectives (c10::toString).
_DTYPES = {
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Float": "float32",
    "Double": "float64",
    "Bool": "bool",
}


def describe(name: str, recorded: Mapping[str, Any], kernels: Sequence[str]) -> Op:
    """The op of a profiler event."""
    arguments = arguments_in(recorded, kernels)
    op = Op(name, (), ()) if arguments is None else _whole(_with_indices(op_of(name, arguments)))
    return _with_precision(_placed(op, kernels), kernels)


@lru_cache(maxsize=8192)
def _whole(op: Op) -> Op:
    """The op; without its tensors if the recorded ones are incomplete."""
    # The formulas expect all tensors and attributes that our own traces have.
    return op if is_readable(op) else Op(op.name, (), ())


def _with_indices(op: Op) -> Op:
    """An `index_put` with the tensor of its indices, which the profiler does not write.

    The values have the shape of the indices in place of the first dimension. Of `index`, nothing
    tells how much it fetched.
    """
    if not op.base.startswith(_PUTS) or len(op.inputs) != 2:
        return op
    target, values = op.inputs
    row = target.shape[1:]
    rows = values.shape[: len(values.shape) - len(row)]
    if not rows or values.shape[len(rows) :] != row:
        return op
    return replace(op, inputs=(target, TensorSpec(rows, "int64"), values))


def _placed(op: Op, kernels: Sequence[str]) -> Op:
    """The op with the host's tensors marked, guessed from the kernels: the file does not say."""
    if not kernels:
        on_gpu = kind_of(op.name) in (None, Kind.VIEW, Kind.SYNC, Kind.COLLECTIVE)
        return op if on_gpu else replace(op, inputs=_host(op.inputs), outputs=_host(op.outputs))
    if op.base not in _COPIES or not op.inputs:
        return op
    *target, source = op.inputs
    if kernel_names.copies_to_gpu(kernels[0]):
        return replace(op, inputs=(*target, *_host((source,))))
    if kernel_names.copies_to_host(kernels[-1]):
        return replace(op, inputs=(*_host(target), source), outputs=_host(op.outputs))
    return op


def _host(tensors: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    return tuple(replace(tensor, device="cpu") for tensor in tensors)


def _with_precision(op: Op, kernels: Sequence[str]) -> Op:
    if op.base not in _PRODUCTS or not kernels:
        return op
    rounded = any(kernel_names.rounds_to_tf32(kernel) for kernel in kernels)
    single = bool(op.inputs) and op.inputs[0].dtype == "float32"
    if single or (rounded and not op.inputs):
        return replace(op, attrs=(*op.attrs, ("precision", "tf32" if rounded else "ieee")))
    return op


def collective(name: str, recorded: Mapping[str, Any]) -> Op:
    """The op of a communication between GPUs."""
    attrs: tuple[tuple[str, Scalar], ...] = ()
    group = recorded.get("Group size")
    if isinstance(group, int) and group > 0:
        attrs = (("group_size", group),)
    dtype = _DTYPES.get(str(recorded.get("dtype")))
    sent, received = (_flat(recorded.get(f"{way} msg nelems"), dtype) for way in ("In", "Out"))
    return Op(name, sent, received, attrs)


def _flat(count: Any, dtype: str | None) -> tuple[TensorSpec, ...]:
    whole = isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 1 << 48
    return (TensorSpec((count,), dtype),) if whole and dtype else ()


# Triton kernels of torch.compile in a profile, as ops. The profiler records tensors, points and the
# length of sums, but neither which tensors are written nor what is computed.


_POINTWISE, _LOOPED, _PERSISTENT, _LISTS = FUSED
_KINDS = {"poi": _POINTWISE, "red": _LOOPED, "per": _PERSISTENT, "for": _LISTS}
"""The third to sixth letters of a kernel's name after "triton_"."""


def fused_op(name: str, recorded: Mapping[str, Any]) -> Op:
    """The op of a Triton kernel. It has only a name without shapes, or if it is not Inductor's."""
    unknown = Op(f"triton.{name}", (), ())
    kind = _KINDS.get(name.removeprefix("triton_").partition("_")[0])
    arguments = arguments_in(recorded)
    if not is_triton(name) or kind is None or not arguments:
        return unknown
    tensors = [tensor for argument in arguments for tensor in argument.tensors or ()]
    tensors = [tensor for tensor in tensors if tensor.shape]
    if not tensors:
        return unknown
    points, reduction = _extent(kind, [_whole_number(argument) for argument in arguments], tensors)
    *read, written = tensors
    attrs = (
        ("points", points),
        ("reduction", reduction),
        ("read_bytes", sum(tensor.touched_bytes for tensor in read)),
        ("write_bytes", written.touched_bytes),
        ("loads", float(len(read))),
        ("kernel", name),
    )
    return Op(kind, tuple(read), (written,), attrs)


def _whole_number(argument: Argument) -> int | None:
    """The value of an argument that is a whole number."""
    if argument.tensors and argument.type != NUMBER:
        return None
    text = argument.value or ""
    return int(text) if text.isdecimal() and len(text) < 16 else None


def _extent(kind: str, values: list[int | None], tensors: list[TensorSpec]) -> tuple[int, int]:
    """How many points a kernel computes, and how many terms it adds for each of them."""
    sizes = [value for value in values if value]
    largest = max(tensor.numel for tensor in tensors)
    if kind == _LISTS or not sizes:
        return sum(t.numel for t in tensors) // max(len(tensors), 1) or largest, 1
    if kind == _POINTWISE:
        return math.prod(sizes[-2:]) if math.prod(sizes[-2:]) <= 2 * largest else sizes[-1], 1
    return math.prod(sizes[:-1][-1:]), sizes[-1]


# The phase and the module of each op in a profiler file.


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
        """The module of a forward op, or of the forward op that a backward op belongs to, or ""."""
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
    """The calls, where forward ops after the last backward op become OTHER: they clip gradients or
    compute metrics. The file does not mark the end of the forward pass."""
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


# The events of one step, from the second pass over a profiler file.


MODULE = "nn.Module: "
"""The prefix of the events of modules' forwards, in files with Python's stack (with_stack=True)."""

_USED = (
    *("Input Dims", "Input dims", "Input type", "Input Strides", "Concrete Inputs"),
    *("Collective name", "Group size", "dtype", "In msg nelems", "Out msg nelems"),
    *("correlation", "Sequence number", "Module Hierarchy"),
)
"""The arguments of the host's events that are used. The others are not kept."""

_EVENT_BYTES, _VALUE_BYTES, _DICTIONARY_BYTES = 700, 80, 250
"""The memory of a kept event with its node or kernel, of a value, and of a dictionary."""

_HOST_CATEGORIES = RUNTIME_CATEGORIES | {"cpu_op", "user_annotation"}


@dataclass(frozen=True, slots=True)
class KernelRun:
    """A kernel, copy or fill that the GPU ran, with its times by the file's clock."""

    kernel: Kernel
    correlation: int
    begin_us: float
    end_us: float


@dataclass(frozen=True)
class ProfileRecording:
    """The events of one step."""

    nodes: list[Node]
    """The host's events, ordered by their start."""
    launched: dict[Node, tuple[KernelRun, ...]]
    """The kernels of each runtime call that launched some, in order of time."""
    orphans: tuple[KernelRun, ...]
    """Kernels whose launch is not in the file."""

    @property
    def runs(self) -> list[KernelRun]:
        """All kernels of the step."""
        return [*(run for runs in self.launched.values() for run in runs), *self.orphans]

    def host_window(self) -> Interval | None:
        """From the start of the host's first event to the end of its last, without annotations;
        None if the file has no events of the host."""
        spans = [
            node.span
            for node in self.nodes
            if node.span.category == "cpu_op" or node.span.category in RUNTIME_CATEGORIES
        ]
        if not spans:
            return None
        return min(s.begin_us for s in spans), max(s.end_us for s in spans)


def record(survey: Survey, position: int) -> ProfileRecording:
    """The events of the step at a position of the survey."""
    step = survey.steps[position]
    spans: list[Span] = []
    runs: list[KernelRun] = []
    left_bytes = LARGEST_VALUES_BYTES * size_factor(survey.path)
    belongs = survey.step_of == position
    row = -1
    for event in read_events(survey.path):
        if event.get("ph") != "X":
            continue
        category = category_of(event)
        if category in GPU_CATEGORIES:
            row += 1
            if belongs[row]:
                runs.append(_run(event, step.begin_us))
                left_bytes -= _EVENT_BYTES + len(runs[-1].kernel.name)
        else:
            span = _span(event, category)
            if span is not None and _is_within(span, step):
                spans.append(span)
                left_bytes -= _EVENT_BYTES + len(span.name) + _bytes_of(span.arguments)
        if left_bytes < 0:
            raise InvalidInput(
                f"a step in {survey.path} has too many events to keep them in memory; mark the "
                "steps with prof.step(), or record fewer"
            )
    return _joined(nest(spans), runs)


def _run(event: Event, step_begin_us: float) -> KernelRun:
    begin = number(event.get("ts"))
    kernel = kernel_of(event, step_begin_us)
    correlation = correlation_of(arguments_of(event))
    return KernelRun(kernel, correlation, begin, begin + kernel.seconds * 1e6)


def _span(event: Event, category: str) -> Span | None:
    name = name_of(event)
    if category == "python_function":
        if not name.startswith(MODULE):
            return None
    elif category not in _HOST_CATEGORIES:
        return None
    if not has_possible_time(event):
        return None
    begin = number(event.get("ts"))
    end = begin + max(number(event.get("dur")), 0.0)
    thread = event.get("tid")
    if not isinstance(thread, int | str):
        thread = None
    recorded = arguments_of(event)
    arguments = {name: recorded[name] for name in _USED if name in recorded}
    return Span(name, category, thread, begin, end, arguments)


def _bytes_of(arguments: Mapping[str, Any]) -> int:
    """About how much memory the arguments of an event need."""
    size, rest = 0, list(arguments.values())
    while rest:
        value = rest.pop()
        size += _VALUE_BYTES
        if isinstance(value, list):
            rest += value
        elif isinstance(value, dict):
            rest += value.values()
            size += len(value) * _VALUE_BYTES + _DICTIONARY_BYTES
        elif isinstance(value, str):
            size += len(value)
    return size


def _is_within(span: Span, step: ProfiledStep) -> bool:
    """Whether a span belongs to a step. An op must start in it; a range need only overlap it."""
    if span.category in ("user_annotation", "python_function"):
        return span.begin_us <= step.end_us and span.end_us >= step.begin_us
    return step.begin_us <= span.begin_us <= step.end_us


def _joined(nodes: list[Node], runs: list[KernelRun]) -> ProfileRecording:
    """The recorded step, with each kernel assigned to its launch."""
    launches = {
        correlation: node
        for node in nodes
        if node.span.category in RUNTIME_CATEGORIES
        and (correlation := correlation_of(node.span.arguments)) >= 0
    }
    launched: dict[Node, list[KernelRun]] = {}
    orphans: list[KernelRun] = []
    for run in sorted(runs, key=lambda run: run.begin_us):
        node = launches.get(run.correlation)
        (orphans if node is None else launched.setdefault(node, [])).append(run)
    by_launch = {node: tuple(kernels) for node, kernels in launched.items()}
    return ProfileRecording(nodes, by_launch, tuple(orphans))
