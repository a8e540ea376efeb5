"""Where the GPU's time goes: by kind of op, by op, and by module as a tree."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from wavecast import ops
from wavecast.report.html.axes import bar
from wavecast.report.html.markup import Html, color_of_kind, element, html_table, joined, key
from wavecast.report.tables import Column, from_rows
from wavecast.report.units import count, duration, one_line, percent
from wavecast.steps.player import Timetable, Work
from wavecast.traces.step import Op, Phase

DEEPEST = 24
"""Modules below this depth are counted with the module that holds them."""
_LEAST = 1.5e-4
"""Parts of the tree with a smaller share of the GPU's time are added up."""
_LEAST_KIND = 0.005
"""Kinds of ops with a smaller share are added up."""
_ROWS = 20
_Group = TypeVar("_Group", bound=Hashable)
_PHASES = dict(zip(Phase, ("p0", "p1", "p0", "p2"), strict=True))
"""The classes that draw the phases. Ops of the optimizer hardly run in another phase."""


@dataclass
class _GpuTime:
    """The GPU time of some calls."""

    by_phase: dict[Phase, float] = field(default_factory=lambda: dict.fromkeys(Phase, 0.0))
    calls: int = 0

    @property
    def seconds(self) -> float:
        return sum(self.by_phase.values())

    def add(self, other: Work | _GpuTime) -> None:
        parts = {other.phase: other.seconds} if isinstance(other, Work) else other.by_phase
        for phase, seconds in parts.items():
            self.by_phase[phase] += seconds
        self.calls += other.calls


def _longest(
    table_of: Timetable, group: Callable[[Work], _Group]
) -> tuple[list[tuple[_Group, _GpuTime]], float]:
    """The GPU time of each group of calls, longest first, and of all together."""
    sums: dict[_Group, _GpuTime] = {}
    for work in table_of.works:
        sums.setdefault(group(work), _GpuTime()).add(work)
    whole = float(table_of.gpu_s.sum()) or 1.0
    return sorted(sums.items(), key=lambda item: -item[1].seconds), whole


def _cells(time: _GpuTime, whole_s: float) -> tuple[str, str, str]:
    return duration(time.seconds), percent(time.seconds / whole_s, 1), count(time.calls)


def _kind(work: Work) -> str:
    return str(ops.kind(work.op) or "unknown")


def op_kinds(table_of: Timetable) -> Html:
    """The kinds of ops, longest first, each with a bar that is divided by phase."""
    every, whole = _longest(table_of, _kind)
    shown = [(kind.replace("_", " "), color_of_kind(kind), time) for kind, time in every]
    rest = [time for _, _, time in shown if time.seconds < _LEAST_KIND * whole]
    if len(rest) > 1:
        others = _GpuTime()
        for time in rest:
            others.add(time)
        shown = [*shown[: -len(rest)], (f"{len(rest)} others", 9, others)]
    cells = [(name, "", *_cells(time, whole)) for name, _, time in shown]
    columns = from_rows(cells, "<kind of op", "<GPU time", "time", "share", "calls")
    longest = max((time.seconds for _, _, time in shown), default=1.0)

    def drawn(column: Column, row: int) -> Html | None:
        _, color, time = shown[row]
        return _phase_bar(time, color, longest) if column.name == "GPU time" else None

    used = [phase for phase in Phase if any(time.by_phase[phase] for _, _, time in shown)]
    legend = key(
        {
            " and ".join(phase for phase in used if _PHASES[phase] == class_): f"{class_} ink"
            for class_ in dict.fromkeys(_PHASES[phase] for phase in used)
        }
    )
    return joined([legend, html_table(columns, caption="GPU time by kind of op", drawn=drawn)])


def _phase_bar(time: _GpuTime, color: int, longest: float) -> Html:
    parts = [
        (seconds / longest, f"{_PHASES[phase]} c{color}", f"{phase}: {duration(seconds)}")
        for phase, seconds in time.by_phase.items()
    ]
    return bar(parts, "")


def used_kinds(table_of: Timetable) -> list[str]:
    """The kinds of ops that run on the GPU, longest first."""
    return [kind for kind, _ in _longest(table_of, _kind)[0]]


def longest_ops(table_of: Timetable) -> Html:
    """The ops on which the GPU spends most time."""
    every, whole = _longest(table_of, lambda work: work.op)
    cells = [(op.base, _largest(op), *_cells(time, whole)) for op, time in every[:_ROWS]]
    columns = from_rows(cells, "<op", "<largest input", "time", "share", "calls")
    return html_table(columns, caption="The ops with most GPU time, one row for each shape")


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
        kind = _kind(work)
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


def modules(table_of: Timetable) -> Html:
    """The modules with most GPU time, as a table for those who cannot use the tree."""
    every, whole = _longest(table_of, lambda work: ".".join(_path(work.module, work.phase)[:3]))
    cells = [(name, *_cells(time, whole)) for name, time in every[:_ROWS]]
    columns = from_rows(cells, "<module", "time", "share", "calls")
    return html_table(columns, caption="The modules with most GPU time")


def icicle(subject: str) -> Html:
    """The place where the script draws the tree of modules."""
    return element(
        "div",
        element("p", class_="path", aria_live="polite"),
        element("div", class_="nodes", role="tree", aria_label="GPU time by module"),
        class_="icicle needs-script",
        data_subject=subject,
    )
