"""Which color a kind of op or of memory has; the style sheet says what each looks like."""

from __future__ import annotations

from collections.abc import Iterable

from wavecast.footprint.kinds import KINDS
from wavecast.ops import Kind
from wavecast.report.html.markup import Html, element, empty_element, joined

_OTHER = 9
_COLORS = {
    Kind.MATMUL: 0,
    Kind.LINEAR_ALGEBRA: 0,
    Kind.FFT: 0,
    Kind.CONVOLUTION: 1,
    Kind.ATTENTION: 2,
    Kind.RNN: 3,
    Kind.NORM: 4,
    Kind.SOFTMAX: 5,
    Kind.LOSS: 5,
    Kind.REDUCTION: 5,
    Kind.ELEMENTWISE: 6,
    Kind.EMBEDDING: 7,
    Kind.INDEXING: 7,
    Kind.SORT: 7,
    Kind.POOLING: 8,
    Kind.RESAMPLING: 8,
    Kind.OPTIMIZER: 10,
    Kind.COLLECTIVE: 11,
}
_MEMORY = dict(zip(KINDS, (0, 4, 10, 2, 7, 1, 9, 8), strict=True))


def color_of_kind(kind: str) -> int:
    """The number of the color of an op kind; copies, fills and unknown ops share one."""
    return next((color for name, color in _COLORS.items() if name == kind), _OTHER)


def color_of_memory(kind: str) -> str:
    """The class of a kind of memory, one of `KINDS`."""
    return f"c{_MEMORY[kind]}"


def key(entries: dict[str, str]) -> Html:
    """What the colors of a drawing mean: classes by name."""
    return element(
        "ul",
        *(element("li", joined([_swatch(class_), name])) for name, class_ in entries.items()),
        class_="key",
    )


def kind_key(kinds: Iterable[str]) -> Html:
    """What the colors of kinds of ops mean; kinds that share a color are named together."""
    names: dict[int, dict[str, None]] = {}
    for kind in kinds:
        names.setdefault(color_of_kind(kind), {})[kind.replace("_", " ")] = None
    return key({", ".join(named): f"c{color}" for color, named in names.items()})


def _swatch(class_: str) -> Html:
    square = empty_element("rect", width="10", height="10", rx="2", class_=class_)
    return element("svg", square, width="10", height="10", aria_hidden="true")
