"""Where the GPU's time goes: by kind of op, by op, and by module as a tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from wavecast import ops
from wavecast.report.characters import one_line
from wavecast.report.html.axes import bar
from wavecast.report.html.colors import color_of_kind, key
from wavecast.report.html.markup import Html, element, joined, table
from wavecast.report.tables import Column
from wavecast.report.units import count, duration, percent
from wavecast.steps.timetable import Timetable, Work
from wavecast.traces.step import Op, Phase

DEEPEST = 24
"""Modules below this depth are counted with the module that holds them."""
_LEAST = 1.5e-4
"""Parts of the tree with a smaller share of the GPU's time are added up."""
_LEAST_KIND = 0.005
"""Kinds of ops with a smaller share are added up."""
_ROWS = 20
_PHASES = {
    Phase.FORWARD: "p0",
    Phase.BACKWARD: "p1",
    Phase.OPTIMIZER: "p0",
    Phase.OTHER: "p2",
}
"""The classes that draw the phases. Ops of the optimizer hardly run in another phase."""


def op_kinds(table_of: Timetable) -> Html:
    """The kinds of ops, longest first, each with a bar that is divided by phase."""
    every = _by_kind(table_of)
    whole = sum(one.seconds for one in every) or 1.0
    shown = [one for one in every if one.seconds >= _LEAST_KIND * whole]
    rest = [one for one in every if one.seconds < _LEAST_KIND * whole]
    if len(rest) > 1:
        shown.append(_together(rest))
    else:
        shown += rest
    columns = [
        Column("kind of op", [one.name for one in shown], left=True),
        Column("GPU time", ["" for _ in shown], left=True),
        Column("time", [duration(one.seconds) for one in shown]),
        Column("share", [percent(one.seconds / whole, 1) for one in shown]),
        Column("calls", [count(one.calls) for one in shown]),
    ]
    longest = max((one.seconds for one in shown), default=1.0)

    def drawn(column: Column, row: int) -> Html | None:
        return _phase_bar(shown[row], longest) if column.name == "GPU time" else None

    used = [phase for phase in Phase if any(one.by_phase[phase] for one in shown)]
    legend = key(
        {
            " and ".join(phase for phase in used if _PHASES[phase] == class_): f"{class_} ink"
            for class_ in dict.fromkeys(_PHASES[phase] for phase in used)
        }
    )
    return joined([legend, table(columns, caption="GPU time by kind of op", drawn=drawn)])


@dataclass(frozen=True)
class _KindTime:
    """The GPU time of the ops of one kind."""

    name: str
    color: int
    calls: int
    by_phase: dict[Phase, float]

    @property
    def seconds(self) -> float:
        return sum(self.by_phase.values())


def _by_kind(table_of: Timetable) -> list[_KindTime]:
    """The kinds of ops that run on the GPU, longest first."""
    sums: dict[str, dict[Phase, float]] = {}
    calls: dict[str, int] = {}
    for work in table_of.works:
        kind = str(ops.kind(work.op) or "unknown")
        sums.setdefault(kind, dict.fromkeys(Phase, 0.0))[work.phase] += work.seconds
        calls[kind] = calls.get(kind, 0) + work.calls
    kinds = [
        _KindTime(kind.replace("_", " "), color_of_kind(kind), calls[kind], by_phase)
        for kind, by_phase in sums.items()
    ]
    return sorted(kinds, key=lambda one: -one.seconds)


def _together(kinds: Sequence[_KindTime]) -> _KindTime:
    by_phase = {phase: sum(one.by_phase[phase] for one in kinds) for phase in Phase}
    return _KindTime(f"{len(kinds)} others", 9, sum(one.calls for one in kinds), by_phase)


def _phase_bar(one: _KindTime, longest: float) -> Html:
    parts = [
        (seconds / longest, f"{_PHASES[phase]} c{one.color}", f"{phase}: {duration(seconds)}")
        for phase, seconds in one.by_phase.items()
    ]
    return bar(parts, "")


def kind_key(table_of: Timetable) -> Html:
    """What the colors of the kinds of ops mean; kinds that share a color are named together."""
    names: dict[int, list[str]] = {}
    for one in _by_kind(table_of):
        names.setdefault(one.color, []).append(one.name)
    return key({", ".join(kinds): f"c{color}" for color, kinds in names.items()})


def longest_ops(table_of: Timetable) -> Html:
    """The ops on which the GPU spends most time."""
    sums: dict[Op, list[float]] = {}
    for work in table_of.works:
        one = sums.setdefault(work.op, [0.0, 0.0])
        one[0] += work.seconds
        one[1] += work.calls
    longest = sorted(sums.items(), key=lambda item: -item[1][0])[:_ROWS]
    whole = float(table_of.gpu_s.sum()) or 1.0
    columns = [
        Column("op", [op.base for op, _ in longest], left=True),
        Column("largest input", [_largest(op) for op, _ in longest], left=True),
        Column("calls", [count(one[1]) for _, one in longest]),
        Column("time", [duration(one[0]) for _, one in longest]),
        Column("share", [percent(one[0] / whole, 1) for _, one in longest]),
    ]
    return table(columns, caption="The ops with most GPU time, one row for each shape")


def _largest(op: Op) -> str:
    tensors = sorted((*op.inputs, *op.outputs), key=lambda tensor: -tensor.numel)
    if not tensors:
        return ""
    return f"{tensors[0].dtype} {' x '.join(map(str, tensors[0].shape))}"


@dataclass
class _ModuleNode:
    """A module, or an op within it."""

    seconds: float = 0.0
    calls: int = 0
    kinds: dict[str, float] = field(default_factory=dict)
    children: dict[str, _ModuleNode] = field(default_factory=dict)

    def add(self, work: Work, kind: str) -> None:
        self.seconds += work.seconds
        self.calls += work.calls
        self.kinds[kind] = self.kinds.get(kind, 0.0) + work.seconds


class Names:
    """The texts of a page's data, each once: the data holds their positions."""

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}

    def position(self, text: str) -> int:
        """The position of a text."""
        return self._positions.setdefault(one_line(text), len(self._positions))

    def listed(self) -> list[str]:
        """All texts, in the order of their positions."""
        return list(self._positions)


def module_tree(table_of: Timetable, names: Names) -> list[Any]:
    """The GPU's time by module as a tree, whose leaves are ops.

    A node is a list: the position of its name, nanoseconds, calls, a color, and its children, in
    the order in which they first run.
    """
    root = _ModuleNode()
    for work in table_of.works:
        kind = str(ops.kind(work.op) or "unknown")
        root.add(work, kind)
        node = root
        for name in (*_path(work.module, work.phase), work.op.base):
            node = node.children.setdefault(name, _ModuleNode())
            node.add(work, kind)
    return _listed(root, "step", names, root.seconds * _LEAST)


def _path(module: str, phase: Phase) -> Sequence[str]:
    """The names of the modules from the outermost on."""
    if not module:
        return (f"({phase})",)
    parts = module.split(".")
    return (
        parts if len(parts) <= DEEPEST else [*parts[: DEEPEST - 1], ".".join(parts[DEEPEST - 1 :])]
    )


def _listed(node: _ModuleNode, name: str, names: Names, least_s: float) -> list[Any]:
    shown = {child: one for child, one in node.children.items() if one.seconds >= least_s}
    children = [_listed(one, child, names, least_s) for child, one in shown.items()]
    rest = [one for child, one in node.children.items() if child not in shown]
    if rest and sum(one.seconds for one in rest) >= least_s:
        children.append(_added_up(rest, names))
    main = max(node.kinds, key=node.kinds.__getitem__, default="")
    position = names.position(name)
    return [position, round(node.seconds * 1e9), node.calls, color_of_kind(main), children]


def _added_up(nodes: Iterable[_ModuleNode], names: Names) -> list[Any]:
    nodes = list(nodes)
    seconds, calls = sum(one.seconds for one in nodes), sum(one.calls for one in nodes)
    return [names.position(f"{len(nodes)} smaller ones"), round(seconds * 1e9), calls, 9, []]


def modules(table_of: Timetable, depth: int = 3) -> Html:
    """The modules with most GPU time, as a table for those who cannot use the tree."""
    sums: dict[str, list[float]] = {}
    for work in table_of.works:
        name = ".".join(_path(work.module, work.phase)[:depth])
        one = sums.setdefault(name, [0.0, 0.0])
        one[0] += work.seconds
        one[1] += work.calls
    longest = sorted(sums.items(), key=lambda item: -item[1][0])[:_ROWS]
    whole = float(table_of.gpu_s.sum()) or 1.0
    columns = [
        Column("module", [name for name, _ in longest], left=True),
        Column("time", [duration(one[0]) for _, one in longest]),
        Column("share", [percent(one[0] / whole, 1) for _, one in longest]),
        Column("calls", [count(one[1]) for _, one in longest]),
    ]
    return table(columns, caption="The modules with most GPU time")


def icicle(subject: str) -> Html:
    """The place where the script draws the tree of modules."""
    return element(
        "div",
        element("p", class_="path", aria_live="polite"),
        element("div", class_="nodes", role="tree", aria_label="GPU time by module"),
        class_="icicle needs-script",
        data_subject=subject,
    )
