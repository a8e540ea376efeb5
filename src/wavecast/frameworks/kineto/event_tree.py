"""What ran inside what on the host: the events of each thread as trees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Span:
    """An event of the host: an op, an annotation, a module's forward, a call of the runtime."""

    name: str
    category: str
    thread: Any
    begin_us: float
    end_us: float
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A span and the one that encloses it."""

    span: Span
    parent: Node | None

    @property
    def name(self) -> str:
        """The span's name."""
        return self.span.name

    def path(self) -> Iterator[Node]:
        """This node and what encloses it, from the inside out."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent


def nest(spans: Iterable[Span]) -> list[Node]:
    """The nodes of all threads in the order of their beginning."""
    nodes: list[Node] = []
    open_nodes: dict[Any, list[Node]] = {}
    # At equal times the longer one is outside. Files keep that order where both are equal.
    for span in sorted(spans, key=lambda span: (span.begin_us, -span.end_us)):
        stack = open_nodes.setdefault(span.thread, [])
        while stack and _is_over(stack[-1].span, span):
            stack.pop()
        node = Node(span, stack[-1] if stack else None)
        stack.append(node)
        nodes.append(node)
    return nodes


def _is_over(earlier: Span, span: Span) -> bool:
    """Whether a span had ended when another began.

    Old files count whole microseconds: a short call may seem to begin when its op ends.
    """
    instant = span.begin_us == span.end_us and earlier.begin_us < earlier.end_us
    return earlier.end_us < span.begin_us if instant else earlier.end_us <= span.begin_us
