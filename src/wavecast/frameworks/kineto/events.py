"""The events of a profiler file, read one by one, so that a large file needs little memory."""

from __future__ import annotations

import io
import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate, pairwise
from os import PathLike
from pathlib import Path
from typing import Any, Generic, NoReturn, TextIO, TypeVar

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.ops import Kind
from wavecast.reading import (
    LARGEST_UNPACKED_BYTES,
    MissingFile,
    open_file,
    size_factor,
    whole_text,
)
from wavecast.traces import kernel_names
from wavecast.traces.file import Interval, union
from wavecast.traces.step import Kernel, Op

Event = dict[str, Any]

GPU_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
RUNTIME_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver"})
"""The categories of calls to CUDA or HIP: launches, synchronisations, queries."""

# The names of categories in files of PyTorch up to 1.11.
_OLD_CATEGORIES = {
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Operator": "cpu_op",
    "Runtime": "cuda_runtime",
}

LONGEST_US = 3600e6
"""The longest kernel, op or pause of a recording that is believed: an hour. Real ones last seconds,
and what is longer has a broken clock or counter behind it."""

_WANTED = "give a file that torch.profiler wrote (export_chrome_trace)"

_CHUNK_CHARACTERS = 1 << 20
# No event is nearly this long, so a longer value means that the text is not a profile.
_LONGEST_VALUE = 1 << 22
MOST_EVENTS = 1_000_000
"""The most events of a file of up to 10 MB, a third more than real ones have."""
_MOST_VALUES = 48_000_000
"""The most values of such a file, which take the time of reading it."""
_MOST_OTHER = 1 << 24
"""The most characters of all fields of the file besides its events."""
# If a window ends within a number, a word or an escape, the error is at most this far from its end.
_LONGEST_TOKEN = 32
_BETWEEN = re.compile(r"[ \t\r\n,]*")


class _Refused(Exception):
    """The file is not a profile, or larger than a profile is; the message says why."""


_NOT_JSON = f"it is not a valid JSON object; {_WANTED}"
_TOO_LONG = f"a value in it is longer than {_LONGEST_VALUE >> 20} MiB; {_WANTED}"
_TOO_MANY = "it has too many events or values for its size; record fewer steps"


def read_events(path: str | PathLike[str], fields: dict[str, Any] | None = None) -> Iterator[Event]:
    """The events of a .json or .json.gz file in order, of which only a few are in memory at once.

    The file's other fields (`deviceProperties`, ...) are put into `fields`, which is complete after
    the last event. InvalidInput if there is no such file, or if it is no complete profiler file.
    """
    path = Path(path)
    try:
        with _opened(path) as file:
            text = _Text(file, size_factor(path))
            yield from _events(text, {} if fields is None else fields)
    except MissingFile:
        raise InvalidInput(f"there is no profiler file {path}") from None
    except EOFError:
        _refuse(path, "it is truncated or damaged; copy it again, or record it again")
    except RecursionError:
        _refuse(path, _NOT_JSON)
    except _Refused as error:
        _refuse(path, str(error))


def category_of(event: Event) -> str:
    """The category of an event, by its present name; "" if it has none."""
    category = event.get("cat")
    if not isinstance(category, str):
        return ""
    return _OLD_CATEGORIES.get(category, category)


def name_of(event: Event) -> str:
    """The name of an event; "" if it has none."""
    return text_of(event.get("name"))


def text_of(value: Any) -> str:
    """A value as a text that can be written; "" if it is not a text."""
    return whole_text(value) if isinstance(value, str) else ""


def arguments_of(event: Event) -> dict[str, Any]:
    """The `args` of an event, a dictionary."""
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def number(value: Any, default: float = 0.0) -> float:
    """A value as a float; the default if it is not a number."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
        return float(value)
    return default


def has_possible_time(event: Event) -> bool:
    """Whether an event begins at a number, and lasts from 0 to `LONGEST_US` microseconds."""
    begin, duration = event.get("ts"), event.get("dur", 0.0)
    given = number(begin, math.nan), number(duration, math.nan)
    return math.isfinite(given[0]) and 0 <= given[1] <= LONGEST_US


def kernel_of(event: Event, begin_us: float) -> Kernel:
    """The kernel, copy or fill of a GPU event. Its start is counted from `begin_us`."""
    arguments = arguments_of(event)
    return Kernel(
        name=name_of(event),
        seconds=max(number(event.get("dur")), 0.0) / 1e6,
        grid=_triple(arguments.get("grid")),
        block=_triple(arguments.get("block")),
        registers=_count(arguments.get("registers per thread")),
        shared_bytes=_count(arguments.get("shared memory")),
        stream=stream_of(arguments.get("stream")),
        start_s=max(number(event.get("ts")) - begin_us, 0.0) / 1e6,
    )


def stream_of(value: Any) -> int:
    """The number of a stream. AMD's files have addresses as text."""
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return 0
    count = _count(value)
    return 0 if count is None else count


def _count(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value < 1 << 62 else None


def _triple(value: Any) -> tuple[int, int, int] | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    x, y, z = map(_count, value)
    return None if x is None or y is None or z is None else (x, y, z)


class _Text:
    """A window on a long JSON text, from which values are taken one by one."""

    def __init__(self, file: TextIO, factor: float) -> None:
        self.factor = factor
        """How many times the budget of a small file the file has."""
        self._file = file
        self._left = _MOST_VALUES * factor
        self._decode = json.JSONDecoder(strict=False).raw_decode
        self._window = ""
        self._at = 0
        self._ended = False
        self.length = 0
        """How many characters the last value has."""

    def _extend(self, characters: int) -> None:
        more = self._file.read(characters)
        self._ended = not more
        self._left -= sum(map(more.count, ",[{"))
        if self._left < 0:
            raise _Refused(_TOO_MANY)
        self._window = self._window[self._at :] + more
        self._at = 0

    def peek(self) -> str:
        """The next character that is not a blank or a comma; "" at the end of the text."""
        while True:
            # Commas can be skipped like blanks. Some versions of the profiler write one too many.
            self._at = _BETWEEN.match(self._window, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._window) or self._ended:
                return self._window[self._at : self._at + 1]
            self._extend(_CHUNK_CHARACTERS)

    def take(self, character: str) -> bool:
        """Step over a character if it comes next, and return whether it did."""
        following = self.peek()
        if not following:
            raise EOFError
        self._at += following == character
        return following == character

    def value(self) -> Any:
        """The next value. Call `peek` before, which steps over blanks and commas."""
        characters = _CHUNK_CHARACTERS
        while True:
            try:
                value, end = self._decode(self._window, self._at)
            except json.JSONDecodeError as error:
                self._check_cut(error)
            except ValueError:  # a whole number of thousands of digits
                raise _Refused(_NOT_JSON) from None
            else:
                # A number at the end of the window may continue after it.
                if end < len(self._window) or self._ended:
                    self.length = end - self._at
                    self._at = end
                    return value
            self._extend(characters)
            characters *= 2

    def _check_cut(self, error: json.JSONDecodeError) -> None:
        """Raise unless the error only means that the window ends too early. At the end of the file,
        it means that the text is truncated."""
        cut = error.pos + _LONGEST_TOKEN > len(self._window) or "Unterminated" in error.msg
        if not cut:
            raise _Refused(_NOT_JSON)
        if len(self._window) - self._at > _LONGEST_VALUE:
            raise _Refused(_TOO_LONG)
        if self._ended:
            raise EOFError


def _opened(path: Path) -> TextIO:
    most_bytes = int(3 * LARGEST_UNPACKED_BYTES * size_factor(path))  # read piece by piece
    prefix = f"cannot read the profiler file {path}: it "
    file = open_file(path, packed=None, most_bytes=most_bytes, prefix=prefix)
    # Kernel names are not always valid UTF-8.
    return io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace")


def _events(text: _Text, fields: dict[str, Any]) -> Iterator[Event]:
    """The events in the file's object. Its other fields are put into `fields`."""
    if not text.take("{"):
        raise _Refused(_NOT_JSON)
    has_events, events, others = False, 0, 0
    while not text.take("}"):
        name = text.value()
        if not isinstance(name, str) or not text.take(":"):
            raise _Refused(_NOT_JSON)
        if name == "traceEvents" and text.take("["):
            has_events = True
            while not text.take("]"):
                event = text.value()
                events += 1
                if events > MOST_EVENTS * text.factor:
                    raise _Refused(_TOO_MANY)
                if isinstance(event, dict):
                    yield event
        else:
            text.peek()
            fields[name] = text.value()
            others += text.length
            if others > _MOST_OTHER:
                raise _Refused(_TOO_LONG)
    if not has_events:
        raise _Refused(f"it has no traceEvents; {_WANTED}")


def _refuse(path: Path, reason: str) -> NoReturn:
    raise InvalidInput(f"cannot read the profiler file {path}: {reason}")


# The events of the host as trees: which event encloses which, in each thread.


T = TypeVar("T")

MOST_ENCLOSING = 10_000_000
"""The most pairs of an event and one that encloses it: each pair is looked at several times."""


@dataclass(frozen=True, slots=True)
class Span:
    """An event of the host: an op, an annotation, a module's forward, or a runtime call."""

    name: str
    category: str
    thread: Any
    begin_us: float
    end_us: float
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A span, and the node that encloses it."""

    span: Span
    parent: Node | None

    @property
    def name(self) -> str:
        """The span's name."""
        return self.span.name

    def path(self) -> Iterator[Node]:
        """This node and those that enclose it, from the inside out."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent


class Inherited(Generic[T]):
    """A fact that a node has from itself or from those that enclose it, found once for each node.

    Walking up from every node would take the square of the depth of a file. `own` gives the fact
    that a node has by itself, or None. With `outermost`, the outermost node that has one decides,
    else the innermost.
    """

    def __init__(self, own: Callable[[Node], T | None], *, outermost: bool = False) -> None:
        self._own = own
        self._outermost = outermost
        self._known: dict[Node, T | None] = {}

    def of(self, node: Node | None) -> T | None:
        """The fact for a node; None if neither it nor those that enclose it have one."""
        path: list[Node] = []
        while node is not None and node not in self._known:
            path.append(node)
            node = node.parent
        fact = None if node is None else self._known[node]
        for inner in reversed(path):
            if fact is None or not self._outermost:
                own = self._own(inner)
                fact = fact if own is None else own
            self._known[inner] = fact
        return fact


def enclosing(nodes: Iterable[Node]) -> set[Node]:
    """The nodes and all that enclose one of them."""
    outer: set[Node] = set()
    for start in nodes:
        node: Node | None = start
        while node is not None and node not in outer:
            outer.add(node)
            node = node.parent
    return outer


def nest(spans: Iterable[Span], most_enclosing: int = MOST_ENCLOSING) -> list[Node]:
    """The nodes of all threads, ordered by their start. InvalidInput if more than `most_enclosing`
    events enclose others, counted for each event."""
    nodes: list[Node] = []
    enclosing = 0
    open_nodes: dict[Any, list[Node]] = {}
    # Of two that start together, the longer one encloses the other. If both are equally long, the
    # file has the outer one first.
    for span in sorted(spans, key=lambda span: (span.begin_us, -span.end_us)):
        stack = open_nodes.setdefault(span.thread, [])
        while stack and _is_over(stack[-1].span, span):
            stack.pop()
        node = Node(span, stack[-1] if stack else None)
        stack.append(node)
        nodes.append(node)
        enclosing += len(stack)
        if enclosing > most_enclosing:
            raise InvalidInput(
                "the events of this profiler file are nested too deeply: no program calls ops "
                f"within ops {enclosing // len(nodes)} times"
            )
    return nodes


def _is_over(earlier: Span, span: Span) -> bool:
    """Whether a span had ended when another began. Old files round to whole microseconds, so a
    short call may seem to begin when its op ends."""
    instant = span.begin_us == span.end_us and earlier.begin_us < earlier.end_us
    return earlier.end_us < span.begin_us if instant else earlier.end_us <= span.begin_us


# The host's time for each call of a step, without the time that it waits for the GPU.


# A runtime call that returns only when its copy is done.
_BLOCKING_COPY = re.compile(r"(?:cuda|hip|cu)Memcpy(?!\w*Async)\w*")

# A launch that takes this many times its usual duration was held up by the GPU.
_HELD_UP = 3.0


def synchronizes(runtime: str) -> bool:
    """Whether the host waits for the GPU in this runtime call."""
    return synchronization_name(runtime) is not None or bool(_BLOCKING_COPY.fullmatch(runtime))


def waits(calls: Iterable[Node], ran: Mapping[Node, Interval]) -> list[Interval]:
    """When the host waited for the GPU: intervals in order that do not overlap.

    The host waits in synchronisations, in copies with memory that is not pinned (until the copy is
    done), and in launches while the queue is full (until there is room). `ran` says when the GPU
    ran the kernels of each call that launched some.
    """
    calls = list(calls)
    usual = _usual_us(node for node in calls if node in ran)
    intervals = []
    for node in calls:
        begin, end = node.span.begin_us, node.span.end_us
        if synchronizes(node.name):
            intervals.append((begin, end))
        elif node in ran and _held_up(node, ran[node], usual[node.name]):
            intervals.append((begin + usual[node.name], end))
    return union(intervals)


def _usual_us(launches: Iterable[Node]) -> dict[str, float]:
    durations: dict[str, list[float]] = {}
    for node in launches:
        durations.setdefault(node.name, []).append(node.span.end_us - node.span.begin_us)
    # The lower decile, because on a busy GPU most launches are held up.
    return {name: sorted(times)[len(times) // 10] for name, times in durations.items()}


def _held_up(launch: Node, ran: Interval, usual_us: float) -> bool:
    """Whether a launch took long because it waited for the GPU: it is a copy that was done when the
    call returned, or its kernel waited in the queue for longer than the call took."""
    end = launch.span.end_us
    duration = end - launch.span.begin_us
    if duration <= _HELD_UP * usual_us:
        return False
    done = "emcpy" in launch.name and ran[1] <= end
    return done or ran[0] - end > duration


def shares_s(begins_us: Sequence[float], window: Interval, waits: list[Interval]) -> list[float]:
    """The host's time for each call: from its start to that of the next one, without waiting.

    The threads of a step take turns (the main thread waits during backward), so there is one
    timeline. The first share begins with the window and the last ends with it, so they add up to
    the window without the waits.
    """
    bounds = [window[0], *(min(max(t, window[0]), window[1]) for t in begins_us[1:]), window[1]]
    starts = [begin for begin, _ in waits]
    before = [0.0, *accumulate(end - begin for begin, end in waits)]

    def waited_us(until: float) -> float:
        count = bisect_right(starts, until)
        if not count:
            return 0.0
        return before[count] - max(waits[count - 1][1] - until, 0.0)

    worked = [bound - waited_us(bound) for bound in bounds]
    return [max(later - earlier, 0.0) / 1e6 for earlier, later in pairwise(worked)]


# The op that a kernel belongs to, among nested ones such as conv2d, convolution, _convolution and
# cudnn_convolution. Our own traces have the first that the dispatcher does not split above
# autograd; here it is the outermost that the table of ops knows.


# Ops that the table knows, but that the dispatcher splits (CompositeImplicitAutograd without a
# CUDA kernel, torch 2.13). The ops that they call are taken instead.
_SPLIT = frozenset(
    f"aten.{name}"
    for name in """
    __and__ __iand__ __ior__ __ixor__ __or__ __xor__ _version absolute absolute_ adjoint arccos
    arccos_ arccosh arccosh_ arcsin arcsin_ arcsinh arcsinh_ arctan arctan_ arctan2 arctan2_
    arctanh arctanh_ argsort broadcast_to chunk clip clip_ conj contiguous diag divide divide_
    expand_as fill_diagonal_ fix fix_ flatten float_power float_power_ greater greater_
    greater_equal greater_equal_ imag isfinite less less_ less_equal less_equal_ mH mT matrix_H
    mish_backward moveaxis movedim msort multiply multiply_ nanmean narrow negative negative_
    not_equal not_equal_ numpy_T pin_memory positive real relu6 relu6_ requires_grad_ reshape
    reshape_as resolve_conj resolve_neg rrelu rrelu_ selu selu_ special_digamma special_ndtr
    square square_ subtract subtract_ swapaxes swapaxes_ swapdims swapdims_ tensor_split tile to
    true_divide true_divide_ unflatten unsafe_chunk vander view_as
    """.split()
)
# Ops of which the dispatcher splits some overloads, often into another overload of the same name.
_SOMETIMES_SPLIT = frozenset(
    f"aten.{name}"
    for name in """
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d avg_pool1d linear max min
    repeat_interleave split std std_mean var var_mean where
    """.split()
)

# Queries about a tensor, which our own traces leave out, too.
_QUERIES = (
    "prim.",
    "profiler.",
    "aten.is_",
    "aten._use_",
    "aten.sym_",
    "aten.size",
    "aten.stride",
    "aten.detach",
)

_OP = re.compile(r"\w+(?:::[\w.]+)*(?:<.*>)?")
# Ranges of the profiler that enclose whole models and are not ops.
_RANGES = ("autograd::engine::", "CompiledF", "TorchDynamo", "torch_compile")

_COMMUNICATION_NODES = ("nccl:", "c10d::", "_c10d_functional::", "c10d_functional::")
_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "reducescatter": "reduce_scatter",
}


def op_name(node: Node) -> str:
    """The name of an op in a trace: `aten.mm` for `aten::mm`."""
    return node.name.replace("::", ".", 1)


@cache
def kind_of(name: str) -> Kind | None:
    """The kind of an op. None if the op is unknown, or a query about a tensor."""
    return None if name.startswith(_QUERIES) else ops.kind(Op(name, (), ()))


def is_split(name: str, always: bool = False) -> bool:
    """Whether the dispatcher splits some overloads of an op into others, or `always` all."""
    return name in _SPLIT or (not always and name in _SOMETIMES_SPLIT)


def is_communication(kernel: str) -> bool:
    """Whether a kernel communicates between GPUs, by its name."""
    return kernel_names.collective_in(kernel) is not None


class Owners:
    """The ops that kernels belong to, among the nested ops around the call that launched them."""

    def __init__(self) -> None:
        self._communications = communications()
        # The op that our own trace would have is the outermost that is not split into others.
        self._working = Inherited(partial(_whole, views=False), outermost=True)
        self._whole = Inherited(partial(_whole, views=True), outermost=True)
        self._recognised = Inherited(lambda node: node if _kind(node) is not None else None)
        self._ops = Inherited(lambda node: node if _is_op(node) else None)

    def of(self, launch: Node, kernel: str) -> Node:
        """The op that a kernel belongs to; the launch itself if no known op encloses it."""
        facts = self._working, self._whole, self._recognised, self._ops
        chosen = next(filter(None, (fact.of(launch.parent) for fact in facts)), None)
        outermost = self._communications.of(launch.parent)
        if outermost is not None and (
            chosen is None
            or is_communication(kernel)
            or kind_of(op_name(chosen)) in (None, Kind.COLLECTIVE)
        ):
            return outermost
        if chosen is None or is_communication(kernel):
            return launch
        return chosen


def _kind(node: Node) -> Kind | None:
    return kind_of(op_name(node)) if node.span.category == "cpu_op" else None


def _whole(node: Node, views: bool) -> Node | None:
    """A node of a known op that is not split into others, and perhaps not a view."""
    kind = _kind(node)
    if kind is None or (kind is Kind.VIEW and not views) or is_split(op_name(node)):
        return None
    return node


def _is_op(node: Node) -> bool:
    is_named = bool(_OP.fullmatch(node.name)) and not node.name.startswith(_RANGES)
    return is_named and node.span.category == "cpu_op"


def is_communication_node(node: Node) -> bool:
    """Whether a node communicates between GPUs."""
    return node.name.startswith(_COMMUNICATION_NODES) or node.name == "record_param_comms"


def communications() -> Inherited[Node]:
    """The outermost communication of each node."""
    return Inherited(lambda node: node if is_communication_node(node) else None, outermost=True)


def launch_name(launch: str, kernels: tuple[str, ...]) -> str:
    """What a launch outside of any op is called: after its kernel, or as a graph if it has many."""
    if len(kernels) != 1:
        return f"kernel.{launch}"
    collective = kernel_names.collective_in(kernels[0])
    if collective:
        return f"nccl.{collective}"
    if kernel_names.is_triton(kernels[0]):
        return f"triton.{kernels[0]}"
    return f"kernel.{kernel_names.short_name(kernels[0])}"


def collective_name(annotation: str) -> str:
    """The name of a collective in a trace: `nccl.all_reduce` for "nccl:all_reduce", "allreduce"."""
    words = annotation.rpartition(":")[2].split() or ["unknown"]
    word = words[0].strip("_").removesuffix("_base")
    return f"nccl.{_COLLECTIVES.get(word, word)}"


_SYNCHRONIZATIONS = re.compile(r"(?:cuda|hip|cu)(Device|Ctx|Stream|Event)Synchronize\w*")


def synchronization_name(runtime: str) -> str | None:
    """The name in a trace of a runtime call in which the host waits. None for other calls."""
    match = _SYNCHRONIZATIONS.fullmatch(runtime)
    if match is None:
        return None
    what = match[1].lower()
    return "cuda.synchronize" if what in ("device", "ctx") else f"cuda.{what}_synchronize"
