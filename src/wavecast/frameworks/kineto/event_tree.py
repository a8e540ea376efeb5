"""The events of the host as trees: which event encloses which, in each thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from wavecast.errors import InvalidInput

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

    Walking up from every node would take the square of the depth of a file.

    Args:
        own: the fact that a node has by itself; None if it has none.
        outermost: whether the outermost node with such a fact decides; else the innermost does.
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
        found = None if node is None else self._known[node]
        for inner in reversed(path):
            if found is None or not self._outermost:
                own = self._own(inner)
                found = found if own is None else own
            self._known[inner] = found
        return found


def enclosing(nodes: Iterable[Node]) -> set[Node]:
    """The nodes and all that enclose one of them."""
    found: set[Node] = set()
    for start in nodes:
        node: Node | None = start
        while node is not None and node not in found:
            found.add(node)
            node = node.parent
    return found


def nest(spans: Iterable[Span], most_enclosing: int = MOST_ENCLOSING) -> list[Node]:
    """The nodes of all threads, ordered by their start.

    Raises:
        InvalidInput: more than `most_enclosing` events enclose others, counted for each event.
    """
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
    """Whether an earlier span had ended when another began.

    Old files round to whole microseconds, so a short call may seem to begin when its op ends.
    """
    instant = span.begin_us == span.end_us and earlier.begin_us < earlier.end_us
    return earlier.end_us < span.begin_us if instant else earlier.end_us <= span.begin_us
