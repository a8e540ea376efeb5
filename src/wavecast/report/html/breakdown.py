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
from wavecast.steps.timetable import Timetable
from wavecast.traces.step import Op, Phase

DEEPEST = 24
"""Modules below this depth are counted with the module that holds them."""
_LEAST = 1.5e-4
"""Parts of the tree with a smaller share of the GPU's time are added up."""
_ROWS = 20
_PHASES = {
    Phase.FORWARD: "p0",
    Phase.BACKWARD: "p1",
    Phase.OPTIMIZER: "p2",
    Phase.OTHER: "p3",
}
"""The classes that draw the phases."""


def op_kinds(table_of: Timetable) -> Html:
    """The kinds of ops, longest first, each with a bar that is divided by phase."""
    sums: dict[str, dict[Phase, float]] = {}
    calls: dict[str, int] = {}
    for call, gpu_s in zip(table_of.calls, table_of.gpu_s.tolist(), strict=True):
        if gpu_s > 0:
            kind = str(ops.kind(call.op) or "unknown")
            by_phase = sums.setdefault(kind, dict.fromkeys(Phase, 0.0))
            by_phase[call.phase] += gpu_s
            calls[kind] = calls.get(kind, 0) + 1
    totals = {kind: sum(by_phase.values()) for kind, by_phase in sums.items()}
    kinds = sorted(totals, key=lambda kind: -totals[kind])
    whole = sum(totals.values()) or 1.0
    longest = max(totals.values(), default=1.0)
    columns = [
        Column("kind of op", [kind.replace("_", " ") for kind in kinds], left=True),
        Column("GPU time", ["" for _ in kinds], left=True),
        Column("time", [duration(totals[kind]) for kind in kinds]),
        Column("share", [percent(totals[kind] / whole, 1) for kind in kinds]),
        Column("calls", [count(calls[kind]) for kind in kinds]),
    ]

    def drawn(column: Column, row: int) -> Html | None:
        if column.name != "GPU time":
            return None
        parts = [
            (
                seconds / longest,
                f"{_PHASES[phase]} c{color_of_kind(kinds[row])}",
                f"{phase}: {duration(seconds)}",
            )
            for phase, seconds in sums[kinds[row]].items()
        ]
        return bar(parts, "")

    used = [phase for phase in Phase if any(sums[kind][phase] for kind in kinds)]
    legend = key({str(phase): f"{_PHASES[phase]} ink" for phase in used})
    return joined([legend, table(columns, caption="GPU time by kind of op", drawn=drawn)])


def longest_ops(table_of: Timetable) -> Html:
    """The ops on which the GPU spends most time."""
    sums: dict[Op, list[float]] = {}
    for call, gpu_s in zip(table_of.calls, table_of.gpu_s.tolist(), strict=True):
        if gpu_s > 0:
            one = sums.setdefault(call.op, [0.0, 0.0])
            one[0] += gpu_s
            one[1] += 1
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

    def add(self, seconds: float, kind: str) -> None:
        self.seconds += seconds
        self.calls += 1
        self.kinds[kind] = self.kinds.get(kind, 0.0) + seconds


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
    for call, gpu_s in zip(table_of.calls, table_of.gpu_s.tolist(), strict=True):
        if gpu_s > 0:
            kind = str(ops.kind(call.op) or "unknown")
            root.add(gpu_s, kind)
            node = root
            for name in (*_path(call.module, call.phase), call.op.base):
                node = node.children.setdefault(name, _ModuleNode())
                node.add(gpu_s, kind)
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
    for call, gpu_s in zip(table_of.calls, table_of.gpu_s.tolist(), strict=True):
        if gpu_s > 0:
            name = ".".join(_path(call.module, call.phase)[:depth])
            one = sums.setdefault(name, [0.0, 0.0])
            one[0] += gpu_s
            one[1] += 1
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
